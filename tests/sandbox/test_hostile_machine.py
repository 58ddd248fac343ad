"""Programs that reach for the machine around them: files, devices, sockets, the kernel's doors."""

from __future__ import annotations

import ast
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import Program
from sandbox.backend import Backend
from tests.sandbox.backends import Outside
from tests.sandbox.hostile import BACKENDS, denied, outcome_of, system_call

pytestmark = [pytest.mark.backends(*BACKENDS), pytest.mark.usefixtures("nothing_is_left")]


@pytest.fixture
def planted() -> Iterator[list[Path]]:
    """Files that every user of this machine may read, where programs look first."""
    folders = [tempfile.mkdtemp(dir=parent) for parent in ("/tmp", "/var/tmp") if os.access(parent, os.W_OK)]
    files = [Path(folder, "secret") for folder in folders]
    for file in files:
        file.parent.chmod(0o755)
        file.write_text("planted")
    yield files
    for file in files:
        file.unlink()
        file.parent.rmdir()


def test_a_file_that_everyone_may_read_is_not_read(run, planted):
    assert planted
    for file in planted:
        assert file.read_text() == "planted"
        reading = outcome_of(run, f"open({str(file)!r}).read()")
        assert reading in ("FileNotFoundError 2", "PermissionError 13")
        linked = outcome_of(run, "open('link').read()", f"os.symlink({str(file)!r}, 'link')")
        assert linked in ("FileNotFoundError 2", "PermissionError 13")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/root",
        "/home",
        "/etc/hostname",
        "/work",
        "/var",
        "/run/docker.sock",
        "/sys",
        "/old",
        "/proc/sys",
    ],
)
def test_the_machines_files_are_not_there(run, root, path):
    if root == "container" and path not in ("/work", "/run/docker.sock", "/old"):
        reading = outcome_of(run, f"open({path!r} + ('/x' if os.path.isdir({path!r}) else ''), 'a')")
        assert reading in denied(root, path)  # the image's own, and not to be written
    elif root == "shared":
        reading = f"(os.listdir if os.path.isdir({path!r}) else open)({path!r})"
        assert outcome_of(run, reading) in denied(root, path)
    else:
        looking = f"os.stat({path!r}) if {path!r} != '/root' else os.listdir('/root/.ssh')"
        assert outcome_of(run, looking) == "FileNotFoundError 2"


@pytest.mark.parametrize("path", ["/proc/self/root/var", "/proc/self/cwd/../../../../var"])
def test_a_magic_link_leads_nowhere_but_inside(run, root, path):
    expected = ("done",) if root == "container" and os.path.isdir("/var") else denied(root, "/var")
    assert outcome_of(run, f"os.listdir({path!r})") in (*expected, "FileNotFoundError 2")


@pytest.mark.parametrize("path", ["/x", "/usr/x", "/usr/bin/x", "/etc/x", "/dev/x", "/job/x", "/proc/x", "/etc/passwd"])
def test_nothing_can_be_written_outside_the_work_directory(run, path):
    assert outcome_of(run, f"open({path!r}, 'a')").split()[0] in ("PermissionError", "OSError", "FileNotFoundError")
    assert not Path("/usr/x").exists()


def test_core_pattern_can_not_even_be_opened(run, root):
    """bubblewrap started by root lets a job write it: code execution on the host (field notes, section 5)."""
    before = Path("/proc/sys/kernel/core_pattern").read_bytes()
    opened = outcome_of(run, "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)")
    assert opened in denied(root, "/proc/sys/kernel/core_pattern")
    assert Path("/proc/sys/kernel/core_pattern").read_bytes() == before


def test_no_setting_of_the_kernel_can_be_opened_to_write(run):
    code = """
import os
found, tried = [], 0
for top in ("/proc/sys", "/sys", "/proc/1", "/proc/self", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"):
    for folder, _, names in os.walk(top):
        for path in [f"{folder}/{name}" for name in names] if "/fd" not in folder else ():
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
            except OSError:
                continue
            found.append(path)
for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/proc/timer_list", "/dev/mem"):
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        continue
    if os.stat(path).st_rdev != os.stat("/dev/null").st_rdev:  # what a container puts over them
        found.append(path)
print(sorted(set(name.rpartition("/")[2] for name in found)))
"""
    execution = run(code, wall_s=30, cpu_s=30)
    assert execution.status == "finished"
    # A process's own entries, which change nothing but itself.
    own = {
        "oom_adj",
        "oom_score_adj",
        "coredump_filter",
        "comm",
        "clear_refs",
        "autogroup",
        "sched",
        "mem",
        "timerslack_ns",
    }
    own |= {"current", "exec", "fscreate", "keycreate", "sockcreate", "prev", "make-it-fail", "fail-nth", "attr"}
    own |= {"uid_map", "gid_map", "projid_map", "setgroups", "timens_offsets", "loginuid", "latency"}
    assert set(ast.literal_eval(execution.stdout.decode())) <= own


def test_the_job_has_no_capability_and_a_real_uid_that_is_not_root(box: Backend, tested: Outside, root):
    code = "print(flush=True); input()"
    with box.open(Program(code=code)) as job:
        assert job.receive_line(10) == b""
        (pid,) = tested.jobs()
        lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    fields = {words[0]: words[1:] for words in lines if len(words) > 1}
    # Who isn't root can't empty the bounding set, and with no_new_privs it gives nothing.
    kept = {"CapBnd:"} if root == "shared" and os.geteuid() else set()
    assert {name for name in fields if name.startswith("Cap") and int(fields[name][0], 16)} == kept
    assert (fields["NoNewPrivs:"], fields["Seccomp:"]) == (["1"], ["2"])
    assert len(set(fields["Uid:"])) == 1
    assert "0" not in fields["Uid:"]


def test_no_network_of_any_family(run):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert outcome_of(run, f"socket.create_connection(('127.0.0.1', {port}), 2)") == "PermissionError 13"
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    for family in ("AF_INET", "AF_INET6", "AF_PACKET", "AF_NETLINK", "AF_VSOCK", "AF_ALG"):
        assert outcome_of(run, f"socket.socket(socket.{family}, socket.SOCK_RAW)") == "PermissionError 13"
    assert outcome_of(run, "socket.getaddrinfo('example.org', 80)").startswith("gaierror")


def test_abstract_unix_sockets_of_the_machine_are_out_of_reach(run):
    name = f"\0veriward-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        answer = outcome_of(run, f"socket.socket(socket.AF_UNIX).connect({name!r})")
    assert answer in ("ConnectionRefusedError 111", "PermissionError 1", "PermissionError 13")


@pytest.mark.parametrize(
    "call",
    [
        "libc.ptrace(16, 1, 0, 0)",
        "libc.ptrace(0, 0, 0, 0)",
        "libc.mount(b'none', b'/job/tmp', b'tmpfs', 0, None)",
        "libc.umount2(b'/job/tmp', 2)",
        "libc.unshare(0x10000000)",
        "libc.unshare(0x20000)",
        "libc.setns(0, 0)",
        "libc.chroot(b'.')",
        "libc.shmget(0, 1 << 30, 0o1600)",
        "libc.semget(0, 1, 0o1600)",
        "libc.msgget(0, 0o1600)",
        "libc.memfd_create(b'x', 0)",
        "libc.personality(0x40000)",
        "libc.ioctl(0, 0x5412, b'x')",
        "libc.reboot(0)",
        "libc.sethostname(b'x', 1)",
        "libc.setrlimit(7, (ctypes.c_ulong * 2)(1 << 20, 1 << 20))",
        "libc.mlockall(3)",
    ],
)
def test_dangerous_calls_are_refused(run, call):
    # ENOTTY: an ioctl that may not be asked for at all; ENOMEM: more locked memory than none.
    assert system_call(run, call) in ("EPERM", "ENOTTY", "ENOMEM")


# x86_64 numbers, and arguments that would mean something.
_CALLS = {
    "clone into a user namespace": "56, 0x10000011, 0, 0, 0, 0",
    "pivot_root": "155, b'.', b'.'",
    "iopl": "172, 3",
    "ioperm": "173, 0x70, 1, 1",
    "init_module": "175, 0, 0, b''",
    "finit_module": "313, 0, b'', 0",
    "delete_module": "176, b'x', 0",
    "kexec_load": "246, 0, 0, 0, 0",
    "kexec_file_load": "320, 0, 0, 0, 0, 0",
    "swapon": "167, b'x', 0",
    "swapoff": "168, b'x'",
    "acct": "163, 0",
    "settimeofday": "164, 0, 0",
    "clock_settime": "227, 0, 0",
    "clock_adjtime": "305, 0, 0",
    "syslog": "103, 2, 0, 0",
    "vhangup": "153",
    "quotactl": "179, 0, 0, 0, 0",
    "add_key": "248, b'user', b'x', b'y', 1, -3",
    "request_key": "249, b'user', b'x', 0, -3",
    "keyctl": "250, 0, -3, 0",
    "migrate_pages": "256, 1, 8, 0, 0",
    "move_pages": "279, 1, 0, 0, 0, 0, 0",
    "mq_open": "240, b'q', 66, 384, 0",
    "perf_event_open": "298, 0, 0, -1, -1, 0",
    "fanotify_init": "300, 0, 0",
    "name_to_handle_at": "303, -100, b'/', 0, 0, 0",
    "open_by_handle_at": "304, 0, 0, 0",
    "process_vm_readv": "310, 1, 0, 0, 0, 0, 0",
    "process_vm_writev": "311, 1, 0, 0, 0, 0, 0",
    "kcmp": "312, 1, 1, 0, 0, 0",
    "bpf": "321, 0, 0, 0",
    "userfaultfd": "323, 0",
    "pidfd_send_signal": "424, 0, 0, 0, 0",
    "io_uring_setup": "425, 8, 0",
    "io_uring_enter": "426, 0, 0, 0, 0, 0, 0",
    "io_uring_register": "427, 0, 0, 0, 0",
    "open_tree": "428, -100, b'/', 0",
    "move_mount": "429, -100, b'/', -100, b'/', 0",
    "fsopen": "430, b'tmpfs', 0",
    "fsconfig": "431, 0, 0, 0, 0, 0",
    "fsmount": "432, 0, 0, 0",
    "fspick": "433, -100, b'/', 0",
    "pidfd_getfd": "438, 0, 0, 0",
    "process_madvise": "440, 0, 0, 0, 0, 0",
    "mount_setattr": "442, -100, b'/', 0, 0, 0",
    "memfd_secret": "447, 0",
    "process_mrelease": "448, 0, 0",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86_64")
@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
def test_dangerous_system_calls_are_refused(run, call):
    assert system_call(run, f"libc.syscall({call})") in ("EPERM", "ENOSYS")


def test_the_job_can_not_become_root(run):
    assert system_call(run, "libc.setuid(0)") in ("EPERM", "EINVAL")  # EINVAL: its user namespace has no uid 0


def test_clone3_is_not_there_so_namespaces_can_not_be_asked_for_in_memory(run):
    assert system_call(run, "libc.syscall(435, 0, 0)") == "ENOSYS"


def test_other_architectures_calls_kill_the_caller(run):
    """The 32-bit entry and the x32 numbers would pass a filter made of 64-bit numbers."""
    if os.uname().machine != "x86_64":
        pytest.skip("x86_64 only")
    assert run("import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)").signal == 31


def test_a_suid_program_gains_nothing(run):
    code = "import subprocess\ndone = subprocess.run(['/bin/su', '-c', 'id'], capture_output=True, stdin=-3)\n"
    code += "print(done.returncode != 0)"
    assert run(code).stdout == b"True\n"


def test_there_is_no_terminal_to_inject_into(run, root):
    assert outcome_of(run, "os.open('/dev/tty', os.O_RDWR)") in denied(root, "/dev/tty")


def test_devices_can_not_be_made(run):
    assert outcome_of(run, "os.mknod('d', 0o20666, os.makedev(1, 1))") == "PermissionError 1"


def test_a_second_job_finds_nothing_of_the_first(start):
    with start(slots=1) as one:
        one.box.run_sync(Program(code="open('a', 'w').write('x'); open('../b', 'w').write('x')"))
        listing = one.box.run_sync(Program(code="import os; print(os.listdir('.'), os.listdir('..'))"))
    assert listing.stdout == b"['main.py'] ['work']\n"
