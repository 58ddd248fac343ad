"""The server and its client, over real sockets and real processes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox import Execution, Limits, Program, RemoteSandbox, Sandbox
from sandbox.errors import ConfigError, VeriwardError
from sandbox.server import make_app
from sandbox.server_listen import serve
from tests.sandbox.conftest import Process, can_confine, descendants
from tests.sandbox.serving import TOKEN, Server, serving

pytestmark = pytest.mark.xdist_group("server")

LONG = {"code": "import time; time.sleep(50)", "limits": {"wall_s": 55}}
# Every run of it, also on another slot, leaves another number.
ONCE = {"code": "import os; print(int.from_bytes(os.urandom(8)))"}


@pytest.fixture(scope="module")
def server(second_fence: None) -> Iterator[Server]:
    missing = can_confine()
    if missing:
        pytest.skip(missing)
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def remote(server: Server) -> Iterator[RemoteSandbox]:
    with RemoteSandbox(server.url, token=TOKEN) as sandbox:
        yield sandbox


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.02)


def running(server: Server, count: int) -> Callable[[], bool]:
    return lambda: server.ask("/health")[2]["running"] == count


def waiting(server: Server, count: int) -> Callable[[], bool]:
    return lambda: server.ask("/health")[2]["waiting"] == count


def jobs_of(server: Server) -> list[Process]:
    return [process for process in descendants(server.process.pid) if process.is_job]


def send(server: Server, raw: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(raw)
    return connection


def request(path: str, body: bytes, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", "Content-Type: application/json")
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", *headers, "", "")).encode() + body


def test_a_program_comes_back_with_everything_it_did(remote: RemoteSandbox) -> None:
    program = Program(
        code="import sys; sys.stderr.buffer.write(b'\\xff'); open('out','wb').write(bytes(range(256))); sys.exit(3)",
        fetch=("out",),
    )
    execution = remote.run_sync(program)
    assert (execution.status, execution.exit_code, execution.stderr) == ("finished", 3, b"\xff")
    assert execution.files == {"out": bytes(range(256))}
    assert execution.wall_s > 0


def test_limits_hold_over_the_wire(remote: RemoteSandbox) -> None:
    execution = remote.run_sync(Program(code="while True: pass", limits=Limits(wall_s=0.3)))
    assert (execution.status, execution.limit) == ("timeout", "wall")
    execution = remote.run_sync(Program(code="while True: print('y' * 99)", limits=Limits(output_bytes=1000)))
    assert (execution.status, execution.limit, len(execution.stdout)) == ("killed", "output", 1000)


def test_one_client_serves_many_loops_and_threads(remote: RemoteSandbox) -> None:
    async def several(first: int) -> list[Execution]:
        blocking = remote.run_sync(Program(code="print(-1)"))  # inside a running loop
        return [blocking, *await asyncio.gather(*(remote.run(Program(code=f"print({first + i})")) for i in range(5)))]

    with ThreadPoolExecutor(3) as threads:
        for first, executions in zip(
            (0, 10, 20), threads.map(lambda n: asyncio.run(several(n)), (0, 10, 20)), strict=True
        ):
            assert [int(e.stdout) for e in executions] == [-1, *range(first, first + 5)]


def test_a_client_works_on_in_a_forked_child_and_ends_quietly_unclosed(server: Server) -> None:
    code = (
        "import os, sys\nfrom sandbox import Program, RemoteSandbox\n"
        "remote = RemoteSandbox(sys.argv[1], token=sys.argv[2])\n"
        "print(remote.run_sync(Program(code='print(1)')).stdout, flush=True)\nchild = os.fork()\n"
        "print(remote.run_sync(Program(code='print(2)')).stdout, flush=True)\n"
        "child and os.waitpid(child, 0)"
    )
    command = [sys.executable, "-c", code, server.url, TOKEN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.split()) == ["b'1\\n'", "b'2\\n'", "b'2\\n'"]


def test_a_key_runs_once_and_answers_the_same_again(server: Server) -> None:
    first = server.ask("/v1/run", ONCE, Idempotency_Key="again")
    assert first[0] == 200
    assert server.ask("/v1/run", ONCE, Idempotency_Key="again")[2] == first[2]
    assert server.ask("/v1/run", ONCE, Idempotency_Key="other")[2]["stdout"] != first[2]["stdout"]
    status, _, answer = server.ask("/v1/run", {"code": "print(2)"}, Idempotency_Key="again")
    assert (status, list(answer)) == (422, ["error"])


def test_the_same_key_in_flight_attaches_to_the_job(server: Server) -> None:
    slow = {"code": "import time; time.sleep(.5); " + ONCE["code"]}
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: server.ask("/v1/run", slow, Idempotency_Key="attach"), range(6)))
    assert {status for status, _, _ in answers} == {200}
    assert len({answer["stdout"] for _, _, answer in answers}) == 1


def test_a_keyed_job_goes_on_when_its_client_leaves(server: Server) -> None:
    slow = json.dumps({"code": "import time; time.sleep(.5); " + ONCE["code"]}).encode()
    send(server, request("/v1/run", slow, "Idempotency-Key: left")).close()
    ran = server.metric('veriward_sandbox_jobs_total{status="finished"}')
    status, _, answer = server.ask("/v1/run", slow, Idempotency_Key="left")
    assert (status, answer["status"]) == (200, "finished")
    assert server.metric('veriward_sandbox_jobs_total{status="finished"}') == ran + 1


def test_a_job_without_key_ends_with_its_client(server: Server) -> None:
    connection = send(server, request("/v1/run", json.dumps(LONG).encode()))
    until(running(server, 1), "the job")
    connection.close()
    until(running(server, 0), "its end")


def test_delete_ends_a_keyed_job_for_good(server: Server) -> None:
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(server.ask, "/v1/run", LONG, Idempotency_Key="gone")
        until(running(server, 1), "the job")
        assert server.ask("/v1/run/gone", method="DELETE")[::2] == (200, {"was_under_way": True})
        assert asked.result()[0] == 409
    assert server.ask("/health")[2]["running"] == 0
    assert server.ask("/v1/run", LONG, Idempotency_Key="gone")[0] == 409
    assert server.ask("/v1/run/gone", method="DELETE")[2] == {"was_under_way": False}


def test_cancelling_run_ends_the_job_on_the_server(server: Server, remote: RemoteSandbox) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(remote.run(Program.model_validate(LONG)))
        await asyncio.to_thread(until, running(server, 1), "the job")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    until(running(server, 0), "its end")


def test_the_wait_for_a_slot_is_not_the_jobs_time_and_a_full_queue_says_when_to_come_again(second_fence: None) -> None:
    with serving(slots=1, queue_size=1) as server, ThreadPoolExecutor(2) as threads:
        blocker = threads.submit(server.ask, "/v1/run", LONG, Idempotency_Key="blocker")
        until(running(server, 1), "the blocker")
        began = time.monotonic()
        waiter = threads.submit(server.ask, "/v1/run", {"code": "print(1)", "limits": {"wall_s": 5}})
        until(waiting(server, 1), "the waiter")
        status, headers, answer = server.ask("/v1/run", ONCE)
        assert (status, list(answer)) == (429, ["error"])
        assert 1 <= int(headers["retry-after"]) <= 60
        assert server.metric('veriward_sandbox_refused_total{reason="full"}') == 1
        waited_s = time.monotonic() - began
        server.ask("/v1/run/blocker", method="DELETE")
        status, headers, answer = waiter.result()
        assert (status, answer["status"]) == (200, "finished")
        assert float(headers["x-queue-seconds"]) >= waited_s * 0.5
        assert answer["wall_s"] < float(headers["x-queue-seconds"])
        assert blocker.result()[0] == 409


def test_a_client_outlasts_a_full_queue(second_fence: None) -> None:
    with (
        serving(slots=1, queue_size=0) as server,
        RemoteSandbox(server.url, token=TOKEN) as remote,
        ThreadPoolExecutor(4) as threads,
    ):
        executions = list(threads.map(lambda i: remote.run_sync(Program(code=f"print({i})")), range(4)))
    assert [execution.stdout for execution in executions] == [b"0\n", b"1\n", b"2\n", b"3\n"]


def test_sigterm_finishes_what_runs_refuses_the_rest_and_exits_0(second_fence: None) -> None:
    with serving(slots=1) as server, ThreadPoolExecutor(2) as threads:
        slow = {"code": "import time; time.sleep(2); print('whole')"}
        asked = threads.submit(server.ask, "/v1/run", slow)
        until(running(server, 1), "the job")
        waiter = threads.submit(server.ask, "/v1/run", ONCE)
        until(waiting(server, 1), "the waiter")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.ask("/health")[2]["status"] == "draining", "draining")
        status, headers, _ = server.ask("/v1/run", ONCE)
        assert (status, headers["retry-after"]) == (503, "5")
        assert waiter.result()[0] == 503
        status, _, answer = asked.result()
        assert (status, answer["stdout"]) == (200, "d2hvbGUK")
        assert server.process.wait(timeout=30) == 0


def test_a_second_signal_ends_at_once(second_fence: None) -> None:
    with serving(slots=1) as server, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(server.ask, "/v1/run", LONG)
        until(running(server, 1), "the job")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.ask("/health")[2]["status"] == "draining", "draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == -signal.SIGTERM
        assert isinstance(asked.exception(), OSError)


def test_a_client_gets_one_right_result_from_a_server_killed_under_it_and_restarted(second_fence: None) -> None:
    with serving() as first, RemoteSandbox(first.url, token=TOKEN) as remote, ThreadPoolExecutor(1) as thread:
        asked = thread.submit(remote.run_sync, Program(code="import time; time.sleep(1); print('right')"))
        until(running(first, 1), "the job")
        first.stop(signal.SIGKILL)
        with serving(port=first.port) as second:
            assert asked.result().stdout == b"right\n"
            assert second.metric('veriward_sandbox_jobs_total{status="finished"}') == 1


def test_a_server_that_stays_away_is_unavailable_not_an_exception(remote: RemoteSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    program = Program(code="", limits=Limits(wall_s=0.1))
    with RemoteSandbox(f"http://127.0.0.1:{port}", token=TOKEN, patience_s=0.3) as lonely:
        execution = lonely.run_sync(program)
        assert execution.status == "unavailable"
        assert f"127.0.0.1:{port}" in execution.error
        with pytest.raises(VeriwardError, match="no result within"):
            lonely.guarantees()
    with pytest.raises(RuntimeError, match="closed"):
        lonely.run_sync(program)


def test_a_refused_token_is_one_line_and_never_shown(server: Server) -> None:
    with RemoteSandbox(server.url, token="sesame-123") as wrong:
        with pytest.raises(VeriwardError, match="a bad token or none") as caught:
            wrong.run_sync(Program(code=""))
        assert "\n" not in str(caught.value)
        assert "sesame-123" not in str(caught.value) + repr(wrong) + str(vars(caught.value))


def test_guarantees_are_the_backends(remote: RemoteSandbox, box: Sandbox) -> None:
    assert remote.guarantees() == box.guarantees()


def test_the_token_also_opens_as_first_path_segment_and_stays_out_of_the_log(second_fence: None) -> None:
    with serving() as server:
        assert server.ask(f"/{TOKEN}/twice", {"code": "print(7)"}, token=None)[::2] == (200, ["7\n", "7\n"])
        assert server.ask(f"/{TOKEN}/v1/run", ONCE, token=None)[0] == 200
        assert server.ask(f"/%61{TOKEN[1:]}/v1/run", ONCE, token=None)[0] == 200
        assert server.ask(f"/{TOKEN}/nothing%0A", token=None)[0] == 404
        assert server.ask("/wrong/v1/run", ONCE, token=None)[0] == 401
        assert server.ask("/v1/run", ONCE, token=None)[0] == 401
        assert server.ask("/v1/run", ONCE, token=TOKEN + "x")[0] == 401
        _, log = server.stop()
    assert TOKEN not in log
    assert [line.rsplit(" ", 1)[0] for line in log.splitlines()] == [
        "sandbox.server POST /***/twice 200",
        "sandbox.server POST /***/v1/run 200",
        "sandbox.server POST /***/v1/run 200",
        "sandbox.server GET /***/nothing\\n 404",
        "sandbox.server POST /wrong/v1/run 401",
        "sandbox.server POST /v1/run 401",
        "sandbox.server POST /v1/run 401",
    ]


def test_a_server_that_everybody_may_use_listens_on_loopback_only(box: Sandbox) -> None:
    with pytest.raises(ConfigError, match="loopback"):
        serve(make_app(box, slots=1, token=None), "0.0.0.0", 0)
    with pytest.raises(ConfigError, match="printable"):
        make_app(box, slots=1, token="two words")


def test_no_token_asks_for_none(second_fence: None) -> None:
    with serving(token=None) as server:
        assert server.ask("/twice", {"code": "print(7)"}, token=None)[0] == 200
        assert server.ask("/anything/twice", {"code": "print(7)"}, token=None)[0] == 404


# --- sessions


async def test_a_session_keeps_its_state_over_the_wire_and_leaves_no_process(
    server: Server, remote: RemoteSandbox
) -> None:
    async with remote.session(limits=Limits(wall_s=2)) as session:
        await session.run("x = 41")
        assert (await session.run("x + 1")).stdout == b"42\n"
        await session.write_file("a/b", bytes(range(256)) * 9000)
        assert await session.read_file("a/b") == bytes(range(256)) * 9000
        with pytest.raises(FileNotFoundError):
            await session.read_file("none")
        assert (await session.run("while True: pass")).limit == "wall"
        assert (await session.run("x")).stdout == b"41\n"
        assert jobs_of(server)
    await asyncio.to_thread(until, lambda: not jobs_of(server), "the session's end")


async def test_a_session_outlasts_heartbeats_while_idle_and_while_a_cell_runs(second_fence: None) -> None:
    with serving(heartbeat_s=0.2) as server, RemoteSandbox(server.url, token=TOKEN) as remote:
        async with remote.session() as session:
            await session.run("import time; x = 1")
            await asyncio.sleep(1)
            assert (await session.run("time.sleep(1); x")).stdout == b"1\n"
            assert server.metric("veriward_sandbox_sessions") == 1
        assert server.metric("veriward_sandbox_sessions") == 0


def test_a_session_ends_when_its_client_is_killed(server: Server, tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom sandbox import RemoteSandbox\n"
        "async def main():\n    session = RemoteSandbox(sys.argv[1], token=sys.argv[2]).session()\n"
        "    print((await session.run('1')).stdout, flush=True)\n    await session.run('while True: pass')\n"
        "asyncio.run(main())"
    )
    client = subprocess.Popen([sys.executable, "-c", code, server.url, TOKEN], stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "b'1\\n'\n"
    assert server.metric("veriward_sandbox_sessions") == 1
    assert jobs_of(server)
    client.kill()
    client.wait()
    until(lambda: not jobs_of(server), "the session's end")
    until(lambda: server.metric("veriward_sandbox_sessions") == 0, "its socket's end")


def test_what_is_no_websocket_or_no_kind_is_refused(server: Server) -> None:
    assert server.ask("/v1/session?kind=python")[0] == 426
    assert server.ask("/v1/session?kind=ruby")[0] == 400


def test_a_session_is_not_for_web_pages_which_may_reach_loopback(server: Server) -> None:
    assert server.ask("/v1/session", Origin="http://evil.example")[0] == 403


async def test_sessions_are_counted_and_end_with_the_server_after_their_cell(second_fence: None) -> None:
    with serving(slots=1) as server, RemoteSandbox(server.url, token=TOKEN) as remote:
        sessions = [remote.session() for _ in range(4)]
        for session in sessions:
            assert (await session.run("import time; time.time() > 0")).stdout == b"True\n"
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        status, headers, _ = await asyncio.to_thread(
            server.ask, "/v1/session", **upgrade, **{"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        )
        assert (status, headers["retry-after"]) == (429, "5")
        before = len(jobs_of(server))
        code = "import os\nif not os.fork():\n    time.sleep(2)\n    os._exit(0)\nos.wait()\nprint('whole')"
        cell = asyncio.ensure_future(sessions[0].run(code))
        await asyncio.to_thread(until, lambda: len(jobs_of(server)) > before, "the cell's child")
        server.process.send_signal(signal.SIGTERM)
        assert (await cell).stdout == b"whole\n"
        assert await asyncio.to_thread(server.process.wait, 30) == 0
        for session in sessions:
            await session.close()


async def test_a_session_whose_server_is_killed_is_unavailable_and_starts_anew_with_the_next(
    second_fence: None,
) -> None:
    with serving() as first, RemoteSandbox(first.url, token=TOKEN) as remote:
        async with remote.session() as session:
            assert (await session.run("x = 1; x")).stdout == b"1\n"
            first.stop(signal.SIGKILL)
            lost = await session.run("x")
            assert (lost.status, "state" in lost.error) == ("unavailable", True)
            with serving(port=first.port):
                assert b"NameError" in (await session.run("x")).stderr
        with pytest.raises(RuntimeError, match="closed"):
            await session.run("1")


def test_metrics_add_up(second_fence: None) -> None:
    with serving() as server:
        for code, count in (("print(1)", 3), ("while True: print('y' * 99)", 1)):
            for _ in range(count):
                server.ask("/v1/run", {"code": code, "limits": {"output_bytes": 1000}})
        server.ask("/v1/run", {})
        server.ask("/nowhere")
        assert server.metric('veriward_sandbox_jobs_total{status="finished"}') == 3
        assert server.metric('veriward_sandbox_jobs_total{status="killed"}') == 1
        assert server.metric("veriward_sandbox_job_wall_seconds_count") == 4
        assert server.metric("veriward_sandbox_queue_seconds_count") == 4
        assert server.metric('veriward_sandbox_http_responses_total{code="400"}') == 1
        assert server.metric('veriward_sandbox_http_responses_total{code="404"}') == 1
        assert server.metric("veriward_sandbox_slots") == 2
        assert server.metric("veriward_sandbox_running") == 0
