"""Whatever comes in, one reason goes out and nothing runs: bad input by hand, by property and by the document."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sandbox import Limits, Program
from sandbox.languages import LANGUAGES, Language
from tests.sandbox.serving import TOKEN, Server, serving

pytestmark = pytest.mark.xdist_group("server")

BAD = {
    "no json": (b"{", 400),
    "no object": (b"[]", 400),
    "no code": ({}, 400),
    "half a surrogate pair": (b'{"code": "\\ud800"}', 400),
    "invalid utf-8": (b'{"code": "\xff"}', 400),
    "over-long code": ({"code": "x" * ((4 << 20) + 1)}, 400),
    "unknown language": ({"code": "", "language": "cobol"}, 400),
    "negative limit": ({"code": "", "limits": {"wall_s": -1}}, 400),
    "absurd limit": ({"code": "", "limits": {"memory_mb": 10**9}}, 400),
    "no number": (b'{"code": "", "limits": {"wall_s": NaN}}', 400),
    "path upwards": ({"code": "", "files": {"../x": ""}}, 400),
    "absolute path": ({"code": "", "files": {"/x": ""}}, 400),
    "fetched upwards": ({"code": "", "fetch": ["a/../../b"]}, 400),
    "no base64": ({"code": "", "stdin": "%%%"}, 400),
    "unknown field": ({"code": "", "expected": "4"}, 400),
    "deep nesting": (b'{"code": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    "too large": (b" " * ((1 << 20) + 5_000_000), 413),
}


@pytest.fixture(scope="module")
def small(second_fence: None) -> Iterator[Server]:
    with serving(max_body_bytes=6_000_000) as server:
        yield server


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_refused_with_a_reason_and_runs_nothing(small: Server, kind: str) -> None:
    body, expected = BAD[kind]
    before = small.metric('veriward_sandbox_jobs_total{status="finished"}')
    status, _, answer = small.ask("/v1/run", body)
    assert status == expected, answer
    assert "\n" not in answer["error"]
    assert 0 < len(answer["error"]) <= 500
    assert small.metric('veriward_sandbox_jobs_total{status="finished"}') == before
    assert small.ask("/health", token=None)[0] == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Content_Type": "text/plain"}, 415),
        ({"Idempotency_Key": "k" * 201}, 400),
        ({"Idempotency_Key": "\xe9"}, 400),
        ({"Authorization": "Basic Zm9v"}, 401),
        ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"Authorization": "Bearer \xff"}, 401),
        ({"Content_Encoding": "gzip"}, 415),
    ],
)
def test_bad_headers_are_refused_with_a_reason(small: Server, headers: dict[str, str], expected: int) -> None:
    status, _, answer = small.ask(
        "/v1/run", {"code": ""}, token=None if "Authorization" in headers else TOKEN, **headers
    )
    assert (status, list(answer)) == (expected, ["error"])


@pytest.mark.parametrize(("path", "method", "expected"), [("/nowhere", "GET", 404), ("/v1/run", "GET", 405)])
def test_unknown_routes_and_methods_are_told_apart(small: Server, path: str, method: str, expected: int) -> None:
    assert small.ask(path, method=method)[0] == expected


def test_a_request_that_is_sent_half_runs_nothing_and_harms_nobody(small: Server) -> None:
    head = f"POST /v1/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    for rest in ("", "Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{", "\x00\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", small.port)) as connection:
            connection.sendall((head + rest).encode("latin-1"))
    assert small.ask("/v1/run", {"code": "print(1)"})[0] == 200


def test_a_body_that_never_comes_whole_is_a_408(second_fence: None) -> None:
    head = f"POST /v1/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    halves = ("Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{")
    with serving(body_s=0.3) as server:
        for half in halves:
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall((head + half).encode())
                assert connection.recv(100).split()[1] == b"408"
        assert server.ask("/health", token=None)[2]["running"] == 0


def test_the_document_and_its_page_name_every_route_and_load_nothing_from_elsewhere(small: Server) -> None:
    document = small.ask("/openapi.json")[2]
    assert document["openapi"].startswith("3.1")
    assert {"/v1/run", "/v1/run/{key}", "/v1/session", "/v1/guarantees", "/health", "/metrics"} <= set(
        document["paths"]
    )
    page = small.ask("/docs")[2]
    assert all(f"{path}</code>" in page for path in document["paths"])
    assert "http://" not in page
    assert "https://" not in page


def test_a_session_is_told_what_is_wrong_with_its_messages(small: Server) -> None:
    async def told(*messages: str) -> list[Any]:
        answers = []
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
            http.ws_connect(small.url + "/v1/session") as session,
        ):
            for message in messages:
                await session.send_str(message)
                if message != "{}":  # limits that are right aren't answered
                    answers.append(await session.receive_json())
        return answers

    (refused,) = asyncio.run(told('{"wall_s": -1}'))
    assert "limits" in refused["error"]
    bad = ("no json", "[" * 100_000, "[]", '{"run": 1}', '{"write": "a", "content": "%"}', '{"read": "../x"}')
    *errors, after = asyncio.run(told("{}", *bad, '{"run": "1"}'))
    assert [error["type"] for error in errors[2:]] == ["ValueError"] * 4
    assert all(0 < len(error["error"]) <= 500 for error in errors)
    assert after["execution"]["stdout"] == "MQo="


# --- by property

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
NEAR = st.fixed_dictionaries(
    {"code": st.text(max_size=20) | JSON},
    optional={name: JSON for name in Program.model_fields if name != "code"},
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=JSON | NEAR)
def test_any_json_is_a_program_or_a_400_with_a_reason(small: Server, document: Any) -> None:
    body = json.dumps(document).encode()
    try:
        Program.model_validate_json(body)
    except ValidationError:
        status, _, answer = small.ask("/v1/run", body)
        assert status == 400
        assert "\n" not in answer["error"]
        assert answer["error"]


NAME = st.text("abcXYZ_é 0", min_size=1, max_size=8)
LIMITS = st.builds(
    Limits,
    wall_s=st.floats(0, 3600, exclude_min=True),
    cpu_s=st.floats(0, 3600, exclude_min=True),
    memory_mb=st.integers(16, 65536),
    processes=st.integers(1, 4096),
    disk_mb=st.integers(8, 4096),
    output_bytes=st.integers(1, 64 << 20),
)
PROGRAMS = st.builds(
    Program,
    language=st.sampled_from(list(LANGUAGES))
    | st.builds(Language, file=st.just("code.x"), run=st.tuples(NAME), compile=st.none() | st.tuples(NAME, NAME)),
    code=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    files=st.dictionaries(NAME, st.binary(max_size=100), max_size=4),
    argv=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)).map(tuple),
    stdin=st.binary(max_size=300),
    limits=LIMITS,
    mode=st.sampled_from(["fast", "fresh"]),
    fetch=st.lists(NAME, max_size=3).map(tuple),
)


@settings(deadline=None)
@given(program=PROGRAMS)
def test_a_program_is_the_same_after_the_wire(program: Program) -> None:
    assert Program.model_validate_json(program.model_dump_json()) == program


@given(content=st.binary(max_size=100))
def test_either_alphabet_of_base64_is_taken(content: bytes) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        assert Program.model_validate({"code": "", "stdin": encode(content).decode()}).stdin == content


# --- by the document


def test_the_document_holds_for_whatever_it_allows_and_forbids(small: Server, tmp_path: Path) -> None:
    """Schemathesis makes requests from the document, right and wrong ones, and holds every answer against it."""
    checks = (
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
        "ignored_auth,unsupported_method"
    )
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{small.url}/openapi.json", "--no-color"]
    options = ["--checks", checks, "--max-examples", "40", "--phases", "coverage,fuzzing", "--seed", "1"]
    admitted = ["-H", f"Authorization: Bearer {TOKEN}", "--generation-database", "none"]
    ran = small.metric('veriward_sandbox_jobs_total{status="finished"}')
    found = subprocess.run([*command, *options, *admitted], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]
    assert small.metric('veriward_sandbox_jobs_total{status="finished"}') > ran
    assert small.ask("/health", token=None)[2]["running"] == 0


@pytest.mark.parametrize("line", ["OPTIONS * HTTP/1.1", "CONNECT / HTTP/1.1", "GET // HTTP/1.1", "TRACE /x HTTP/1.1"])
@pytest.mark.parametrize("token", ["", f"Authorization: Bearer {TOKEN}\r\n"], ids=["no token", "token"])
def test_odd_requests_are_the_clients_fault(small: Server, line: str, token: str) -> None:
    with socket.create_connection(("127.0.0.1", small.port), timeout=30) as connection:
        connection.sendall(f"{line}\r\nHost: x\r\n{token}Connection: close\r\n\r\n".encode())
        answer = connection.makefile("rb").readline()
    assert 400 <= int(answer.split()[1]) < 500


def test_connections_that_say_nothing_are_dropped_and_nobody_waits_for_them(second_fence: None) -> None:
    """Under a limit of descriptors they would fill up the server (a breaker's find)."""
    with serving(slots=1, head_s=0.5, most_files=96) as server:
        silent = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                silent.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        status, _, answer = server.ask("/v1/run", {"code": "print(1)"})
        assert (status, answer["exit_code"]) == (200, 0)
        assert silent[0].recv(1) == b""
        for connection in silent:
            connection.close()
        assert "Traceback" not in server.stop()[1]
