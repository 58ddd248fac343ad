"""The few Linux calls that Python's `os` lacks, by ctypes, each raising OSError with its name.

Used only inside a slot's own process, so it imports nothing beyond the standard library.
"""

from __future__ import annotations

import ctypes
import os
import platform

MACHINE = platform.machine()

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEWTIME = 0x00000080

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_HUGE, _MADV_COLLAPSE = 2 << 20, 25

# Numbers above 424 are the same on every architecture.
_CLOSE_RANGE, _MOUNT_SETATTR = 436, 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(MACHINE, -1)
_CAPSET = {"x86_64": 126, "aarch64": 91}.get(MACHINE, -1)
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(number: int, *arguments: object, what: str) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), what)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def prctl(option: int, *arguments: int | ctypes.c_void_p, what: str = "prctl") -> int:
    padded = [a if isinstance(a, ctypes.c_void_p) else ctypes.c_ulong(a) for a in arguments]
    padded += [ctypes.c_ulong(0)] * (4 - len(padded))
    return _checked(_libc.prctl(ctypes.c_int(option), *padded), what)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), options.encode()
    )
    _checked(result, f"mount {target}")


def unmount(target: str, flags: int = 0) -> None:
    _checked(_libc.umount2(target.encode(), ctypes.c_int(flags)), f"umount {target}")


def restrict_mount(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes to a mount, and to all below it: unlike a remount it never clears a locked flag."""
    request = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    syscall(
        _MOUNT_SETATTR,
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(flags),
        request,
        ctypes.c_size_t(ctypes.sizeof(request)),
        what=f"mount_setattr {target}",
    )


def pivot_root(new: str, put_old: str) -> None:
    syscall(_PIVOT_ROOT, new.encode(), put_old.encode(), what="pivot_root")


def collapse(start: int, end: int) -> None:
    """Put this span of memory into huge pages, as far as it can be: since Linux 6.1, else nothing happens."""
    for address in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
        _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE), ctypes.c_int(_MADV_COLLAPSE))


def close_from(first: int) -> None:
    syscall(_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0), what="close_range")


def drop_bounding_capabilities() -> None:
    """After this no exec can bring a capability back; the current ones stay."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # past the last capability this kernel knows
            return


def drop_capabilities() -> None:
    """Give up every capability of this process, inheritable and ambient ones too."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    syscall(_CAPSET, header, none, what="capset")


def set_file_system_ids(uid: int) -> None:
    """Look at files, and at other processes, as this user and group of the same number; 0 for oneself again."""
    if os.geteuid() == 0:
        _libc.setfsgid(uid)
        _libc.setfsuid(uid)
