"""A job's place where namespaces and mounts are refused: the machine's own root, seen through Landlock.

Inside an ordinary container or pod nothing can be mounted, so a rule set names what may be read (system,
interpreter, a few devices) and the one folder that may be written. Each job gets that folder anew.
Standard library only, as all of a slot's side.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator

from sandbox import landlock, linux

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/openssl.cnf"),  # node won't start without the last
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class SharedRoot:
    """`slot_dir` is the slot's own folder, made and removed by its parent."""

    def __init__(self, slot_dir: str, uid: int) -> None:
        self.tmp_dir = f"{slot_dir}/tmp"
        self.work_dir = f"{slot_dir}/tmp/work"
        self.sci_dir = f"{slot_dir}/sci"
        self._uid = uid
        self._disk_mb = self._inodes = 0
        self._make()

    def link_packages(self, sci_dirs: list[str]) -> None:
        """One folder from which these packages, and no others, are imported."""
        os.mkdir(self.sci_dir, 0o755)
        for path in sci_dirs:
            os.symlink(path, f"{self.sci_dir}/{os.path.basename(path)}")

    def ruleset(self, abi: int, shown: list[str], hidden: list[str], sci_dirs: list[str]) -> int:
        rules = landlock.Rules(abi)
        for path in [*_SYSTEM, *shown]:
            if os.path.exists(path):
                _allow_but(rules, os.path.realpath(path), [*map(os.path.realpath, hidden)])
        for path in [*sci_dirs, *filter(os.path.isdir, [self.sci_dir])]:
            rules.allow_reading(path)
        for path in filter(os.path.exists, _DEVICES):
            rules.allow_device(path)
        rules.allow_writing(self.tmp_dir)
        return rules.descriptor

    def begin_job(self, disk_mb: int, inodes: int) -> None:
        self._disk_mb, self._inodes = disk_mb, inodes

    def end_job(self) -> None:
        """Everything that the job left goes, and the folder that rules name stays the same."""
        empty_folder(self.tmp_dir)

    def is_full(self, pids: list[str]) -> bool:
        """Whether the job's files take more than it may; looked at now and then, for want of a file system.

        `pids`: its processes, which may hold files that no folder names any more.
        """
        size = count = 0
        try:
            for status in itertools.chain(_every_entry(self.tmp_dir), _unlinked_files(pids, self._uid)):
                size, count = size + status.st_blocks * 512, count + 1
                if size > self._disk_mb << 20 or count > self._inodes + 2:
                    return True
        except _HiddenFolder:
            return True
        return False

    def _make(self) -> None:
        os.mkdir(self.tmp_dir, 0o700)
        if self._uid:
            os.chown(self.tmp_dir, self._uid, self._uid)


def _allow_but(rules: landlock.Rules, path: str, hidden: list[str]) -> None:
    """Rights can't be taken away below a folder, so beside something hidden each neighbour gets its own."""
    if path in hidden:
        return
    if not any(inner.startswith(f"{path}/") for inner in hidden):
        rules.allow_reading(path)
        return
    rules.allow_listing(path)
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(path)):
            below = f"{path}/{entry}"
            if not os.path.islink(below):
                _allow_but(rules, below, hidden)


class _HiddenFolder(Exception):
    """One that can't be looked into, or lies deeper than any path reaches."""


def _every_entry(folder: str) -> Iterator[os.stat_result]:
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield status
                        if stat.S_ISDIR(status.st_mode):
                            pending.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):  # gone since it was seen
            continue
        except OSError as error:
            raise _HiddenFolder from error


def _unlinked_files(pids: list[str], uid: int) -> Iterator[os.stat_result]:
    """`uid`: the job's own, or 0 where it has ours; only as that one may its descriptors be looked at."""
    seen = set()
    linux.set_file_system_ids(uid)
    try:
        for path in [path for pid in pids for path in _open_files(pid)]:
            with contextlib.suppress(OSError):
                status = os.stat(path)
                is_unlinked = stat.S_ISREG(status.st_mode) and not status.st_nlink
                if is_unlinked and (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield status
    finally:
        linux.set_file_system_ids(0)


def _open_files(pid: str) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def empty_folder(folder: str) -> None:
    """Remove all that is in it, however deep: each folder found is first moved up, so no path grows long.

    Nobody else may be writing there. Follows no link.
    """
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    prefix = f".moved-{os.urandom(8).hex()}"  # a name that no job could have foreseen
    try:
        number = 0
        while True:
            names = os.listdir(top)
            if not names:
                return
            for name in names:
                number = _remove(top, name, prefix, number)
    finally:
        os.close(top)


def _remove(top: int, name: str, prefix: str, number: int) -> int:
    status = os.stat(name, dir_fd=top, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=top)
        return number
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for below in os.listdir(inner):
            if stat.S_ISDIR(os.stat(below, dir_fd=inner, follow_symlinks=False).st_mode):
                os.chmod(below, 0o700, dir_fd=inner)
                os.rename(below, f"{prefix}-{number}", src_dir_fd=inner, dst_dir_fd=top)
                number += 1
            else:
                os.unlink(below, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return number
