"""What is the docker backend's own: its containers, their owner, their reuse and their engine.

Needs DOCKER_HOST and VERIWARD_TEST_IMAGE (`.ci/dockerd start` makes both).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.docker_backend import DockerSandbox
from sandbox.docker_engine import LABEL, OWNER, owner
from sandbox.errors import ConfigError, VeriwardError
from sandbox.models import Limits, Program
from sandbox.steps import Step

WHOAMI = Program(code="import os\nprint(os.getuid())")


@pytest.fixture(scope="module")
def image() -> str:
    """The image to test with; skipped without one, unless docker is required here."""
    name, missing = os.environ.get("VERIWARD_TEST_IMAGE", ""), "VERIWARD_TEST_IMAGE and DOCKER_HOST name no engine"
    if name and os.environ.get("DOCKER_HOST"):
        try:
            with DockerSandbox(name, slots=1) as probe:
                probe.guarantees()
            return name
        except VeriwardError as error:
            missing = str(error)
    if os.environ.get("VERIWARD_DOCKER_REQUIRED"):
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="module")
def api(image: str) -> Iterator[Any]:
    import docker

    client = docker.APIClient(base_url=os.environ["DOCKER_HOST"], version="auto", timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="module")
def box(image: str) -> Iterator[DockerSandbox]:
    with DockerSandbox(image, slots=2) as sandbox:
        yield sandbox


def containers_of(api: Any, pid: int) -> set[str]:
    rows = api.containers(all=True, filters={"label": f"{LABEL}=1"})
    return {row["Id"] for row in rows if row["Labels"][OWNER].startswith(f"{pid}:")}


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_container_has_every_wall_that_the_engine_offers(image: str, api: Any) -> None:
    limits = Limits(memory_mb=64, processes=9, disk_mb=7, disk_inodes=99)
    others = containers_of(api, os.getpid())
    with DockerSandbox(image, slots=1, cpus=0.5) as sandbox:
        assert sandbox.run_sync(Program(code="pass", limits=limits)).exit_code == 0
        (made,) = containers_of(api, os.getpid()) - others
        found = api.inspect_container(made)
    host = found["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert list(found["NetworkSettings"]["Networks"]) == ["none"]
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["Memory"] == host["MemorySwap"] == (64 + 8) << 20
    assert host["PidsLimit"] == 10
    assert host["NanoCpus"] == 500_000_000
    assert host["AutoRemove"] is True
    assert not host["Binds"]
    assert not host["Devices"]
    assert "size=7m" in host["Tmpfs"]["/tmp"]
    assert "nr_inodes=101" in host["Tmpfs"]["/tmp"]
    assert int(found["Config"]["User"].split(":")[0]) >= 20_000
    assert found["Config"]["Labels"] == {LABEL: "1", OWNER: owner()}


def test_close_removes_its_containers_and_a_job_in_one_of_them(image: str, api: Any) -> None:
    others = containers_of(api, os.getpid())
    sandbox = DockerSandbox(image, slots=1)
    job = sandbox.open_step(Step(("sleep", "60"), {}, Limits(wall_s=60)))
    assert sandbox.run_sync(WHOAMI).exit_code == 0
    assert len(containers_of(api, os.getpid()) - others) == 2
    sandbox.close()
    assert containers_of(api, os.getpid()) == others
    assert job.finish().status == "unavailable"
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.run_sync(WHOAMI)


def test_a_killed_client_leaves_no_container_even_when_its_fork_lives_on(image: str, api: Any) -> None:
    code = f"""
        import os, time
        from sandbox.docker_backend import DockerSandbox
        from sandbox.models import Limits
        from sandbox.steps import Step
        sandbox = DockerSandbox({image!r}, slots=1)
        job = sandbox.open_step(Step(("bash", "-c", "echo up; exec sleep 60"), {{}}, Limits(wall_s=60)))
        assert job.receive_line(30) == b"up"
        child = os.fork()
        if not child:
            time.sleep(120)
        print(child, flush=True)
        time.sleep(120)
    """
    client = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    child = int(client.stdout.readline())
    try:
        assert len(containers_of(api, client.pid)) == 1
        client.kill()
        wait_until(lambda: not containers_of(api, client.pid), "a container outlived its client")
    finally:
        os.kill(child, signal.SIGKILL)
        client.kill()
        client.wait()
        client.stdout.close()


def test_what_a_dead_owner_left_is_removed_at_the_next_start_and_nothing_else(image: str, api: Any) -> None:
    from docker.errors import NotFound

    gone = subprocess.run([sys.executable, "-c", "import sandbox.docker_container as d; print(d.owner())"], stdout=-1)
    dead = gone.stdout.decode().strip()
    elsewhere = ":".join([*dead.split(":")[:2], "00000000-0000-0000-0000-000000000000", "pid:[1]"])
    made = {}
    for label in (dead, elsewhere, owner()):
        labels = {LABEL: "1", OWNER: label}
        config = api.create_host_config(network_mode="none")
        made[label] = api.create_container(image, ["sleep", "600"], labels=labels, host_config=config)["Id"]
        with contextlib.suppress(NotFound):  # another process that starts now removes the dead one first
            api.start(made[label])
    try:
        with DockerSandbox(image, slots=1) as sandbox:
            assert sandbox.run_sync(WHOAMI).exit_code == 0
            left = {row["Id"] for row in api.containers(all=True, filters={"label": f"{LABEL}=1"})}
        assert made[dead] not in left
        assert {made[elsewhere], made[owner()]} <= left
    finally:
        for name in (made[elsewhere], made[owner()]):
            api.remove_container(name, force=True)


def test_jobs_with_the_same_limits_share_a_container_and_others_do_not(image: str) -> None:
    with DockerSandbox(image, slots=1) as sandbox:
        first, second = sandbox.run_sync(WHOAMI), sandbox.run_sync(WHOAMI)
        other = sandbox.run_sync(WHOAMI.model_copy(update={"limits": Limits(memory_mb=100)}))
        alike = sandbox.run_sync(WHOAMI.model_copy(update={"limits": Limits(wall_s=3, cpu_s=3, open_files=32)}))
    assert first.stdout == second.stdout == alike.stdout
    assert other.stdout not in (b"", first.stdout)


def test_without_reuse_every_job_has_a_container_of_its_own(image: str, api: Any) -> None:
    with DockerSandbox(image, slots=1, reuse=False) as sandbox:
        before = len(containers_of(api, os.getpid()))
        uids = {sandbox.run_sync(WHOAMI).stdout for _ in range(2)}
        assert len(uids) == 2
        assert len(containers_of(api, os.getpid())) == before


def test_a_job_finds_nothing_of_the_one_before(box: DockerSandbox) -> None:
    messy = """
import os
print(os.getuid())
open("/dev/shm/left", "w"), open("/tmp/left", "w"), os.symlink("/etc", "/tmp/link")
for _ in range(300):
    os.mkdir("deep"), os.chdir("deep")
os.makedirs("/tmp/a/b/c/d")
for path in ("/tmp/a/b/c", "/tmp/a/b", "/tmp/a"):
    os.chmod(path, 0)
"""
    look = 'import os\nprint(os.getuid())\nprint(os.listdir("/tmp"), os.listdir("/dev/shm"), os.listdir("."))'
    first, second = box.run_sync(Program(code=messy)), box.run_sync(Program(code=look))
    assert first.exit_code == 0, first.stderr
    assert second.stdout == first.stdout + b"['work'] [] ['main.py']\n"


def test_no_job_slows_down_the_next_one_of_its_container(box: DockerSandbox) -> None:
    slowing = """
import os
print(os.getuid())
for which, who in ((os.PRIO_USER, 0), (os.PRIO_USER, os.getuid()), (os.PRIO_PROCESS, 1), (os.PRIO_PGRP, 1)):
    try:
        os.setpriority(which, who, 19)
    except PermissionError:
        continue
    print("changed", which, who)
"""
    look = "import os\nprint(os.getuid())\nprint(os.getpriority(os.PRIO_PROCESS, 0))"
    first, second = box.run_sync(Program(code=slowing)), box.run_sync(Program(code=look))
    assert second.stdout == first.stdout + b"0\n"


def test_pid_1_is_out_of_reach_of_jobs_though_it_has_their_uid(box: DockerSandbox) -> None:
    code = """
import os, resource
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
for name in ("mem", "environ", "maps", "fd/0", "fd/1", "root/tmp", "cwd"):
    try:
        open(f"/proc/1/{name}", "rb").read(1)
        print(name)
    except PermissionError:
        pass
try:
    resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1))
    print("prlimit")
except PermissionError:
    pass
print(os.getuid())
"""
    execution, after = box.run_sync(Program(code=code)), box.run_sync(WHOAMI)
    assert (execution.status, execution.exit_code) == ("finished", 0), execution.stderr
    assert execution.stdout == after.stdout  # nothing but the uid, and pid 1 serves on


def test_a_job_out_of_memory_is_told_so_and_its_container_serves_on(box: DockerSandbox) -> None:
    limits = Limits(memory_mb=64)
    before = box.run_sync(WHOAMI.model_copy(update={"limits": limits}))
    bomb = box.run_sync(
        Program(code="x = bytearray(200 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1", limits=limits)
    )
    after = box.run_sync(WHOAMI.model_copy(update={"limits": limits}))
    assert (bomb.status, bomb.limit, bomb.signal) == ("killed", "memory", signal.SIGKILL)
    assert before.stdout == after.stdout


def test_a_dialogue_sends_reads_lines_and_is_stopped_from_another_thread(box: DockerSandbox) -> None:
    with box.open_step(Step(("cat",), {}, Limits())) as job:
        assert job.send(b"one\ntwo\n" + b"x" * 300_000 + b"\n")
        assert [job.receive_line(10), job.receive_line(10)] == [b"one", b"two"]
        assert job.receive_line(10) == b"x" * 300_000
        with pytest.raises(TimeoutError):
            job.receive_line(0.05)
        stopper = threading.Thread(target=job.stop)
        stopper.start()
        assert job.receive_line(10) is None
        stopper.join()
    execution = job.finish()
    assert (execution.status, execution.limit, execution.signal) == ("killed", None, signal.SIGKILL)


def test_a_dialogue_that_keeps_no_output_may_go_on_past_its_cap(box: DockerSandbox) -> None:
    step = Step(("cat",), {}, Limits(output_bytes=4096), keeps_output=False)
    with box.open_step(step) as job:
        for number in range(40):
            assert job.send(b"%d" % number * 500 + b"\n")
            assert job.receive_line(10) == b"%d" % number * 500
        assert job.send(b"x" * 9000 + b"\n")
        assert job.finish().limit == "output"


def test_a_dialogue_tells_that_memory_ran_out_once_for_each_time(box: DockerSandbox) -> None:
    code = """
import os
for line in open(0):
    if line == "grow\\n":
        if not os.fork():
            x = bytearray(200 << 20)
            for i in range(0, len(x), 4096): x[i] = 1
            os._exit(0)
        os.wait()
    print("ready", flush=True)
"""
    with box.open(Program(code=code, limits=Limits(memory_mb=64))) as job:
        seen = []
        for line in (b"stay\n", b"grow\n", b"stay\n"):
            assert job.send(line)
            assert job.receive_line(20) == b"ready"
            seen.append(job.ran_out_of_memory())
        assert seen == [False, True, False]
        assert job.finish().exit_code == 0


async def test_sessions_keep_their_state_in_a_container(box: DockerSandbox) -> None:
    async with box.session("python") as python, box.session("shell") as shell:
        assert (await python.run("x = 41")).exit_code == 0
        assert (await python.run("print(x + 1)")).stdout == b"42\n"
        assert (await shell.run("mkdir in && cd in && echo hej > file")).exit_code == 0
        assert (await shell.run("basename $PWD; cat file")).stdout == b"in\nhej\n"


async def test_a_cancelled_run_ends_its_job(box: DockerSandbox) -> None:
    running = asyncio.create_task(box.run(Program(code="import time\ntime.sleep(50)", limits=Limits(wall_s=60))))
    while not any(container not in box._idle for container in box._all):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await asyncio.wait_for(box.run(WHOAMI), 30)).exit_code == 0


def test_an_image_is_built_from_a_dockerfile_and_without_python_it_is_refused(
    image: str, api: Any, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nENV PATH=/nowhere MARK={tmp_path.name}\n")
    with DockerSandbox(dockerfile=tmp_path / "Dockerfile", slots=1) as sandbox:
        try:
            with pytest.raises(VeriwardError, match=r"^image \S+ has no python3 on its PATH.*$"):
                sandbox.guarantees()
            with pytest.raises(VeriwardError, match="no python3"):
                sandbox.run_sync(WHOAMI)
        finally:
            api.remove_image(sandbox.image, force=True)


def test_an_image_with_a_volume_that_jobs_could_fill_is_refused(image: str, api: Any, tmp_path: Path) -> None:
    (tmp_path / "tree" / "shared").mkdir(parents=True)
    (tmp_path / "tree" / "shared").chmod(0o777)
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nCOPY tree /\nVOLUME /shared\n")
    with DockerSandbox(dockerfile=tmp_path / "Dockerfile", slots=1) as sandbox:
        try:
            with pytest.raises(VeriwardError, match="jobs could write to /shared"):
                sandbox.run_sync(WHOAMI)
        finally:
            api.remove_image(sandbox.image, force=True)


def test_an_absent_image_and_an_absent_engine_are_one_line_that_says_what_to_do(image: str, tmp_path: Path) -> None:
    with (
        DockerSandbox("veriward-no-such:1") as sandbox,
        pytest.raises(VeriwardError, match="docker pull veriward-no-such:1"),
    ):
        sandbox.run_sync(WHOAMI)
    with DockerSandbox(base_url=f"unix://{tmp_path}/none.sock") as sandbox:
        with pytest.raises(VeriwardError, match="no container engine answers at") as caught:
            sandbox.run_sync(WHOAMI)
        assert "\n" not in str(caught.value)


def test_a_guarantee_that_is_required_and_weaker_stops_the_first_use(image: str) -> None:
    with DockerSandbox(image, slots=1, require=("network", "harness", "memory")) as sandbox:
        assert sandbox.run_sync(WHOAMI).exit_code == 0
        assert all(map(sandbox.guarantees().enforces, ("network", "harness", "memory")))
    with (
        DockerSandbox(image, require=("landlock",)) as sandbox,
        pytest.raises(VeriwardError, match="weaker here: landlock"),
    ):
        sandbox.run_sync(WHOAMI)
    with DockerSandbox(image, require=("luck",)) as sandbox, pytest.raises(ConfigError, match="'luck' is no guarantee"):
        sandbox.guarantees()


def test_an_engine_that_goes_away_during_a_job_makes_it_unavailable(image: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/engine.sock"
    with contextlib.ExitStack() as engine, DockerSandbox(image, slots=1, base_url=f"unix://{path}") as sandbox:
        engine.enter_context(passage(path, os.environ["DOCKER_HOST"].removeprefix("unix://")))
        with sandbox.open_step(Step(("bash", "-c", "echo up; exec sleep 60"), {}, Limits(wall_s=60))) as job:
            assert job.receive_line(30) == b"up"
            engine.close()
            execution = job.finish()
        assert (execution.status, execution.stdout) == ("unavailable", b"up\n")
        assert sandbox.run_sync(WHOAMI).status == "unavailable"


@contextlib.contextmanager
def passage(path: str, target: str) -> Iterator[None]:
    """A socket that leads to the engine until it is closed, with every connection through it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    ends: list[socket.socket] = [listener]

    def carry(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(target)
                ends.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        os.unlink(path)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_signal_that_a_program_sends_itself_is_no_limit(box: DockerSandbox) -> None:
    execution = box.run_sync(Program(code="import os, signal; os.kill(os.getpid(), signal.SIGXCPU)"))
    assert (execution.status, execution.signal, execution.limit) == ("finished", 24, None)
