"""Folders of slots that share the machine's root: one per slot, its owner in its name.

Only needed where a job's files can't lie on a tmpfs of their own.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from sandbox.shared_root import empty_folder

_PREFIX = "veriward-slot-"


def make_slot_dir() -> str:
    """A new folder that all may enter, but only its owner list or change."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}-"))
    os.chmod(folder, 0o711)
    return folder


def remove_slot_dir(folder: str) -> None:
    with contextlib.suppress(OSError):
        empty_folder(folder)
        os.rmdir(folder)


def sweep_slot_dirs() -> None:
    """Remove those of dead owners: a killed process can't do it itself."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(_PREFIX + "*-*-*"):
            owner, started, _ = path.name.removeprefix(_PREFIX).split("-", 2)
            status = path.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and owner.isdigit() and _start_time(int(owner)) != started:
                remove_slot_dir(str(path))


def _start_time(pid: int) -> str:
    """In clock ticks since the machine's start; tells a process from a later one with its number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "gone"
