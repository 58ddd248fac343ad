"""The system calls a job may not make, as a classic BPF filter built by hand.

A deny list on top of namespaces, Landlock and an unprivileged uid: it closes kernel surface that
no test program needs and objects that outlive a process (SysV shared memory, keys, message
queues). Calls that could reach another process by pid are allowed only on the caller itself.
"""

from __future__ import annotations

import ctypes
import struct

from sandbox import linux

EPERM, EACCES, ENOSYS = 1, 13, 38

_NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWCGROUP
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUSER
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
)
_AF_UNIX = 1

# name: (x86_64, aarch64); None where the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "personality": (135, 92),
    "ustat": (136, None),
    "vhangup": (153, 58),
    "modify_ldt": (154, None),
    "pivot_root": (155, 41),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "chroot": (161, 51),
    "lookup_dcookie": (212, 18),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "unshare": (272, 97),
    "setns": (308, 268),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "memfd_create": (319, 279),  # memory that neither the disk cap nor an address-space limit would count
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
    "memfd_secret": (447, 447),
    "process_mrelease": (448, 448),
}

# What only a root of its own makes harmless: without one, a file that may not be opened may still be
# changed by its path, a process group left, and a socket in the file system reached.
_DENIED_ON_A_SHARED_ROOT: dict[str, tuple[int | None, int | None]] = {
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "truncate": (76, 45),
    "inotify_add_watch": (254, 27),
    "flock": (73, 32),
    "file_setattr": (469, 469),
}

# These do nothing there and say that they did: `touch` and `tar` can't do without, and set no more than a time.
_IDLE_ON_A_SHARED_ROOT: dict[str, tuple[int | None, int | None]] = {
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}

# (x86_64, aarch64), index of the argument that holds a pid; 0 means the caller.
_ONLY_ON_SELF: dict[str, tuple[int, int, int]] = {
    "prlimit64": (302, 261, 0),
    "sched_setaffinity": (203, 122, 0),
    "sched_setscheduler": (144, 119, 0),
    "sched_setparam": (142, 118, 0),
    "sched_setattr": (314, 274, 0),
    "setpriority": (141, 140, 1),
    "ioprio_set": (251, 30, 1),
}
_CLONE = (56, 220)
_CLONE3 = 435
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_IOCTL = (16, 29)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _argument(index: int) -> bytes:
    return _instruction(_LOAD, 16 + 8 * index)  # low half, on little-endian machines


def _deny(number: int, errno: int) -> list[bytes]:
    return [_instruction(_JEQ, number, 0, 1), _instruction(_RETURN, _ERRNO | errno)]


def _guard(number: int, check: list[bytes]) -> list[bytes]:
    """Run `check`, which must return on every path, when the call is `number`."""
    return [_instruction(_JEQ, number, 0, len(check)), *check]


def build_filter(machine: str, *, shares_root: bool = False) -> bytes:
    """The filter as packed `sock_filter` records. Raises KeyError for an architecture without a table."""
    column = {"x86_64": 0, "aarch64": 1}[machine]
    allow, refuse = _instruction(_RETURN, _ALLOW), _instruction(_RETURN, _ERRNO | EPERM)
    program = [
        _instruction(_LOAD, 4),
        _instruction(_JEQ, _AUDIT_ARCH[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, 0),
    ]
    if machine == "x86_64":
        program += [_instruction(_JGE, _X32_BIT, 0, 1), _instruction(_RETURN, _KILL)]
    program += _guard(_CLONE[column], [_argument(0), _instruction(_JSET, _NAMESPACES, 0, 1), refuse, allow])
    # The flags of clone3 lie in memory, which a filter can't read; ENOSYS makes libc fall back to clone.
    program += _deny(_CLONE3, ENOSYS)
    if shares_root:
        program += _deny(_SOCKET[column], EACCES)
        for table, errno in ((_DENIED_ON_A_SHARED_ROOT, EPERM), (_IDLE_ON_A_SHARED_ROOT, 0)):
            for either in table.values():
                if (call := either[column]) is not None:
                    program += _deny(call, errno)
    for number in (_SOCKET[column], _SOCKETPAIR[column]):
        unreachable = _instruction(_RETURN, _ERRNO | EACCES)
        program += _guard(number, [_argument(0), _instruction(_JEQ, _AF_UNIX, 1, 0), unreachable, allow])
    forged = [_argument(1), _instruction(_JEQ, _TIOCSTI, 1, 0), _instruction(_JEQ, _TIOCLINUX, 0, 1), refuse, allow]
    program += _guard(_IOCTL[column], forged)
    for row in _ONLY_ON_SELF.values():
        program += _guard(row[column], [_argument(row[2]), _instruction(_JEQ, 0, 1, 0), refuse, allow])
    for numbers in _DENIED.values():
        number_here = numbers[column]
        if number_here is not None:
            program += _deny(number_here, EPERM)
    return b"".join([*program, allow])


class Filter:
    """A filter built once in a slot and put on every job with one call."""

    def __init__(self, machine: str = linux.MACHINE, *, shares_root: bool = False) -> None:
        code = build_filter(machine, shares_root=shares_root)
        self._code = ctypes.create_string_buffer(code, len(code))
        self._header = ctypes.create_string_buffer(
            struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(self._code)), 16
        )

    def apply(self) -> None:
        """Bind the calling process and all its children for good. Needs no_new_privs."""
        header = ctypes.c_void_p(ctypes.addressof(self._header))
        linux.prctl(linux.PR_SET_SECCOMP, 2, header, what="seccomp filter")
