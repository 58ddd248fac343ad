"""`veriward sandbox` as a person meets it, and the server that a trainer of SandboxFusion's points at."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.conftest import can_confine
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
        (["run", "FILE", "--backend", "http:///x"], "http://host:port"),
        (["serve", "--no-auth", "--host", "0.0.0.0", "--port", "0"], "loopback only"),
        (["serve", "--token-file", "/no/such/token"], "/no/such/token: No such file"),
        (["serve", "--no-auth", "--require", "luck"], "'luck' is no guarantee"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(program, capsys, arguments, says):
    file = program("print(1)")
    assert main(["sandbox", *(file if word == "FILE" else word for word in arguments)]) == 1
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


class Served:
    def __init__(self, token: Path) -> None:
        command = [sys.executable, "-m", "veriward", "sandbox", "serve", "--port", "0", "--token-file", str(token)]
        self.process = subprocess.Popen(
            [*command, "--slots", "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.url = self.process.stdout.readline().split()[-1]

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    token = tmp_path_factory.mktemp("serve") / "token"
    token.write_text("secret-token\n")
    token.chmod(0o600)
    server = Served(token)
    yield server
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0


def run_code(served: Served, **fields: Any) -> dict[str, Any]:
    status, answer = served.post("/secret-token/run_code", fields)
    assert status == 200, answer
    return answer


def test_run_against_a_server(served, program, tmp_path):
    arguments = ["sandbox", "run", program("print(6 * 7)"), "--backend", served.url]
    assert veriward(*arguments, "--token-file", str(_token(tmp_path))).stdout == b"42\n"
    refused = veriward(*arguments)
    assert refused.returncode == 1
    assert b"token" in refused.stderr


def _token(folder: Path) -> Path:
    path = folder / "token"
    path.write_text("secret-token")
    path.chmod(0o600)
    return path


def test_fusion_success_has_all_its_fields(served):
    answer = run_code(served, code="print(input()[::-1])", language="python", stdin="abc", run_timeout=5)
    run = answer["run_result"]
    assert (answer["status"], run["status"], run["return_code"], run["stdout"]) == ("Success", "Finished", 0, "cba\n")
    assert run["execution_time"] > 0
    assert set(answer) == {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"}


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"code": "1 / 0", "language": "python"}, "Finished", 1),
        ({"code": "while True: pass", "language": "python", "run_timeout": 0.3}, "TimeLimitExceeded", None),
        ({"code": "kill -9 $$", "language": "bash"}, "Finished", -9),
    ],
    ids=["raises", "endless", "killed"],
)
def test_fusion_failures_say_how(served, fields, status, code):
    answer = run_code(served, **fields)
    assert (answer["status"], answer["run_result"]["status"], answer["run_result"]["return_code"]) == (
        "Failed",
        status,
        code,
    )


def test_fusion_tells_a_compile_error_from_a_run(served):
    answer = run_code(served, code="int main() { return x; }", language="cpp")
    assert (answer["status"], answer["run_result"]) == ("Failed", None)
    assert "x" in answer["compile_result"]["stderr"]
    good = run_code(served, code="int main() { return 0; }", language="cpp")
    assert (good["status"], good["compile_result"]["return_code"]) == ("Success", 0)


def test_fusion_files_go_in_and_out(served):
    content = base64.b64encode(b"\x00\xff").decode()
    code = "import os; os.mkdir('out'); open('out/b', 'wb').write(open('in/a', 'rb').read() * 2)"
    answer = run_code(served, code=code, language="python", files={"in/a": content}, fetch_files=["out/b", "none"])
    assert answer["files"] == {"out/b": base64.b64encode(b"\x00\xff\x00\xff").decode()}


@pytest.mark.parametrize(
    "fields",
    [
        {"code": "", "language": "cobol"},
        {"code": ""},
        {"code": "", "language": "python", "files": {"../x": ""}},
        {"code": "", "language": "python", "fetch_files": ["/etc/passwd"]},
        {"code": "", "language": "python", "run_timeout": -1},
    ],
)
def test_fusion_bad_requests_are_refused_with_a_reason(served, fields):
    status, answer = served.post("/secret-token/run_code", fields)
    assert status == 400
    assert answer["error"]


def test_fusion_needs_the_token_too(served):
    assert served.post("/run_code", {"code": "", "language": "python"})[0] == 401


def submit(served: Served, completion: str, row: dict[str, Any], **config: Any) -> tuple[int, Any]:
    body = {"dataset": "rows", "id": 1, "completion": completion, "config": {"provided_data": row, **config}}
    return served.post("/secret-token/submit", body)


OJ = {
    "test": [
        {"input": {"stdin": "1 2\n"}, "output": {"stdout": "3\n"}},
        {"input": {"stdin": "5 5"}, "output": {"stdout": "10"}},
    ]
}


@pytest.mark.parametrize(
    ("language", "right", "wrong"),
    [
        ("python", "print(sum(map(int, input().split())))", "print(3)"),
        ("bash", "read a b; echo $((a + b))", "echo 3"),
    ],
)
def test_submit_judges_by_output(served, language, right, wrong):
    status, answer = submit(served, f"Here:\n```{language}\n{right}\n```", OJ, language=language)
    assert (status, answer["accepted"], len(answer["tests"])) == (200, True, 2)
    status, answer = submit(served, f"```{language}\n{wrong}\n```", OJ, language=language)
    assert (answer["accepted"], [test["passed"] for test in answer["tests"]]) == (False, [True, False])


def test_submit_judges_by_assertions_in_both_shapes(served):
    right, wrong = "```python\ndef f(x):\n    return x + 1\n```", "```python\ndef f(x):\n    return 2\n```"
    for row in (
        {"test_list": ["assert f(1) == 2", "assert f(5) == 6"]},
        {"test": "assert f(1) == 2\nassert f(5) == 6"},
    ):
        assert submit(served, right, row)[1]["accepted"] is True
        assert submit(served, wrong, row)[1]["accepted"] is False


HUMANEVAL = {
    "prompt": 'from typing import List\n\ndef last(xs: List[int]) -> int:\n    """The last."""\n',
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 2\n",
    "entry_point": "last",
}


@pytest.mark.parametrize(
    ("completion", "accepted"),
    [
        ("    return xs[-1]\n\nprint(last([1]))\nassert False", True),
        ("    return xs[0]", False),
        ("```python\ndef last(xs: List[int]) -> int:\n    return xs[-1]\n```", True),
        (
            "```python\nfrom __future__ import annotations\ndef last(xs: List[int]) -> int:\n    return xs[-1]\n```",
            True,
        ),
        ("```python\ndef last(xs):\n    return None\n```", False),
    ],
    ids=["continues", "continues wrongly", "whole", "from the future", "whole but wrong"],
)
def test_submit_judges_entry_points_with_the_prompts_imports(served, completion, accepted):
    status, answer = submit(served, completion, HUMANEVAL)
    assert (status, answer["accepted"]) == (200, accepted), answer


STDIN_FED = {
    "test": """
import sys
import io
def check(input_values):
    stdin_backup, stdout_backup = sys.stdin, sys.stdout
    sys.stdin = io.StringIO(input_values)
    sys.stdout = io.StringIO()
    solve()
    returns = sys.stdout.getvalue()
    sys.stdin, sys.stdout = stdin_backup, stdout_backup
    return returns

assert check('1 2\\n') == '3\\n'
assert check('4 5\\n') == '9\\n'
"""
}


def test_submit_feeds_a_function_that_reads_standard_input(served):
    right = "def solve():\n    print(sum(map(int, input().split())))"
    assert [submit(served, code, STDIN_FED)[1]["accepted"] for code in (right, "def solve():\n    print(3)")] == [
        True,
        False,
    ]


def test_submit_tells_a_compile_error_and_a_timeout(served):
    answer = submit(served, "```cpp\nint main() { return x; }\n```", OJ, language="cpp")[1]
    info = answer["tests"][0]["exec_info"]
    assert (answer["accepted"], info["run_result"], info["compile_result"]["return_code"]) == (False, None, 1)
    slow = "def f(x):\n    while True: pass"
    answer = submit(served, slow, {"test_list": ["assert f(1) == 2"]}, run_timeout=0.5)[1]
    assert answer["tests"][0]["exec_info"]["run_result"]["status"] == "TimeLimitExceeded"


@pytest.mark.parametrize(
    ("row", "config", "says"),
    [
        ({"test_list": ["assert f("]}, {}, "the tests cannot be used"),
        ({"test_list": ["assert " + "-" * 100_000 + "1 == f()"]}, {}, "nested"),
        ({"test": "[" * 100_000}, {}, "recursion"),
        ({"test": "eJxrYJnqwcgABrVT"}, {}, "in no shape that is known"),
        ({"test_list": ["assert f(1) == 2"]}, {"language": "cpp"}, "assertions are judged in python"),
        (OJ, {"language": "cobol"}, "is none of python, cpp"),
        (OJ, {"run_timeout": -1}, "run_timeout"),
    ],
    ids=["no python", "too deep", "too deep a list", "pickled", "assertions in cpp", "cobol", "negative"],
)
def test_submit_refuses_what_it_cannot_judge_with_a_reason(served, row, config, says):
    status, answer = submit(served, "def f(x):\n    return 2", row, **config)
    assert status == 400
    assert says in answer["error"]


@pytest.mark.parametrize("row", [{}, {"test": []}, {"test": [{"input": {}}]}, {"test": "nothing"}])
def test_submit_refuses_rows_without_tests(served, row):
    status, answer = submit(served, "```python\n1\n```", row)
    assert status == 400
    assert answer["error"]


def test_submit_on_mbpp_rows_of_the_public_samples(served, shared_data):
    lines = shared_data("data/sandboxfusion_samples/code_eval_mbpp.jsonl").read_text().splitlines()
    for line in lines[:5]:
        row = json.loads(line)
        for program, expected in ((row["canonical_solution"], True), ("def none():\n    pass", False)):
            status, answer = submit(served, f"```python\n{program}\n```", row)
            assert (status, answer["accepted"]) == (200, expected), (row["id"], answer)


def sample_rows(shared_data, name: str) -> list[dict[str, Any]]:
    path = shared_data(f"data/sandboxfusion_samples/code_eval_{name}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


TABLE_TENNIS = """
def table_tennis_results(marks: str) -> int:
    won, points = [0, 0], [0, 0]
    for mark in marks:
        points["AB".index(mark)] += 1
        if max(points) >= 11 and abs(points[0] - points[1]) >= 2:
            won["AB".index(mark)] += 1
            points = [0, 0]
    ours, theirs = zip(won, points)
    return (ours > theirs) - (ours < theirs)
"""
SMALLEST_NUMBER = """
digits, given = sorted(input().strip()), input().strip()
first = next((i for i, digit in enumerate(digits) if digit != "0"), 0)
print("OK" if given == digits.pop(first) + "".join(digits) else "WRONG_ANSWER")
"""
SMALLEST_NUMBER_IN_CPP = """
#include <algorithm>
#include <iostream>
#include <string>
int main() {
    std::string digits, given;
    std::cin >> digits >> given;
    std::sort(digits.begin(), digits.end());
    auto first = digits.find_first_not_of('0');
    if (first != std::string::npos) std::swap(digits[0], digits[first]);
    std::cout << (digits == given ? "OK" : "WRONG_ANSWER") << std::endl;
}
"""


def test_submit_on_assertion_rows_of_the_public_samples(served, shared_data):
    mhpp, oj = sample_rows(shared_data, "mhpp"), sample_rows(shared_data, "rl_train_oj_0328_1707")
    right = "import math\ndef integral():\n    return math.pi / 2"
    for row, code in ((mhpp[0], TABLE_TENNIS), (oj[1], right)):
        status, answer = submit(served, code, row)
        assert (status, answer["accepted"]) == (200, True), (row["id"], answer)
    for row in (*mhpp[:4], *oj[:10]):
        status, answer = submit(served, "def solve(*_):\n    return None", row)
        assert (status, answer.get("accepted")) == (200, False), (row["id"], answer)


def test_submit_on_a_contest_row_of_the_public_samples(served, shared_data):
    row = sample_rows(shared_data, "code_contests")[17]
    cases = len(json.loads(row["test"]))
    for language, code in (("python", SMALLEST_NUMBER), ("cpp", SMALLEST_NUMBER_IN_CPP)):
        status, answer = submit(served, f"```{language}\n{code}```", row, language=language)
        assert (status, answer["accepted"], len(answer["tests"])) == (200, True, cases), answer["tests"][-1]
    assert submit(served, "print('OK')", row)[1]["accepted"] is False


def test_submit_on_humaneval_as_continuations_and_as_whole_programs(served, shared_data):
    with gzip.open(shared_data("data/humaneval/HumanEval.jsonl.gz"), "rt") as lines:
        rows = [json.loads(line) for line in lines]
    for row in (rows[0], rows[32], rows[38], rows[100]):  # 32 and 38 use a helper that the prompt defines
        solution = row["canonical_solution"]
        whole = row["prompt"].rpartition(f"def {row['entry_point']}")
        for completion in (solution, f"```python\n{whole[1]}{whole[2]}{solution}\n```"):
            status, answer = submit(served, completion, row)
            assert (status, answer["accepted"]) == (200, True), (row["task_id"], answer)
        assert submit(served, "    return None\n", row)[1]["accepted"] is False
