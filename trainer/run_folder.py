"""A run's folder: config.toml, metrics.jsonl, rollouts/, checkpoints/, summary.json, report.html.

Metrics are appended a line at a time. On resume the file is cut back to where the checkpoint
was taken, so that a resumed run's record reads as if it had never stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Mapping
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

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunFolder:
        """Raises ConfigError when the folder has anything in it."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path}: exists and is not empty; give another --out, or `veriward resume {path}`")
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "rollouts").mkdir()
            (path / "config.toml").write_text(config.to_toml())
            (path / "metrics.jsonl").touch()
        except OSError as error:
            raise VeriwardError(f"{path}: the run folder cannot be made ({error.strerror})") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, RunConfig]:
        if not (path / "config.toml").is_file():
            raise VeriwardError(f"{path}: not a run folder (it has no config.toml)")
        return cls(path), load_config(str(path / "config.toml"))

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        clean = {key: _finite_or_null(value) for key, value in line.items()}
        with self.metrics.open("a") as file:
            file.write(json.dumps(clean) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.metrics.read_text().splitlines() if line.strip()]

    def metrics_bytes(self) -> int:
        return self.metrics.stat().st_size

    def rewind(self, step: int, metrics_bytes: int) -> None:
        """Forget what was recorded after the checkpoint taken at `step`."""
        os.truncate(self.metrics, metrics_bytes)
        self.summary.unlink(missing_ok=True)
        for path in (self.path / "rollouts").glob("step-*.jsonl"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()

    def write_rollouts(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        with (self.path / "rollouts" / f"step-{step:06d}.jsonl").open("w") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        aside = self.summary.with_suffix(".tmp")
        aside.write_text(json.dumps(summary, indent=1))
        aside.replace(self.summary)


def _finite_or_null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
