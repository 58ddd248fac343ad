"""How a slot's process leaves the machine: namespaces, then a root of its own with read-only binds.

Runs once per slot, before any job. What a job can see is decided here and nowhere else: the
system's programs and libraries, the interpreter, five devices, and an empty place to write.
"""

from __future__ import annotations

import os
import stat

from sandbox import landlock, linux

INNER_UID = 1000  # what a job's uid reads as inside a user namespace; not 0, so that an exec regains nothing
JOB_MOUNT = "/job/tmp"
WORK_DIR = "/job/tmp/work"
SCI_DIR = "/sci"  # numpy and sympy, in slots of that flavour

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PROC_FLAGS = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
_NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)


def enter_namespaces(*, with_user: bool) -> None:
    """The caller's next child is pid 1 of the new pid namespace. Raises OSError where refused."""
    if with_user:
        uid, gid = os.getuid(), os.getgid()
        linux.unshare(linux.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{INNER_UID} {uid} 1")
        _write("/proc/self/gid_map", f"{INNER_UID} {gid} 1")
    linux.unshare(_NAMESPACES)


class OwnRoot:
    """The slot's own small read-only tree; each job's folder is a tmpfs of its own in it."""

    tmp_dir, work_dir, sci_dir = JOB_MOUNT, WORK_DIR, SCI_DIR

    def __init__(self, shown_dirs: list[str], package_dirs: list[str], sci_dirs: list[str], uid: int) -> None:
        self.proc = build_root(shown_dirs, package_dirs, sci_dirs)
        self._uid = uid

    def ruleset(self, abi: int) -> int:
        """Read and execute everywhere, write only below `/job` and to `/dev`."""
        rules = landlock.Rules(abi)
        rules.allow_reading("/")
        rules.allow_device("/dev")
        rules.allow_writing("/job")
        return rules.descriptor

    def begin_job(self, disk_mb: int, inodes: int) -> None:
        """A fresh tmpfs, with bytes and inodes capped."""
        options = f"size={disk_mb}m,nr_inodes={inodes + 2},mode=0700,uid={self._uid},gid={self._uid}"
        linux.mount("tmpfs", JOB_MOUNT, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)

    def end_job(self) -> None:
        linux.unmount(JOB_MOUNT, linux.MNT_DETACH)

    def is_full(self, pids: list[str]) -> bool:
        return False  # the tmpfs itself says so to the job


def build_root(shown_dirs: list[str], package_dirs: list[str], sci_dirs: list[str]) -> int:
    """Pivot onto a small read-only tree, without what lies in `package_dirs`, and let go of the old one.

    Returns a descriptor of a writable `/proc` that no path leads to, or -1 where there is no `/proc`.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,nr_inodes=1024,mode=0755")
    os.mkdir("/tmp/old", 0o700)
    linux.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    for path in [*_SYSTEM, *shown_dirs]:
        _expose(path)
    for path in package_dirs:
        _hide(path)
    for path in sci_dirs:
        _expose(path, at=f"{SCI_DIR}/{os.path.basename(path)}")
    _make_devices()
    for directory in ("/job", JOB_MOUNT, "/proc"):
        os.makedirs(directory, 0o755, exist_ok=True)
    if not os.path.lexists("/tmp"):  # it does where the interpreter itself lies below /tmp
        os.symlink(JOB_MOUNT, "/tmp")
    _write("/etc/passwd", f"job:x:{INNER_UID}:{INNER_UID}::{WORK_DIR}:/bin/sh\n")
    proc = _mount_proc()
    linux.unmount("/old", linux.MNT_DETACH)
    os.rmdir("/old")
    linux.restrict_mount("/", linux.MOUNT_ATTR_RDONLY, recursive=False)
    return proc


def _expose(path: str, at: str = "") -> None:
    """Show one path of the old root, read-only, at the same place in the new one or `at` another."""
    source, path = "/old" + path, at or path
    if not os.path.lexists(source) or os.path.lexists(path):
        return
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), path)
        return
    if stat.S_ISDIR(mode):
        os.mkdir(path, 0o755)
    else:
        _write(path, "")
    linux.mount(source, path, None, linux.MS_BIND | linux.MS_REC)
    attributes = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV
    linux.restrict_mount(path, attributes, recursive=True)


def _hide(path: str) -> None:
    if os.path.isdir(path):
        linux.mount("tmpfs", path, "tmpfs", linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV, "size=4k,mode=0555")


def _make_devices() -> None:
    os.mkdir("/dev", 0o755)
    for name in _DEVICES:
        _write(f"/dev/{name}", "")
        linux.mount(f"/old/dev/{name}", f"/dev/{name}", None, linux.MS_BIND)
        # A device can be written to all the same, but its times can't be set, which are the machine's.
        linux.restrict_mount(f"/dev/{name}", linux.MOUNT_ATTR_RDONLY, recursive=False)
    os.symlink("/proc/self/fd", "/dev/fd")
    os.symlink(JOB_MOUNT, "/dev/shm")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")


def _mount_proc() -> int:
    """Processes only: `subset=pid` leaves out /proc/sys, so there is no core_pattern to write.

    Jobs see the upper of two, without processes that are not theirs to look into. The lower one shows
    the slot also those that hide by not being dumpable.
    """
    try:
        linux.mount("proc", "/proc", "proc", _PROC_FLAGS, "subset=pid")
        beneath = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        linux.mount("proc", "/proc", "proc", _PROC_FLAGS, "subset=pid,hidepid=2")
    except OSError:  # a container that masks parts of /proc forbids a new one; a job can live without
        return -1
    linux.restrict_mount("/proc", linux.MOUNT_ATTR_RDONLY, recursive=False)
    return beneath


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
