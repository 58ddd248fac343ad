"""Run a command where namespaces and mounts are refused, as in an ordinary container: `python refused.py UID CMD...`.

A filter answers EPERM to what Docker's default profile denies to a process without CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

from sandbox import linux, seccomp

_CALLS = {"unshare": (272, 97), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "setns": (308, 268)}


def refuse_namespaces() -> None:
    column = ("x86_64", "aarch64").index(platform.machine())
    program = [seccomp._instruction(seccomp._LOAD, 0)]
    for numbers in (*_CALLS.values(), (442, 442)):  # mount_setattr
        program += seccomp._deny(numbers[column], seccomp.EPERM)
    code = b"".join([*program, seccomp._instruction(seccomp._RETURN, seccomp._ALLOW)])
    kept = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(kept)), 16)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.prctl(linux.PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(header)))


if __name__ == "__main__":
    refuse_namespaces()
    if uid := int(sys.argv[1]):
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.execv(sys.argv[2], sys.argv[2:])
