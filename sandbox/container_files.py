"""A container's one writable place: what a job left there is opened without symlinks, then wiped.

Part of what runs inside: standard library only, for Python 3.8 and later.
"""

from __future__ import annotations

import os
import stat
import time

MOUNT = "/tmp"  # programs know it by this name
WORK = "/tmp/work"
SHM = "/dev/shm"
_MOST_PATH_BYTES = 1024
_WIPE_S = 5.0


def every_file() -> list[str]:
    found: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder or "."))
        except OSError:
            continue
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif entry.is_file(follow_symlinks=False) and len(os.fsencode(path)) <= _MOST_PATH_BYTES:
                found.append(path)
    return sorted(found)


def open_beneath(path: str) -> int:
    """A descriptor on the regular file, or -1. No symlink is followed on the way."""
    try:
        folder = os.open(WORK, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        *parents, name = path.split("/")
        for part in parents:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        os.close(folder)
    except OSError:
        return -1
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return -1


def write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def wipe(top: str) -> bool:
    """Empty a directory of anything, flattening deep trees instead of descending. False when not in time."""
    deadline = time.monotonic() + _WIPE_S
    moved = 0
    try:
        while True:
            names = os.listdir(top)
            if not names:
                return True
            for name in names:
                path = f"{top}/{name}"
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    os.unlink(path)
                    continue
                os.chmod(path, 0o700)
                for entry in os.listdir(path):
                    inner = f"{path}/{entry}"
                    if stat.S_ISDIR(os.lstat(inner).st_mode):
                        moved += 1
                        os.chmod(inner, 0o700)  # a directory that can't be written can't be moved either
                        os.rename(inner, f"{top}/.{moved}.{os.getpid()}.moved")
                    else:
                        os.unlink(inner)
                    if time.monotonic() > deadline:
                        return False
                os.rmdir(path)
    except OSError:
        return False
