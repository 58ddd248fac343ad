"""From pid 1's fork to a job in a sandbox container: what is limited first, what could no longer be done then last."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import struct
from typing import Any

from sandbox.container_files import MOUNT, WORK
from sandbox.container_wire import CHUNK

MOST_TIMERS = 256
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
_libc = ctypes.CDLL(None, use_errno=True)


def start_job(request: dict[str, Any], filter_code: Any) -> tuple[int, tuple[int, int, int], str]:
    """Its pid, our ends of its three streams, not blocking, and what went wrong before it was a program, or nothing."""
    stdin, feed = os.pipe()
    out, stdout = os.pipe()
    err, stderr = os.pipe()
    trouble, own = os.pipe()  # closed by the exec: no program has run while it is open
    child = os.fork()
    if not child:
        try:
            _become(request, filter_code, (stdin, stdout, stderr))
        except BaseException as error:
            os.write(own, repr(error).encode())
        os._exit(1)
    for descriptor in (stdin, stdout, stderr, own):
        os.close(descriptor)
    failure = os.read(trouble, CHUNK).decode()
    os.close(trouble)
    for descriptor in (feed, out, err):
        os.set_blocking(descriptor, False)
    return child, (feed, out, err), failure


def _become(request: dict[str, Any], filter_code: Any, streams: tuple[int, int, int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    prctl(PR_SET_DUMPABLE, 1)  # its own /proc entry is its own again
    with open("/proc/self/oom_score_adj", "w") as file:  # pid 1 shares the cgroup; the kernel's choice is the job
        file.write("1000")
    _set_limits(request)
    header = struct.pack("@HxxxxxxP", len(filter_code) // 8, ctypes.addressof(filter_code))
    kept = ctypes.create_string_buffer(header, 16)
    prctl(PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(kept)))
    environment = {key: value for key, value in os.environ.items() if key not in ("HOSTNAME", "HOME")}
    environment.update(HOME=WORK, TMPDIR=MOUNT, LANG="C.UTF-8", **request["environment"])
    command = request["command"]
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        missing = error.errno == errno.ENOENT
        os.write(2, f"{command[0]}: {'command not found' if missing else error.strerror}\n".encode())
        os._exit(127 if missing else 126)


def _set_limits(request: dict[str, Any]) -> None:
    cpu_s = -int(-request["cpu_s"] // 1)
    size = request["file_size_mb"] << 20
    wanted = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_FSIZE: (size, size),
        resource.RLIMIT_NPROC: (request["processes"] + 1,) * 2,  # pid 1 has the same uid
        resource.RLIMIT_CORE: (1, 1),  # 1, not 0: a core_pattern that pipes to a program ignores 0 and runs it
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_SIGPENDING: (MOST_TIMERS, MOST_TIMERS),
        resource.RLIMIT_NOFILE: (request["open_files"],) * 2,
    }
    if not request["has_memory_cgroup"]:
        wanted[resource.RLIMIT_AS] = (request["memory_mb"] << 20,) * 2
    for which, (soft, hard) in wanted.items():
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(which, (soft, hard))


def prctl(option: int, *arguments: Any) -> None:
    words = [a if isinstance(a, ctypes.c_void_p) else ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(ctypes.c_int(option), *words) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
