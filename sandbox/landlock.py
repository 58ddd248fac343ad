"""Landlock: a second wall behind the read-only root, for files, TCP, signals and abstract sockets.

One rule set is made per slot and put on every job with one call. Rules name directories, and the
kernel walks up across mount points, so a rule on `/job` covers the tmpfs mounted below it later.
"""

from __future__ import annotations

import ctypes
import os

from sandbox import linux

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR

# How many file-system rights each ABI handles: 1 has 13, 2 adds REFER, 3 TRUNCATE, 5 IOCTL_DEV.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_NET_BIND_CONNECT = 3  # since ABI 4
_SCOPE_ABSTRACT_AND_SIGNAL = 3  # since ABI 6
_LOG_NOTHING = 5  # since ABI 7: a job could fill the machine's audit log with what it was denied


def abi() -> int:
    """The kernel's Landlock ABI, 0 where it has none or has it switched off."""
    try:
        return linux.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG), what="landlock")
    except OSError:
        return 0


class Rules:
    """A rule set in the making: all that it does not allow is denied. `descriptor` is what `restrict` takes."""

    def __init__(self, version: int) -> None:
        self._every_right = (1 << _RIGHTS.get(version, 16)) - 1
        attributes = (ctypes.c_uint64 * 3)(
            self._every_right,
            _NET_BIND_CONNECT if version >= 4 else 0,
            _SCOPE_ABSTRACT_AND_SIGNAL if version >= 6 else 0,
        )
        size = ctypes.c_size_t(8 if version < 4 else 16 if version < 6 else 24)
        self.descriptor = linux.syscall(_CREATE, attributes, size, ctypes.c_uint32(0), what="landlock ruleset")

    def allow_reading(self, path: str) -> None:
        self._allow(path, _READ if os.path.isdir(path) else _READ & ~_READ_DIR)

    def allow_listing(self, path: str) -> None:
        self._allow(path, _READ_DIR)

    def allow_device(self, path: str) -> None:
        """A device node, or a folder of them."""
        listing = _READ_DIR if os.path.isdir(path) else 0
        self._allow(path, _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV | listing)

    def allow_writing(self, path: str) -> None:
        self._allow(path, self._every_right)

    def _allow(self, path: str, rights: int) -> None:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = ctypes.create_string_buffer(12)  # packed: u64 rights, s32 descriptor
            allowed = rights & self._every_right
            ctypes.memmove(rule, allowed.to_bytes(8, "little") + descriptor.to_bytes(4, "little"), 12)
            arguments = (ctypes.c_int(self.descriptor), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
            linux.syscall(_ADD_RULE, *arguments, what=f"landlock rule {path}")
        finally:
            os.close(descriptor)


def restrict(ruleset: int) -> None:
    """Bind the calling process and all its children for good. Needs no_new_privs."""
    flags = ctypes.c_uint32(_LOG_NOTHING if abi() >= 7 else 0)
    linux.syscall(_RESTRICT, ctypes.c_int(ruleset), flags, what="landlock restrict")
