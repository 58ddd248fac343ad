"""The slot's side of bringing files back: open what was asked for, and hand over descriptors.

Runs after every process of the job is dead and before its tmpfs is dropped. Contents are never read
here; no symlink is followed and nothing but regular files beneath the work directory is opened.
Standard library only.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import socket
import stat
from collections.abc import Iterator

from sandbox import linux

EVERYTHING = "*"
MOST_PATH_BYTES = 1024
_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 2, 4, 8
_NOTHING_BUT_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def send_files(control: socket.socket, job: int, work_dir: str, paths: tuple[str, ...]) -> None:
    """One message for each file that is there: `file JOB PATH` and its descriptor."""
    try:
        root = os.open(work_dir, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for path in _every_file(work_dir) if paths == (EVERYTHING,) else map(os.fsencode, paths):
            with contextlib.suppress(OSError):
                _send_one(control, b"file %d " % job + path, _open_beneath(root, path))
    finally:
        os.close(root)


def _send_one(control: socket.socket, message: bytes, file: int) -> None:
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            control.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])
    finally:
        os.close(file)


def _open_beneath(root: int, path: bytes) -> int:
    how = (ctypes.c_uint64 * 3)(_NOTHING_BUT_READ, 0, _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
    arguments = (ctypes.c_int(root), ctypes.c_char_p(path), how, ctypes.c_size_t(ctypes.sizeof(how)))
    return linux.syscall(_OPENAT2, *arguments, what="openat2")


def _every_file(work_dir: str) -> Iterator[bytes]:
    """Relative paths, by a stack of our own: a hostile tree may be deeper than Python's."""
    pending = [b""]
    while pending:
        folder = pending.pop()
        with contextlib.suppress(OSError), os.scandir(os.path.join(os.fsencode(work_dir), folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                if len(path) > MOST_PATH_BYTES:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                else:
                    yield path
