"""Slots that are killed, parents that are killed, forks: exactly one result, and nothing left behind."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandbox import Limits, Program, Sandbox, default_sandbox
from sandbox import local as local_module
from sandbox.errors import ConfigError, VeriwardError
from sandbox.slot import SlotLost
from tests.sandbox.conftest import descendants, jobs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def needs_a_sandbox(box: Sandbox) -> None:
    """Skips where this machine can't confine."""


def below(pid: int) -> set[int]:
    return {process.pid for process in descendants(pid)}


def is_slot(pid: int) -> bool:
    return b"sandbox.zygote" in Path("/proc", str(pid), "cmdline").read_bytes()


def gone(pids: set[int]) -> bool:
    """Wait, within reason, until none of these processes exists: the kernel ends them a moment after."""
    deadline = time.monotonic() + 10
    while any(Path("/proc", str(pid), "exe").is_symlink() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def kill_every_slot(sandbox: Sandbox) -> None:
    for slot in list(sandbox._all):
        slot.kill()


def test_an_idle_slot_that_died_is_replaced_without_the_caller_noticing():
    with Sandbox(slots=1) as one:
        one.run_sync(Program(code="pass"))
        kill_every_slot(one)
        assert one.run_sync(Program(code="print(1)")).stdout == b"1\n"


def test_a_run_whose_slot_dies_is_done_again_on_a_new_one():
    with Sandbox(slots=1) as one:
        killer = threading.Timer(0.4, kill_every_slot, [one])
        killer.start()
        execution = one.run_sync(Program(code="import time; time.sleep(0.8); print('done')"))
        killer.join()
    assert (execution.status, execution.stdout) == ("finished", b"done\n")


def test_a_program_that_loses_its_slot_twice_where_a_good_one_runs_is_killed_not_unavailable():
    """Else a policy could learn to break its judge instead of answering."""
    with Sandbox(slots=1) as one:
        over = threading.Event()

        def keep_killing() -> None:
            losses = 0
            while not over.is_set() and losses < 2:
                for slot in list(one._all):
                    if slot.jobs_started:
                        slot.kill()
                        losses += 1
                        while slot in one._all and not over.is_set():
                            time.sleep(0.005)

        killer = threading.Thread(target=keep_killing)
        killer.start()
        execution = one.run_sync(Program(code="import time; time.sleep(30)", limits=Limits(wall_s=60)))
        over.set()
        killer.join()
    assert execution.status == "killed"


def test_unavailable_when_no_slot_comes_up(monkeypatch):
    def no_slot(name: str, flavour: str) -> None:
        raise SlotLost("the machine is full")

    with Sandbox(slots=1) as one:
        monkeypatch.setattr(local_module, "Slot", no_slot)
        execution = one.run_sync(Program(code="print(1)"))
    assert execution.status == "unavailable"
    assert "the machine is full" in execution.error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's slots change their uid")
def test_a_job_that_could_not_be_confined_has_no_result(monkeypatch):
    """The steps between fork and program are the sandbox's: their failure is never an exit code."""
    monkeypatch.setattr("sandbox.slot._slot_uid", lambda pid: 2**32 - 1)  # to the kernel: leave as it is
    with Sandbox(slots=1) as one:
        execution = one.run_sync(Program(code="print(1)"))
    assert execution.status == "unavailable"
    assert (execution.exit_code, execution.stdout) == (None, b"")


def test_a_program_that_can_not_be_laid_out_has_no_exit_code():
    """`exit_code=1` would say that the program ran, and show it the slot's own traceback."""
    too_big = Program.model_construct(code="print(1)", files={"f": bytes(2 << 20)}, limits=Limits(disk_mb=1))
    with Sandbox(slots=1) as one:
        execution = one.run_sync(too_big)
    assert (execution.status, execution.exit_code, execution.stdout) == ("killed", None, b"")
    assert execution.stderr == b""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_a_daemon_with_closed_standard_streams_can_run_programs(closed, tmp_path):
    """Low descriptor numbers then belong to the slot's own socket: every program ended with exit code 1."""
    report = tmp_path / "report"
    script = (
        f"import os\nfor fd in {closed}: os.close(fd)\nfrom sandbox import Program, Sandbox\n"
        "with Sandbox(slots=1) as box:\n"
        "    code = 'import sys; print(input()); print(2, file=sys.stderr)'\n"
        "    done = [box.run_sync(Program(code=code, stdin=b'1', mode=mode)) for mode in ('fast', 'fresh')]\n"
        f"open({str(report)!r}, 'w').write(repr([(e.exit_code, e.stdout, e.stderr) for e in done]))\n"
    )
    start_script(script).wait(60)
    assert report.read_text() == repr([(0, b"1\n", b"2\n")] * 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's slots change their uid")
def test_no_two_slots_ever_share_a_uid(monkeypatch):
    """Processes are counted by uid: a fork bomb would leave none to a neighbour that shares it."""
    monkeypatch.setattr(local_module, "_slot_numbers", itertools.count(step=128))
    code = "import os; print(os.getuid(), flush=True); input()"
    with Sandbox(slots=1) as one, one.open(Program(code=code)) as first, one.open(Program(code=code)) as second:
        uids = [job.receive_line(30) for job in (first, second)]
    assert None not in uids
    assert len(set(uids)) == 2


def test_a_dialogue_whose_slot_dies_ends_as_unavailable():
    with Sandbox(slots=1) as one, one.open(Program(code="import time; time.sleep(60)")) as job:
        kill_every_slot(one)
        assert job.receive_line(30) is None
        assert job.finish().status == "unavailable"


def test_closing_leaves_no_process_no_cgroup_and_no_descriptor():
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def cgroups() -> list[Path]:
        return list(Path("/sys/fs/cgroup").glob(f"*/**/veriward-{os.getpid()}-*"))

    Sandbox(slots=1).close()
    before = (below(os.getpid()), descriptors(), len(cgroups()))
    with Sandbox(slots=3) as three:
        for _ in range(20):
            three.run_sync(Program(code="print(1)"))
        with three.open(Program(code="input()")), three.open(Program(code="input()")):
            assert len(below(os.getpid())) > len(before[0])
    assert (below(os.getpid()), descriptors(), len(cgroups())) == before


def test_a_sandbox_that_is_collected_unclosed_leaves_no_process_and_no_cgroup():
    def cgroups() -> list[Path]:
        return list(Path("/sys/fs/cgroup").glob(f"*/**/veriward-{os.getpid()}-*"))

    before = (below(os.getpid()), set(cgroups()))
    unclosed = Sandbox(slots=1)
    assert unclosed.run_sync(Program(code="print(1)")).stdout == b"1\n"
    assert below(os.getpid()) > before[0]
    del unclosed
    gc.collect()
    assert (below(os.getpid()), set(cgroups())) == before


_HIDES_ITS_CHILDREN = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range({count}):
    if not os.fork():
        while time.process_time() < 0.05: pass
        os._exit(0)
    try: os.wait()
    except ChildProcessError: pass
"""


def test_children_that_nobody_waits_for_count_against_the_cpu_limit():
    """With SIGCHLD ignored the kernel adds their time to nobody's; only the cgroup's count has it."""
    with Sandbox(slots=1) as one:
        (how,) = (item.how for item in one.guarantees().items if item.name == "cpu")
        if "cgroup" not in how:
            pytest.skip("no cgroup that counts CPU here")
        few = one.run_sync(Program(code=_HIDES_ITS_CHILDREN.format(count=6)))
        endless = one.run_sync(Program(code=_HIDES_ITS_CHILDREN.format(count=10**6), limits=Limits(cpu_s=0.5)))
        after = one.run_sync(Program(code="print(1)"))
    assert few.exit_code == 0
    assert few.cpu_s >= 0.3
    assert (endless.status, endless.limit) == ("timeout", "cpu")
    assert after.cpu_s < 0.3, "a job's CPU was counted against the next one"


def test_a_program_that_sends_itself_the_signal_of_the_cpu_limit_was_not_ended_by_it():
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGXCPU)"
    with Sandbox(slots=1) as one:
        forged = one.run_sync(Program(code=code))
        real = one.run_sync(Program(code="while True: pass", limits=Limits(cpu_s=1)))
    assert (forged.status, forged.signal, forged.limit) == ("finished", signal.SIGXCPU, None)
    assert (real.status, real.limit) == ("timeout", "cpu")


def start_script(code: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


HOLDS_A_JOB = (
    "import os, sys, threading, time\nfrom sandbox import *\ns = Sandbox(slots=1)\n"
    "job = s.open(Program(code='print(1, flush=True)\\nwhile True: pass', limits=Limits(wall_s=300, cpu_s=300)))\n"
    "job.receive_line(30)\nprint('up', flush=True)\n"
)


@pytest.mark.parametrize("extra", ["", "os.fork()\n"], ids=["alone", "with a forked child holding its sockets"])
def test_a_killed_parent_leaves_no_slot_and_no_job(extra):
    script = start_script(HOLDS_A_JOB + extra + "time.sleep(20)")
    assert script.stdout is not None
    assert script.stdout.readline() == "up\n"
    started = {pid for pid in below(script.pid) if is_slot(pid)}
    assert len(started) == 3  # keeper, pid 1, job
    others = below(script.pid) - started
    script.kill()
    script.wait()
    try:
        assert gone(started)
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        script.communicate()


def test_interpreter_exit_closes_what_was_left_open():
    script = start_script(HOLDS_A_JOB + "input()")
    assert script.stdout is not None
    assert script.stdout.readline() == "up\n"
    started = {pid for pid in below(script.pid) if is_slot(pid)}
    script.communicate("\n", timeout=60)
    assert script.returncode == 0
    assert len(started) == 3
    assert gone(started)


def test_a_forked_child_gets_slots_of_its_own_and_the_parents_keep_working():
    shared = default_sandbox()
    assert shared is default_sandbox()
    assert shared.run_sync(Program(code="print(1)")).stdout == b"1\n"
    slots_before = set(shared._all)
    child = os.fork()
    if not child:
        ok = not shared._all and shared.run_sync(Program(code="print(2)")).stdout == b"2\n"
        shared.close()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shared.run_sync(Program(code="print(3)")).stdout == b"3\n"
    assert set(shared._all) == slots_before
    shared.close()


def test_a_fork_of_this_process_does_not_keep_a_jobs_input_open():
    """multiprocessing's fork in one thread must not turn another thread's verdict into a time-out."""
    program = Program(code="import sys; print(len(sys.stdin.read()))", limits=Limits(wall_s=20))
    with Sandbox(slots=1) as one, one.open(program) as job:
        job.send(b"abc")
        child = os.fork()
        if not child:
            signal.pause()
        try:
            job.close_stdin()
            assert job.receive_line(15) == b"3"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_thread_that_started_a_slot_may_end_before_it():
    """A parent-death signal would fire when the starting thread ends, not the process."""
    with Sandbox(slots=1) as one:
        starter = threading.Thread(target=one.run_sync, args=(Program(code="pass"),))
        starter.start()
        starter.join()
        (slot,) = one._all
        one.run_sync(Program(code="pass"))
        assert one._all == {slot}


def test_a_stopped_slot_is_killed_after_the_grace_and_the_run_done_again(monkeypatch):
    """SIGSTOP on a slot's pid 1: it answers nothing, and the parent's backstop must end the wait."""
    monkeypatch.setattr("sandbox.job._GRACE_S", 0.3)
    with Sandbox(slots=1) as one:
        one.run_sync(Program(code="pass"))
        (slot,) = one._all
        signal.pidfd_send_signal(slot._pid1, signal.SIGSTOP)
        execution = one.run_sync(Program(code="print(1)", limits=Limits(wall_s=1)))
    assert execution.stdout == b"1\n"


def test_a_user_folder_can_not_shadow_what_a_slot_imports(tmp_path):
    for name in ("select.py", "marshal.py", "resource.py", "sandbox.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom sandbox import *\n"
    code += "print(Sandbox(slots=1).run_sync(Program(code='print(5)')).stdout)"
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "b'5\\n'\n", done.stderr


def test_closing_ends_the_run_of_another_thread():
    ended = threading.Event()
    sandbox = Sandbox(slots=1)

    def run() -> None:
        with pytest.raises(RuntimeError, match="closed"):
            sandbox.run_sync(Program(code="import time; time.sleep(60)", limits=Limits(wall_s=60)))
        ended.set()

    runner = threading.Thread(target=run)
    runner.start()
    while not jobs():
        time.sleep(0.005)
    sandbox.close()
    assert ended.wait(20)
    runner.join()
    assert jobs() == []


def test_no_slots_at_all_is_refused():
    with pytest.raises(ConfigError, match="slots=0"):
        Sandbox(slots=0)


def test_without_a_cgroup_memory_is_still_bounded_and_the_guarantee_says_weaker(monkeypatch):
    monkeypatch.setattr("sandbox.slot.make_slot_cgroup", lambda name: None)
    code = "import os, time\nfor n in range(8):\n    if not os.fork(): x = bytearray(40 << 20); time.sleep(30)\n"
    code += "time.sleep(30)"
    with Sandbox(slots=1) as one:
        alone = one.run_sync(Program(code="x = bytearray(200 << 20)", limits=Limits(memory_mb=64)))
        together = one.run_sync(Program(code=code, limits=Limits(memory_mb=64)))
        guarantees = one.guarantees()
    assert b"MemoryError" in alone.stderr
    assert (together.status, together.limit) == ("killed", "memory")
    assert [item.name for item in guarantees.weaker()] == ["memory", "neighbours"]


def test_a_required_guarantee_that_is_weaker_stops_the_first_use(monkeypatch):
    monkeypatch.setattr("sandbox.slot.make_slot_cgroup", lambda name: None)
    reason = r"required to enforce.*memory \(no writable memory cgroup"
    with Sandbox(slots=1, require=("network", "memory")) as one, pytest.raises(VeriwardError, match=reason):
        one.run_sync(Program(code="1"))
    with Sandbox(slots=1, require=("speed",)) as one, pytest.raises(ConfigError, match="'speed' is no guarantee"):
        one.run_sync(Program(code="1"))
    with Sandbox(slots=1, require=("network", "survivors")) as one:
        assert one.run_sync(Program(code="print(1)")).stdout == b"1\n"


def test_off_linux_it_refuses_in_one_line_that_names_the_way_out(monkeypatch):
    monkeypatch.setattr(local_module.sys, "platform", "darwin")
    with pytest.raises(VeriwardError, match=r"darwin.*Docker, or a server") as caught:
        Sandbox()
    assert "\n" not in str(caught.value)


def test_where_namespaces_are_refused_it_refuses_to_run_rather_than_run_weaker():
    """A process that already has a filter against unshare stands in for a locked-down container."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from sandbox import linux, seccomp, Sandbox, Program\nfrom sandbox.errors import ConfigError, VeriwardError\n"
        "linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)\n"
        "seccomp._DENIED = {'unshare': seccomp._DENIED['unshare']}\n"
        "seccomp._SOCKETPAIR = seccomp._SOCKET = (999, 999)\n"
        "seccomp.Filter().apply()\n"
        "try: print(Sandbox(slots=1).run_sync(Program(code='print(1)')))\n"
        "except VeriwardError as e: print('refused:', e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("refused: this machine can't run untrusted programs: missing namespaces"), done
    assert done.stdout.count("\n") == 1


def test_a_program_that_makes_the_cleaners_own_names_costs_no_slot(box: Sandbox):
    """Where jobs share the machine's root, folders are moved up to be removed."""
    code = (
        "import os\np, t = os.getppid(), os.environ['TMPDIR']\n"
        "for i in range(300): open(f'{t}/.moved-{p}-{i}', 'w').close()\n"
        "for i in range(300): os.mkdir(f'd{i}')\nprint('hello')"
    )
    execution = box.run_sync(Program(code=code))
    assert (execution.status, execution.stdout) == ("finished", b"hello\n")


def test_a_process_out_of_descriptors_is_unavailable_and_recovers():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import os, resource\nfrom sandbox import Sandbox, Program\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "with Sandbox(slots=1) as box:\n"
        "    good = Program(code='print(1)')\n"
        "    before = box.run_sync(good).stdout\n"
        "    held = []\n"
        "    try:\n        while True: held.append(os.dup(0))\n    except OSError: pass\n"
        "    without = [box.run_sync(good).status for _ in range(3)]\n"
        "    for descriptor in held: os.close(descriptor)\n"
        "    print(before, without, box.run_sync(good).stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "b'1\\n' ['unavailable', 'unavailable', 'unavailable'] b'1\\n'\n", done.stderr
