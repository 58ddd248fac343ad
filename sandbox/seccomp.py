"""The system calls a job may not make, as a classic BPF filter built by hand.

A deny list on top of namespaces, Landlock and an unprivileged uid: it closes kernel surface that
no test program needs and objects that outlive a process (SysV shared memory, keys, message
queues). Calls that could reach another process by pid are allowed only on the caller itself.
"""

from __future__ import annotations

import ctypes
import struct

from sandbox import linux

EPERM, EACCES, ENOTTY, ENOSYS = 1, 13, 25, 38

_NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWCGROUP
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUSER
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
)
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET = 1, 1, 5

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
    "io_setup": (206, 0),  # from a count that the whole machine shares
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
    "memfd_secret": (447, 447),
    "process_mrelease": (448, 448),
    "open_tree_attr": (467, 467),
    # A file on its way between sockets is in nobody's list of open files, and in a circle outlives its job.
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "inotify_init": (253, None),  # sees what others open in folders that all see
    "inotify_init1": (294, 26),
}

# These do nothing and say that they did: what they would write out is everybody's.
_IDLE: dict[str, tuple[int | None, int | None]] = {"sync": (162, 81), "syncfs": (306, 267)}

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
    "flock": (73, 32),
    "file_setattr": (469, 469),
}

# Nor these there: `touch` and `tar` can't do without the first four, and set no more than a time; the work
# directory of the others is gone after the job, and the disk under it is everybody's.
_IDLE_ON_A_SHARED_ROOT: dict[str, tuple[int | None, int | None]] = {
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "sync_file_range": (277, 84),
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
# Whose first argument can mean everything of the caller's uid, the harness too.
_NOT_ON_A_UID = {"setpriority": (2,), "ioprio_set": (3,)}
_CLONE = (56, 220)
_CLONE3 = 435
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_IOCTL = (16, 29)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FCNTL, _F_SETLEASE, _F_NOTIFY = (72, 25), 1024, 1026
_PRCTL = (157, 167)
# open and openat, and which argument holds their flags; a file without a name (O_TMPFILE's own bit).
_OPENS = ((2, None, 1), (257, 56, 2))
_OPENAT2, _UNNAMED = 437, 0x400000
# Of a terminal's, a pipe's or any descriptor. All others can change a file that was opened to read: its
# flags, or that it can ever be written again (fs-verity).
_HARMLESS_IOCTLS = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A)

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD, _JEQ, _JGE, _JSET, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
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


def _allow_only(values: tuple[int, ...], errno: int) -> list[bytes]:
    """Allow the call when the loaded word is one of these."""
    allow = _instruction(_RETURN, _ALLOW)
    allowed = [part for value in values for part in (_instruction(_JEQ, value, 0, 1), allow)]
    return [*allowed, _instruction(_RETURN, _ERRNO | errno)]


def _refuse_only(values: tuple[int, ...]) -> list[bytes]:
    refuse = _instruction(_RETURN, _ERRNO | EPERM)
    refused = [part for value in values for part in (_instruction(_JEQ, value, 0, 1), refuse)]
    return [*refused, _instruction(_RETURN, _ALLOW)]


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
        program += _guards_on_a_shared_root(column)
    for number in (_SOCKET[column], _SOCKETPAIR[column]):
        program += _guard(number, [_argument(0), *_allow_only((_AF_UNIX,), EACCES)])
    program += _guard(_IOCTL[column], [_argument(1), *_refuse_only((_TIOCSTI, _TIOCLINUX))])
    program += _guard(_FCNTL[column], [_argument(1), *_refuse_only((_F_SETLEASE, _F_NOTIFY))])
    for name, row in _ONLY_ON_SELF.items():
        itself = [_argument(row[2]), _instruction(_JEQ, 0, 1, 0), refuse]
        program += _guard(row[column], [*itself, _argument(0), *_refuse_only(_NOT_ON_A_UID.get(name, ()))])
    for table, errno in ((_DENIED, EPERM), (_IDLE, 0)):
        program += _answer(table, column, errno)
    return b"".join([*program, allow])


def _answer(table: dict[str, tuple[int | None, int | None]], column: int, errno: int) -> list[bytes]:
    numbers = [row[column] for row in table.values()]
    return [part for number in numbers if number is not None for part in _deny(number, errno)]


def _guards_on_a_shared_root(column: int) -> list[bytes]:
    """These come first, and so go before what any job may do."""
    allow, refuse = _instruction(_RETURN, _ALLOW), _instruction(_RETURN, _ERRNO | EPERM)
    program = _deny(_SOCKET[column], EACCES)
    # A pair of datagram sockets can be pointed at any path, or name; a pair of streams stays what it is.
    of_unix = [_argument(0), _instruction(_JEQ, _AF_UNIX, 1, 0), _instruction(_RETURN, _ERRNO | EACCES)]
    kind = [_argument(1), _instruction(_AND, 0xF), *_allow_only((_SOCK_STREAM, _SOCK_SEQPACKET), EACCES)]
    program += _guard(_SOCKETPAIR[column], [*of_unix, *kind])
    program += _guard(_IOCTL[column], [_argument(1), *_allow_only(_HARMLESS_IOCTLS, ENOTTY)])
    # One that may not be dumped could not be watched.
    hiding = [_argument(0), _instruction(_JEQ, linux.PR_SET_DUMPABLE, 1, 0), allow]
    program += _guard(_PRCTL[column], [*hiding, _argument(1), *_allow_only((1,), EPERM)])
    # Neither a flag of open nor an entry of any folder would show such a file to who counts the disk.
    for *numbers, flags in _OPENS:
        if (number := numbers[column]) is not None:
            program += _guard(number, [_argument(flags), _instruction(_JSET, _UNNAMED, 0, 1), refuse, allow])
    program += _deny(_OPENAT2, ENOSYS)  # its flags lie in memory
    program += _answer(_DENIED_ON_A_SHARED_ROOT, column, EPERM)
    return program + _answer(_IDLE_ON_A_SHARED_ROOT, column, 0)


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
