"""SandboxFusion's `/run_code` and `/submit`, as a trainer that switched its URL meets them."""

from __future__ import annotations

import base64
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.veriward.served import TOKEN, Served, serving, token_in


def run_code(served: Served, access: str = f"/{TOKEN}", /, **fields: Any) -> dict[str, Any]:
    status, answer = served.ask(f"{access}/run_code", fields)
    assert status == 200, answer
    return answer


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
    status, answer = served.ask(f"/{TOKEN}/run_code", fields)
    assert status == 400
    assert answer["error"]


def test_without_a_token_everybody_is_admitted_whatever_the_environment_holds():
    with serving("--no-auth", VERIWARD_SANDBOX_TOKEN=TOKEN) as server:
        assert run_code(server, "", code="print(1)", language="python")["status"] == "Success"


def test_fusion_needs_the_token_too(served):
    assert served.ask("/run_code", {"code": "", "language": "python"})[0] == served.ask("/v1/ping")[0] == 401
    assert served.ask(f"/{TOKEN}/v1/ping") == (200, "pong")


def submit(served: Served, completion: str, row: dict[str, Any], **config: Any) -> tuple[int, Any]:
    body = {"dataset": "rows", "id": 1, "completion": completion, "config": {"provided_data": row, **config}}
    return served.ask(f"/{TOKEN}/submit", body)


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


def test_submit_waits_its_turn_in_the_servers_queue(tmp_path):
    """Assertions are no single program; beside the queue, a full server would still take them."""
    endless, row = "def f(x):\n    while True: pass", {"test_list": ["assert f(1) == 2"]}
    arguments = ("--slots", "1", "--queue", "0", "--token-file", token_in(tmp_path))
    with serving(*arguments) as server, ThreadPoolExecutor(1) as other:
        first = other.submit(submit, server, endless, row, run_timeout=4)
        while not server.ask("/health")[1]["running"]:
            assert not first.done()
        assert submit(server, endless, row)[0] == 429
        assert first.result()[1]["accepted"] is False
