"""Checkpoints that are whole or absent.

Files are written aside, fsynced, listed with their hashes in a manifest, and the folder is
renamed into place; so an interrupted or failed save is never the one resumed from, and damage
is noticed on load instead of trained on.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from sandbox.errors import VeriwardError

MANIFEST = "manifest.json"
STATE = "state.json"
_NAME = re.compile(r"step-(\d{6,})$")


class CheckpointError(VeriwardError):
    """A checkpoint that cannot be saved, found or trusted."""


def save_checkpoint(
    home: Path, step: int, state: dict[str, Any], write: Callable[[Path], None], keep_last: int
) -> Path:
    """Save `state` and whatever `write(folder)` puts beside it as home/step-NNNNNN; drop older ones.
    One process at a time: what others left half written here is removed.

    Raises CheckpointError when the disk does not take it; earlier checkpoints are then untouched.
    """
    final = home / f"step-{step:06d}"
    with _explained(home, final), new_folder(final) as folder:
        write(folder)
        (folder / STATE).write_text(json.dumps(state, indent=1))
        files = {str(path.relative_to(folder)): file_sha256(path) for path in _files(folder)}
        (folder / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=1))
    for old in list_checkpoints(home)[:-keep_last]:
        if old != final:
            old.rename(home / f".{old.name}.old.tmp")
    for left in home.glob(".step-*.tmp"):  # the old ones, and what a killed process left half written
        shutil.rmtree(left, ignore_errors=True)
    return final


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `final` only when it is filled and on disk, else vanishes."""
    final.parent.mkdir(parents=True, exist_ok=True)
    aside = final.parent / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        yield aside
        for path in [*_files(aside), *_folders(aside), aside]:
            _fsync(path)
        if final.exists():
            shutil.rmtree(final)
        os.rename(aside, final)
        _fsync(final.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def list_checkpoints(home: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [(int(match[1]), path) for path in _children(home) if (match := _NAME.match(path.name))]
    return [path for _, path in sorted(found) if (path / MANIFEST).is_file()]


def latest_checkpoint(home: Path) -> Path:
    checkpoints = list_checkpoints(home)
    if not checkpoints:
        raise CheckpointError(f"{home}: no complete checkpoint; start the run again with `veriward train`")
    return checkpoints[-1]


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The saved state, after every file matched its hash. Raises CheckpointError naming what does not."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        for name, expected in manifest["files"].items():
            if file_sha256(checkpoint / name) != expected:
                raise CheckpointError(
                    f"{checkpoint / name}: damaged (its hash is not the manifest's); "
                    "delete this checkpoint and resume from the one before"
                )
        state: dict[str, Any] = json.loads((checkpoint / STATE).read_text())
        return state
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{error.filename}: missing; delete {checkpoint} and resume from the checkpoint before"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):  # damaged bytes are no UTF-8 or no JSON
        raise CheckpointError(
            f"{checkpoint}: its manifest or state is not readable; delete it and resume from the one before"
        ) from None


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _explained(home: Path, final: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        # The writers of torch and safetensors wrap a full disk in errors of their own.
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        kept = list_checkpoints(home)
        whole = f"{kept[-1].name} is whole" if kept else "there is none before it"
        rest = f"{whole}: free space, then `veriward resume {home.parent}`"
        raise CheckpointError(f"{final}: checkpoint not saved ({cause}); {rest}") from error


def _children(home: Path) -> list[Path]:
    return list(home.iterdir()) if home.is_dir() else []


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _folders(folder: Path) -> list[Path]:
    return sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
