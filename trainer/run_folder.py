"""A run's folder: config.toml, metrics.jsonl, rollouts/, checkpoints/, summary.json, report.html.

One process at a time works on it. Metrics are appended a line at a time; on resume the file is cut
back to where the checkpoint was taken, so that a resumed run's record reads as if it had never
stopped. What a disk refuses is one VeriwardError, and what was there before stays whole.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandbox.errors import ConfigError, VeriwardError
from trainer.config import RunConfig, load_config


def default_folder(config: RunConfig) -> Path:
    return Path("runs") / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self._config = path / "config.toml"
        self._rollouts = path / "rollouts"

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunFolder:
        """Raises ConfigError when the folder has anything in it, but for what a kill half way through this left."""
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path}: is a file; give another --out")
        if path.exists() and any(not _is_aside(child) for child in path.iterdir()):
            on = f", or `veriward resume {shlex.quote(str(path))}`" if (path / "config.toml").is_file() else ""
            raise ConfigError(f"{path}: exists and is not empty; give another --out{on}")
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            for left in path.iterdir():
                left.unlink()
            replace_text(folder._config, config.to_toml())  # from here on the run can be resumed
            folder._make_record()
        except OSError as error:
            raise VeriwardError(f"{path}: the run folder cannot be made ({error.strerror})") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, RunConfig]:
        if not (path / "config.toml").is_file():
            raise VeriwardError(f"{path}: not a run folder (it has no config.toml)")
        return cls(path), load_config(str(path / "config.toml"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out; the kernel lets go when this one dies. Raises VeriwardError when one is in."""
        try:
            import fcntl
        except ImportError:  # Windows has no flock: there two processes are not kept apart
            yield
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise VeriwardError(f"{self.path}: another process works on this run; wait for it or stop it") from None
            except OSError:  # some network file systems have no locks: better unguarded than not at all
                pass
            yield
        finally:
            os.close(descriptor)

    def restart(self, checkpoint_every_steps: int) -> None:
        """Forget all that was recorded, for a run that was stopped before its first checkpoint.

        Raises VeriwardError when it had one once, and so may not be begun again unasked.
        """
        later = self._rollouts / f"step-{checkpoint_every_steps + 1:06d}.jsonl"
        if later.is_file() or self.summary.is_file():
            raise VeriwardError(
                f"{self.checkpoints}: no complete checkpoint is left; begin again with "
                f"`veriward train {shlex.quote(str(self._config))} --out NEW`"
            )
        with self._recorded(self.metrics):
            self._make_record()
        self.rewind(0, 0)

    def _make_record(self) -> None:
        self._rollouts.mkdir(exist_ok=True)
        self.metrics.touch()

    def write_config(self, config: RunConfig) -> None:
        with self._recorded(self._config):
            replace_text(self._config, config.to_toml())

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        clean = {key: _finite_or_null(value) for key, value in line.items()}
        with self._recorded(self.metrics), self.metrics.open("a") as file:
            file.write(json.dumps(clean) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint counts on as many bytes as it saw

    def read_metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.metrics.read_text().splitlines() if line.strip()]

    def metrics_bytes(self) -> int:
        return self.metrics.stat().st_size

    def rewind(self, step: int, metrics_bytes: int) -> None:
        """Forget what was recorded after the checkpoint taken at `step`.

        Raises VeriwardError, with nothing changed, when the record is shorter than it was then.
        """
        found = self.metrics_bytes() if self.metrics.is_file() else 0
        if found < metrics_bytes:
            raise VeriwardError(
                f"{self.metrics}: holds {found} bytes, but {metrics_bytes} at the checkpoint of step {step}; "
                "put the file back, or take the weights out with `veriward export model`"
            )
        with self._recorded(self.metrics):
            os.truncate(self.metrics, metrics_bytes)
            self.summary.unlink(missing_ok=True)
            for path in self._rollouts.glob("step-*.jsonl"):
                if int(path.stem.removeprefix("step-")) > step:
                    path.unlink()

    def write_rollouts(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        path = self._rollouts / f"step-{step:06d}.jsonl"
        with self._recorded(path), path.open("w") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")

    def finished_steps(self) -> int:
        """The step the run ended with; 0 when it has not ended."""
        return int(json.loads(self.summary.read_text())["steps"]) if self.summary.is_file() else 0

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        with self._recorded(self.summary):
            replace_text(self.summary, json.dumps(summary, indent=1))

    @contextmanager
    def _recorded(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise VeriwardError(
                f"{path}: cannot be written ({error.strerror}); free space or check its rights, "
                f"then `veriward resume {self.path}`"
            ) from error


def replace_text(path: Path, text: str) -> None:
    """Write a UTF-8 file that is whole or, after any failure, as it was before. Raises OSError."""
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def _is_aside(path: Path) -> bool:
    """Whether `replace_text` was killed while it wrote a config."""
    return path.name.startswith(".config-")


def _finite_or_null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
