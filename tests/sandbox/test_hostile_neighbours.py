"""What a program might do to processes, files and sockets that belong to its own uid, or to the whole machine.

Where jobs have no uid and no root of their own these are the harness's: paths are there, and so is its pid.
"""

from __future__ import annotations

import ctypes
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import Limits, Program
from sandbox.backend import Backend
from tests.sandbox.hostile import BACKENDS, outcome_of, system_call

pytestmark = [pytest.mark.backends(*BACKENDS), pytest.mark.usefixtures("nothing_is_left")]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Open to every user, as /run and /tmp are."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.parametrize("signal", [0, 9, 19])
def test_the_parent_can_not_be_signalled(run, root, signal):
    expected = "done" if root == "container" else "PermissionError 1"  # there it is pid 1, which takes none
    assert outcome_of(run, f"os.kill(os.getppid(), {signal})") == expected
    assert outcome_of(run, f"os.kill({os.getpid()}, {signal})") in ("PermissionError 1", "ProcessLookupError 3")


def test_priority_of_the_harness_and_of_later_jobs_stays(run):
    """As who = 0 both calls mean every process of the caller's uid."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert outcome_of(run, "os.setpriority(os.PRIO_USER, 0, 7)") == "PermissionError 1"
    if os.uname().machine == "x86_64":
        assert system_call(run, "libc.syscall(251, 3, 0, 3 << 13)") == "EPERM"
    assert outcome_of(run, "os.nice(3)") == "done"
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert int(run("import os; print(os.nice(0))").stdout) == before


@pytest.mark.parametrize(
    "how", ["a.sendto(b'x', {0!r})", "a.connect({0!r}); a.send(b'x')", "a.sendmsg([b'x'], [], 0, {0!r})"]
)
@pytest.mark.parametrize("kind", ["SOCK_DGRAM", "SOCK_RAW", "SOCK_STREAM", "SOCK_SEQPACKET"])
def test_a_pair_of_sockets_reaches_no_socket_outside(run, folder, how, kind):
    """Landlock does not cover sockets in the file system, and a datagram pair can be pointed at any of them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(folder / "log"))
        os.chmod(folder / "log", 0o777)
        setup = f"a, b = socket.socketpair(socket.AF_UNIX, socket.{kind})"
        assert run(f"import socket\n{setup}\n{how.format(str(folder / 'log'))}").status == "finished"
        with pytest.raises(BlockingIOError):
            log.recv(16, socket.MSG_DONTWAIT)


def test_a_pair_of_streams_works(run):
    code = "import socket\na, b = socket.socketpair()\na.sendall(b'x')\nprint(b.recv(1))"
    assert run(code).stdout == b"b'x'\n"


def test_files_that_may_be_read_can_not_be_changed_otherwise(run, folder):
    """By what needs no more than ownership: flags of the inode, fs-verity, leases, notices."""
    reading = "f = os.open('/usr/bin/env', os.O_RDONLY); import fcntl, struct"
    for request in (0x40086602, 0x401C5820, 0x40806685, 0x800C6613):
        answer = outcome_of(run, f"fcntl.ioctl(f, {request}, bytes(128))", reading)
        assert answer.startswith(("OSError", "PermissionError")), answer
    assert outcome_of(run, "fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)", reading).startswith("PermissionError")
    mine = folder / "mine"
    mine.write_text("as it was")
    before = mine.stat()
    for change in ("os.chmod({0!r}, 0)", "os.utime({0!r})", "os.truncate({0!r}, 0)", "os.chown({0!r}, -1, -1)"):
        outcome_of(run, change.format(str(mine)))
    for change in (
        "os.rename({0!r}, 'x')",
        "os.link({0!r}, 'x')",
        "os.unlink({0!r})",
        "os.setxattr({0!r}, 'user.x', b'')",
    ):
        assert outcome_of(run, change.format(str(mine))) != "done"
    after = mine.stat()
    assert mine.read_text() == "as it was"
    assert (after.st_mode, after.st_uid, after.st_mtime_ns, after.st_ctime_ns, after.st_nlink) == (
        before.st_mode,
        before.st_uid,
        before.st_mtime_ns,
        before.st_ctime_ns,
        before.st_nlink,
    )


def test_counts_of_the_whole_machine_or_uid_are_not_used_up(run):
    if os.uname().machine != "x86_64":
        pytest.skip("numbers of x86_64")
    assert system_call(run, "libc.syscall(206, 60000, ctypes.byref(ctypes.c_ulong(0)))") == "EPERM"  # io_setup
    timers = (
        "import ctypes\nlibc, n, timer = ctypes.CDLL(None), 0, ctypes.c_void_p()\n"
        "while n < 5000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0: n += 1\nprint(n)"
    )
    assert int(run(timers).stdout) <= 1024
    assert ctypes.CDLL(None).timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0


def test_writing_out_the_whole_machine_takes_no_time(run):
    assert run("import os\nfor _ in range(3000): os.sync()\nprint('did')").stdout == b"did\n"


GREEDY = {
    "many busy processes": "while os.fork() == 0: pass\nwhile True: pass",
    "busy processes in sessions of their own": "for _ in range(40):\n"
    "    if os.fork() == 0:\n        try: os.setsid()\n        except OSError: pass\n        break\nwhile True: pass",
    "fork bomb": "while True:\n    try: os.fork()\n    except OSError: pass",
    "forks and exits": "while True:\n    if os.fork() == 0: os._exit(0)\n    os.wait()",
    "memory thrown away": "while True: bytearray(48 << 20)",
    "disk written over and over": "while True: open('f', 'wb').write(bytes(3 << 20))",
}
WORK = "import time\nbegan = time.perf_counter()\nfor _ in range(4_000_000): pass\nprint(time.perf_counter() - began)"


def _beside(box: Backend, code: str) -> float:
    """Seconds that a fixed piece of work takes while `code` runs in another slot."""
    limits = Limits(wall_s=20, processes=48, memory_mb=128, disk_mb=8)
    with box.open(Program(code=f"import os\nprint('go', flush=True)\n{code}", limits=limits)) as other:
        assert other.receive_line(10) == b"go"
        return float(box.run_sync(Program(code=WORK)).stdout)


@pytest.mark.parametrize("greed", GREEDY.values(), ids=GREEDY)
def test_a_neighbour_is_no_slower_beside_a_greedy_job_than_beside_a_busy_one(box, greed):
    if not box.guarantees().enforces("neighbours"):
        return  # and says so; what it costs there is the kernel's share by process
    pairs = [(_beside(box, "while True: pass"), _beside(box, greed)) for _ in range(3)]
    ratios = sorted(greedy / busy for busy, greedy in pairs)
    assert ratios[0] < 2.5, pairs


LEAVING = """
import array, os, socket
files = []
for n in range(5):
    f = os.open(f"f{n}", os.O_RDWR | os.O_CREAT); os.write(f, bytes(1 << 20)); files.append(f)
a, b = socket.socketpair()
try:
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files + [a.fileno(), b.fileno()]))])
except OSError as e:
    print(type(e).__name__)
else:
    print("sent")
"""


def test_no_file_outlives_its_job_in_a_circle_of_sockets(run):
    """Descriptors in flight that hold each other are freed by the kernel when it pleases, with the job's disk."""
    assert run(LEAVING).stdout == b"PermissionError\n"


def test_nobody_is_seen_opening_files(run):
    assert system_call(run, "libc.inotify_init1(0)") == "EPERM"


def test_times_of_the_machines_devices_can_not_be_set(run):
    before = os.stat("/dev/null").st_mtime_ns
    outcome_of(run, "os.utime('/dev/null')")
    outcome_of(run, "os.utime('/dev/zero', (1, 1))")
    assert os.stat("/dev/null").st_mtime_ns == before
    assert outcome_of(run, "open('/dev/null', 'w').write('x')") == "done"


HIDING = """
import ctypes, os, time
hide = lambda: ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
hide()
for n in range(8):
    if not os.fork():
        hide(); {work}; print(n, flush=True); os._exit(0)
for n in range(8): os.wait()
"""


def test_memory_of_processes_that_hide_is_counted(run, box):
    execution = run(HIDING.format(work="x = bytearray(60 << 20); time.sleep(1.5)"), memory_mb=128)
    assert len(execution.stdout.split()) <= 2
    assert box.guarantees().enforces("memory") or execution.limit == "memory"


def test_cpu_of_processes_that_hide_is_counted(run):
    burn = "end = time.process_time() + 0.9\n        while time.process_time() < end: pass\n        0"
    execution = run(HIDING.format(work=burn), cpu_s=1, wall_s=20)
    assert (execution.status, execution.limit) == ("timeout", "cpu")
