"""`veriward sandbox` as a person meets it, and the server that a trainer of SandboxFusion's points at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.conftest import can_confine
from tests.veriward.served import token_in
from veriward.cli import main


@pytest.fixture(scope="module", autouse=True)
def _needs_a_sandbox() -> None:
    if missing := can_confine():
        pytest.skip(missing)


def veriward(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "veriward", *arguments], input=stdin, capture_output=True, timeout=60)


@pytest.fixture
def program(tmp_path: Path):
    def write(text: str, name: str = "p.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


# --- run


def test_run_prints_what_the_program_printed_and_exits_as_it_did(program):
    done = veriward("sandbox", "run", program("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(7)"))
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_run_passes_arguments_and_input(program, tmp_path):
    (tmp_path / "in").write_bytes(b"\xff\n")
    code = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()); print(sys.argv[1:])"
    done = veriward("sandbox", "run", "--stdin", str(tmp_path / "in"), program(code), "--", "-a", "b")
    assert done.stdout == b"\xff\n['-a', 'b']\n"


def test_run_takes_the_language_from_the_suffix_or_from_the_flag(program):
    assert veriward("sandbox", "run", program("echo $((40 + 2))", "p.sh")).stdout == b"42\n"
    assert veriward("sandbox", "run", "--language", "bash", "-", stdin=b"echo hi").stdout == b"hi\n"


@pytest.mark.parametrize(
    ("code", "options", "status", "says"),
    [
        ("while True: pass", ["--wall", "0.3"], 124, b"wall limit"),
        ("import os; os.kill(os.getpid(), 15)", [], 143, b""),
        ("while True: print('x' * 999)", [], 1, b"output limit"),
    ],
    ids=["timeout", "signal", "output"],
)
def test_run_exits_with_what_ended_the_program(program, code, options, status, says):
    done = veriward("sandbox", "run", program(code), *options)
    assert done.returncode == status
    assert says in done.stderr


def test_run_json_is_the_whole_result(program):
    done = veriward("sandbox", "run", "--json", program("import sys\nsys.stdout.buffer.write(b'a\\xff'); sys.exit(3)"))
    result = json.loads(done.stdout)
    assert done.returncode == 0
    assert {key: result[key] for key in ("status", "exit_code", "signal", "stdout", "limit", "compile")} == {
        "status": "finished",
        "exit_code": 3,
        "signal": None,
        "stdout": "a\\xff",
        "limit": None,
        "compile": None,
    }
    assert result["wall_s"] > 0
    assert result["cpu_s"] > 0
    assert result["peak_memory_mb"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "/no/such/file.py"], "/no/such/file.py: No such file"),
        *(
            (["run", "FILE", "--backend", url], "http://host:port")
            for url in ("http:///x", "http://[", "http://h:abc", "http://h:99999", "http://h:0", "http://a@h:1")
        ),
        (["serve", "--token-file", "TOKEN", "--host", "a..b"], "can't listen on a..b"),
        (["serve", "--token-file", "TOKEN", "--host", "x" * 64], "can't listen on xxx"),
        (["serve", "--token-file", "CONTROL"], "printable ASCII"),
        (["run", "FILE", "--backend", "http://127.0.0.1:1", "--token-file", "CONTROL"], "printable ASCII"),
        (["serve", "--no-auth", "--host", "0.0.0.0", "--port", "0"], "loopback only"),
        (["serve", "--token-file", "/no/such/token"], "/no/such/token: No such file"),
        (["serve", "--no-auth", "--require", "luck"], "'luck' is no guarantee"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(program, tmp_path, capsys, arguments, says):
    files = {"FILE": program("print(1)"), "TOKEN": str(tmp_path / "token"), "CONTROL": str(tmp_path / "control")}
    for name, text in (("token", "secret"), ("control", "a\nb")):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    assert main(["sandbox", *(files.get(word, word) for word in arguments)]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "FILE", "--wall", "-1"], "--wall: -1: input should be greater than 0"),
        (["run", "FILE", "--cpu", "nan"], "--cpu: nan: "),
        (["run", "FILE", "--memory", "1"], "--memory: 1: input should be greater than or equal to 16"),
        (["run", "FILE", "--memory", "much"], "--memory: invalid limit value: 'much'"),
        (["run", "FILE", "--backend", "moon"], "choose local, docker, or the URL"),
        (["run", "FILE", "--language", "cobol"], "invalid choice"),
        (["serve", "--port", "70000", "--no-auth"], "from 0 to 65535"),
        (["serve", "--port", "0"], "--token-file --no-auth is required"),
        (["bench", "--jobs", "1"], "from 10 to"),
    ],
)
def test_wrong_usage_exits_with_2(program, capsys, arguments, says):
    file = program("print(1)")
    with pytest.raises(SystemExit) as ended:
        main(["sandbox", *(file if word == "FILE" else word for word in arguments)])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_check_goes_on_where_docker_host_is_no_address(monkeypatch, capsys):
    monkeypatch.setenv("DOCKER_HOST", "http://[")
    main(["sandbox", "check"])
    said = capsys.readouterr().out
    assert "local backend" in said
    assert "docker backend: not here: " in said


def test_a_token_that_others_may_read_is_refused(tmp_path, capsys):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    assert main(["sandbox", "serve", "--token-file", str(token)]) == 1
    assert "chmod 600" in capsys.readouterr().err


def test_a_terminal_gets_control_characters_spelled_out(program):
    import pty

    leader, follower = pty.openpty()
    code = program("print('\\x1b]0;own\\x07\\u202e', end='')")
    child = subprocess.Popen([sys.executable, "-m", "veriward", "sandbox", "run", code], stdout=follower)
    assert child.wait(60) == 0
    os.close(follower)
    shown = os.read(leader, 1000)
    os.close(leader)
    assert shown == b"\\x1b]0;own\\x07\\u202e"


# --- check, bench


def test_check_names_guarantees_languages_and_flavours():
    done = veriward("sandbox", "check", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    levels = {item["name"]: item["level"] for item in found["backends"]["local"]}
    assert all(levels[name] == "enforced" for name in ("harness", "network", "files", "survivors"))
    assert set(found["languages"]) == {"python", "c", "cpp", "bash", "javascript"}
    assert "docker" in {**found["backends"], **found["refused"]}
    text = veriward("sandbox", "check").stdout.decode()
    assert "survivors" in text
    assert "languages: python" in text


def test_bench_measures_every_kind():
    found = json.loads(veriward("sandbox", "bench", "--jobs", "10", "--json").stdout)
    assert {"sandbox, fast", "sandbox, fresh"} < set(found["kinds"])
    assert all(figures["cpu_ms"] > 0 for figures in found["kinds"].values())
    assert set(found["jobs_per_s"]) == {"1", "2", "4"}


# --- serve


def test_run_against_a_server(served, program, tmp_path):
    arguments = ["sandbox", "run", program("print(6 * 7)"), "--backend", served.url]
    assert veriward(*arguments, "--token-file", token_in(tmp_path)).stdout == b"42\n"
    refused = veriward(*arguments)
    assert refused.returncode == 1
    assert b"token" in refused.stderr
