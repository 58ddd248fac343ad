"""The code verdict: honest programs pass, and everything people try instead does not.

Attack numbers are of the list of public reward hacks in the project's field notes.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rewards.code_tests import AssertTests, CallTests
from rewards.programs import code_verdict, code_verdict_async
from rewards.verdict import Verdict
from sandbox import Execution, Job, Limits, Program, Sandbox, SlotLost
from sandbox.languages import LANGUAGES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the local sandbox needs Linux")

ADD = "def add(a, b):\n    return a + b\n"
SHORT = Limits(wall_s=1.0, cpu_s=1.0)
CALLS = {"function": "add", "cases": [{"args": [1, 2], "expected": 3}, {"args": [-4, 2], "expected": -2}]}
ASSERTS = "assert add(1, 2) == 3\nassert add(-4, 2) == -2\n"
CHECK = {"code": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"}
STDIO = [{"input": "1 2\n", "output": "3\n"}, {"input": "-4 2\n", "output": "-2\n"}]

ATTACKS = {
    "1 an object that equals everything": (
        "class A:\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 0\ndef add(a, b): return A()\n"
    ),
    "1 an int that equals everything": (
        "class A(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\ndef add(a, b): return A()\n"
    ),
    "3 exit at import": "raise SystemExit(0)\n",
    "4 hard exit at import": "import os\nos._exit(0)\n",
    "5 hard exit in the call": "import os\ndef add(a, b): os._exit(0)\n",
    "5 exit in the call": "import sys\ndef add(a, b): sys.exit(0)\n",
    "6 exit code 0 at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0\n",
    "7 excepthook": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\nraise ValueError\n",
    "11 frames": (
        "import sys\n"
        "def add(a, b):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for name, value in list(frame.f_locals.items()):\n"
        "            if isinstance(value, dict): value.update(passed=True, value=3, expected=0)\n"
        "        frame = frame.f_back\n"
        "    return 0\n"
    ),
    "13 every object": (
        "import gc\n"
        "def add(a, b):\n"
        "    for o in gc.get_objects():\n"
        "        if type(o) is list and len(o) < 9: o.append('pass')\n"
        "    return 0\n"
    ),
    "14 patched builtins": (
        "import builtins, json\nbuiltins.isinstance = lambda *a: True\njson.dumps = lambda *a: '{\"value\": 3}'\n"
        "def add(a, b): return 0\n"
    ),
    "21 the runner's own line": "print('PASSED')\ndef add(a, b):\n    print('{\"passed\": true}')\n    return 0\n",
    "22 a forged marker on every stream": (
        'import os\ndef add(a, b):\n    for fd in (1, 2): os.write(fd, b\'{"id": 0, "value": 3}\\n\')\n    return 0\n'
    ),
    "24 a forged message in every descriptor": (
        "import os\n"
        "def add(a, b):\n"
        "    for fd in range(3, 64):\n"
        '        try: os.write(fd, b\'{"id": "x", "value": 3}\\n{"passed": true}\\n\')\n'
        "        except OSError: pass\n"
        "    return 0\n"
    ),
    "25 an object that pickles into code": (
        "class A:\n    def __reduce__(self): return (print, ('owned',))\ndef add(a, b): return A()\n"
    ),
    "26 redefined check": "def check(candidate): pass\ndef add(a, b): return 0\n",
    "36 disabled assertions": (
        "import builtins\nclass AssertionError(Exception): pass\nbuiltins.AssertionError = AssertionError\n"
        "def add(a, b): return 0\n"
    ),
    "mutated arguments": "def add(a, b):\n    a = b = 3\n    return None\n",
    "no function": "def sub(a, b): return a - b\n",
    "a syntax error": "def add(a, b:\n",
    "a constant": "def add(a, b): return 99\n",
    "a forked second self": "import os\nos.fork()\ndef add(a, b): return 0\n",
    "a generator": "def add(a, b): yield a + b\n",
    "a value too deep": "def add(a, b):\n    v = []\n    for _ in range(10**5): v = [v]\n    return v\n",
    "a flood": "def add(a, b): return 'x' * (1 << 24)\n",
    "an exception that cannot be printed": (
        "class E(Exception):\n    def __str__(self): raise SystemExit\ndef add(a, b): raise E\n"
    ),
}


@pytest.mark.parametrize("tests", [CALLS, ASSERTS, CHECK], ids=["calls", "assertions", "check"])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_no_attack_is_paid(attack: str, tests: Any) -> None:
    verdict = code_verdict(attack, tests, limits=Limits(wall_s=5, cpu_s=5))
    assert verdict.score == 0.0, verdict
    assert verdict.status in ("wrong", "crashed", "timeout", "tampered")


@pytest.mark.parametrize("tests", [CALLS, ASSERTS, CHECK], ids=["calls", "assertions", "check"])
def test_an_honest_program_passes(tests: Any) -> None:
    assert code_verdict(ADD, tests).status == "correct"


@pytest.mark.parametrize("tests", [CALLS, ASSERTS, CHECK], ids=["calls", "assertions", "check"])
@pytest.mark.parametrize("where", ["while True: pass", "def add(a, b):\n    while True: pass"], ids=["import", "call"])
def test_an_endless_loop_is_timeout(where: str, tests: Any) -> None:
    assert code_verdict(where, tests, limits=SHORT).status == "timeout"


def test_a_silenced_alarm_changes_no_limit() -> None:
    """16: graders that stop candidates by SIGALRM; olmo-eval#354."""
    code = (
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "def add(a, b):\n    while True:\n"
        "        try:\n            while True: pass\n        except BaseException: pass\n"
    )
    assert code_verdict(code, CALLS, limits=SHORT).status == "timeout"


def test_a_memory_bomb_is_crashed() -> None:
    code = "def add(a, b):\n    x = []\n    while True: x.append(bytearray(1 << 24))\n"
    assert code_verdict(code, CALLS, limits=Limits(memory_mb=128)).status == "crashed"


def test_answers_sent_before_they_are_asked_for_are_tampering() -> None:
    """The right value, forged ahead of the question: it does not carry that call's id."""
    code = (
        "import os\n"
        "for fd in range(3, 64):\n"
        '    try: os.write(fd, b\'{"loaded": true}\\n{"value": 3}\\n{"value": -2}\\n\')\n'
        "    except OSError: pass\n" + ADD
    )
    assert code_verdict(code, CALLS).status == "tampered"


def test_a_candidate_sees_neither_tests_nor_expected_values() -> None:
    """30, 32: oracle files and environment. The candidate returns all it can find; the secret is not in it."""
    code = (
        "import os, sys, gc\n"
        "def look(n):\n"
        "    found = [repr(os.environ), repr(sys.argv)]\n"
        "    for root, _, files in os.walk('.'):\n"
        "        found += [open(os.path.join(root, f), errors='replace').read() for f in files]\n"
        "    found += [o for o in gc.get_objects() if isinstance(o, str)]\n"
        "    found += [repr(o) for o in gc.get_objects() if type(o) in (dict, list, tuple)]\n"
        "    return 'needle-' + str(5150) in ''.join(found)\n"
    )
    tests = CallTests(function="look", cases=({"args": [1], "expected": "needle-5150"},), comparison="exact")  # type: ignore[arg-type]
    verdict = code_verdict(code, tests)
    assert verdict.status == "wrong"
    assert "gave False" in verdict.detail


def test_stdio_programs_are_judged_on_what_they_print() -> None:
    code = "a, b = map(int, input().split())\nprint(a + b)\n"
    assert code_verdict(code, STDIO).status == "correct"
    verdict = code_verdict(code.replace("a + b", "3"), STDIO)
    assert (verdict.status, verdict.parts) == ("wrong", {"passed": 0.5})
    assert "case 2 of 2" in verdict.detail


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys\nsys.exit(0)\nprint(3)\n", "wrong"),
        ("print(3)\nraise ValueError('late')\n", "crashed"),
        ("while True: pass\n", "timeout"),
        ("import os\nos.kill(os.getpid(), 9)\n", "crashed"),
    ],
)
def test_an_exit_code_proves_nothing_and_a_crash_is_no_pass(code: str, status: str) -> None:
    """verl#7853: a wrapper caught the exception, exited 0, and empty expected output was a pass."""
    assert code_verdict(code, STDIO, limits=SHORT).status == status


def test_the_share_of_passed_cases_is_a_part_and_not_the_score() -> None:
    """verl sandbox_fusion's score was the pass fraction even when not asked for."""
    verdict = code_verdict("def add(a, b): return 3\n", CALLS)
    assert (verdict.status, verdict.score, verdict.parts) == ("wrong", 0.0, {"passed": 0.5})
    assert "case 2 of 2: add of [-4, 2] gave 3, not -2" in verdict.detail


@pytest.mark.parametrize(
    "tests",
    [
        [],
        {"function": "f", "cases": []},
        "",
        "x = add(1, 2)\n",
        {"code": "def check(candidate): pass"},
        None,
        5,
        {"function": "f"},
        {"function": "f", "cases": [{"args": [1], "expected": len}]},
        "assert add(1, 2) == \n",
        "assert True\n",
        {"code": ASSERTS, "setup": "raise ValueError"},
    ],
)
def test_no_usable_tests_is_no_verdict(tests: Any) -> None:
    """olmo-eval#354: zero or undecodable tests scored 1.0. Gym#2142: all([]) is True."""
    assert code_verdict(ADD, tests).status == "unscored"


@pytest.mark.parametrize("code", ["#" * (1 << 21), "x = '\ud800'", "\0"], ids=["huge", "no Unicode", "null byte"])
@pytest.mark.parametrize("tests", [CALLS, ASSERTS, STDIO], ids=["calls", "assertions", "stdio"])
def test_no_text_of_a_program_makes_itself_unscored(code: str, tests: Any) -> None:
    verdict = code_verdict(code, tests)
    assert (verdict.status in ("unparsed", "crashed", "wrong"), verdict.score) == (True, 0.0)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ({"func": "f"}, "tests with the keys 'func'; give function and cases, cases alone, or code with assertions"),
        (
            {"function": "f", "cases": [{"input": 1}]},
            "cases.0.input: extra inputs are not permitted; CallCase has args, kwargs, expected",
        ),
        ([{"input": "1"}], "cases.0.output: field required; StdioCase has input, output"),
        ({"function": "f"}, "cases: field required; CallTests has function, cases, comparison"),
        (
            {"cases": (), "checker": "checker"},
            'StdioTests: checker_code goes with the choice of comparison or checker "',
        ),
    ],
)
def test_wrong_tests_are_told_in_one_line_with_what_is_right(tests: Any, message: str) -> None:
    verdict = code_verdict("def f(x): return x", tests)
    assert verdict.status == "unscored"
    assert verdict.detail.startswith(f"the tests cannot be used: {message}")
    assert "\n" not in verdict.detail
    assert "http" not in verdict.detail


@pytest.mark.parametrize("code", [None, 3, b"def f(x): return x"])
def test_a_program_that_is_no_text_is_unparsed(code: Any) -> None:
    assert code_verdict(code, "assert f(1) == 1").status == "unparsed"


def test_values_too_large_to_print_are_still_judged() -> None:
    tests = {"function": "f", "cases": [{"args": [], "expected": 2**20000}]}
    assert code_verdict("def f(): return 2**20000", tests).status == "correct"
    assert code_verdict("def f(): return 2**20000 + 1", tests).status == "wrong"


@pytest.mark.parametrize("depth", [100, 300, 900, 2000, 100_000])
@pytest.mark.parametrize("tests", [CALLS, ASSERTS], ids=["calls", "assertions"])
def test_a_forged_answer_nested_at_any_depth_is_judged(depth: int, tests: Any) -> None:
    code = (
        "import json, sys\n"
        "def add(a, b):\n"
        "    frame = sys._getframe(1)\n"
        "    call = frame.f_locals['call']\n"
        f"    deep = '[' * {depth} + ']' * {depth}\n"
        "    line = json.dumps({'id': call['id'], 'value': 0}).replace('0}', deep + '}')\n"
        "    frame.f_locals['answers'].write(line.encode() + b'\\n')\n"
        "    frame.f_locals['answers'].flush()\n"
    )
    verdict = code_verdict(code, tests)
    assert (verdict.status in ("wrong", "tampered", "crashed"), verdict.score) == (True, 0.0)


def test_a_checker_that_ends_without_its_proof_has_not_passed() -> None:
    """Only a message that holds the nonce is a pass, not every message that is no failure."""
    forged = (
        "import sys\n"
        "add(1, 2)\n"
        "frame = sys._getframe()\n"
        "while 'answers' not in frame.f_locals: frame = frame.f_back\n"
        "frame.f_locals['answers'].write(b'{}\\n')\n"
        "frame.f_locals['answers'].flush()\n"
        "assert add(1, 2) == 4\n"
    )
    assert code_verdict(ADD, forged).status == "tampered"


class LostSandbox(Sandbox):
    """A sandbox whose slots are lost under every job."""

    def run_sync(self, program: Program) -> Execution:
        return Execution(status="unavailable", error="slot lost")


def test_a_lost_sandbox_is_unscored() -> None:
    """cookbook, NeMo-RL: an infrastructure failure is neither 0 nor 1."""
    with LostSandbox(slots=1) as sandbox:
        assert code_verdict("print(3)", STDIO, sandbox=sandbox).status == "unscored"


@pytest.mark.parametrize("tests", [CALLS, ASSERTS, CHECK, STDIO], ids=["calls", "assertions", "check", "stdio"])
def test_a_machine_too_full_for_a_slot_is_unscored_and_does_not_raise(
    tests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_slot(name: str, flavour: str) -> None:
        raise SlotLost("the machine is full")

    monkeypatch.setattr("sandbox.local.Slot", no_slot)
    with Sandbox(slots=1) as sandbox:
        verdict = code_verdict(ADD, tests, sandbox=sandbox)
    assert verdict.status == "unscored"
    assert "the machine is full" in verdict.detail


class SlotKiller(Sandbox):
    """A sandbox that loses the slots of the first `times` conversations."""

    def __init__(self, times: int) -> None:
        super().__init__(slots=1)
        self.times = times

    def open(self, program: Program) -> Job:
        job = super().open(program)
        if self.times > 0:
            self.times -= 1
            job._slot.kill()
        return job


@pytest.mark.parametrize("tests", [CALLS, ASSERTS], ids=["calls", "assertions"])
def test_a_slot_lost_once_costs_nobody_a_score(tests: Any) -> None:
    with SlotKiller(times=1) as sandbox:
        assert code_verdict(ADD, tests, sandbox=sandbox).status == "correct"


@pytest.mark.parametrize("tests", [CALLS, ASSERTS], ids=["calls", "assertions"])
def test_a_slot_lost_twice_where_a_good_program_runs_is_the_programs_doing(tests: Any) -> None:
    """Else a policy learns to end the sandbox instead of answering."""
    with SlotKiller(times=2) as sandbox:
        assert code_verdict(ADD, tests, sandbox=sandbox).status == "crashed"


@pytest.mark.parametrize(
    ("code", "function", "args", "expected"),
    [
        ("def f(): return {(1, 2): {3}, 'b': b'x'}", "f", [], {(1, 2): {3}, "b": b"x"}),
        ("def f(xs): xs.append(4); return xs", "f", [[1]], [1, 4]),
        ("class Solution:\n    def f(self, n): return n * 2", "f", [4], 8),
        ("def f(n): return 2 ** n", "f", [5000], 2**5000),
        ("def f(s): return s.count('\\n')", "f", ["a\nb\nc"], 2),
        ("import math\ndef f(n):\n    return g(n)\ndef g(n): return math.isqrt(n)\n", "f", [49], 7),
        ("if __name__ == '__main__':\n    input()\ndef f(n): return n", "f", [1], 1),
    ],
)
def test_values_of_plain_types_come_back_as_they_are(code: str, function: str, args: list[Any], expected: Any) -> None:
    assert (
        code_verdict(code, {"function": function, "cases": [{"args": args, "expected": expected}]}).status == "correct"
    )


def test_a_checker_of_the_task_decides_where_many_answers_are_right() -> None:
    checker = "def check(args, value, expected):\n    return len(value) == 2 and value[0] * value[1] == args[0]\n"
    tests = CallTests(
        function="f",
        cases=({"args": [12], "expected": None},),  # type: ignore[arg-type]
        comparison="checker",
        checker_code=checker,
    )
    assert code_verdict("def f(n): return [n, 1]", tests).status == "correct"
    assert code_verdict("def f(n): return [n, 2]", tests).status == "wrong"
    assert code_verdict("def f(n): return 'not a pair'", tests).status == "wrong"


def test_tests_that_expect_an_exception_get_it() -> None:
    tests = "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError\n"
    assert code_verdict("def f(n):\n    if n < 0: raise ValueError('no')\n", tests).status == "correct"
    assert code_verdict("def f(n): return n", tests).status == "wrong"


@pytest.mark.parametrize("kind", ["StopIteration", "StopAsyncIteration"])
@pytest.mark.parametrize(
    "loop",
    [
        "for y, z in zip(map(f, [1, 2]), [2, 3]): assert y == z",
        "assert all(map(f, [1, 2]))",
        "[*map(f, [1])]; assert 1",
    ],
)
def test_no_exception_of_the_program_ends_a_loop_of_the_tests(loop: str, kind: str) -> None:
    """26: a StopIteration out of `map` ends the loop around it, and nothing was asserted."""
    tests = {"code": f"def check(f):\n    {loop}\n", "entry_point": "f"}
    assert code_verdict(f"def f(x): raise {kind}", tests).status == "wrong"
    assert code_verdict("def f(x): return x + 1", tests).status == "correct"


def test_of_a_value_that_cannot_cross_only_its_truth_does() -> None:
    """MBPP/737 asserts that a re.Match is true."""
    code = "import re\ndef f(s): return re.match('a', s)\n"
    assert code_verdict(code, "assert f('ab')\nassert not f('b')\n").status == "correct"
    assert code_verdict(code, "assert f('ab') == True\n").status == "wrong"


async def test_it_works_inside_a_running_loop_and_many_at_once() -> None:
    assert code_verdict(ADD, CALLS).status == "correct"
    verdicts = await asyncio.gather(*(code_verdict_async(ADD, tests) for tests in (CALLS, ASSERTS, CHECK) * 4))
    assert {verdict.status for verdict in verdicts} == {"correct"}


def test_all_humaneval_solutions_pass_and_none_that_returns_none(shared_data: Callable[[str], Path]) -> None:
    """164 suites with helpers, random inputs and a relay of every call."""
    with gzip.open(shared_data("data/humaneval/HumanEval.jsonl.gz"), "rt") as rows:
        tasks = [json.loads(row) for row in rows]

    def verdicts(task: dict[str, str]) -> tuple[Verdict, Verdict]:
        tests = AssertTests(code=task["test"], entry_point=task["entry_point"], setup=task["prompt"])
        solved, empty = task["prompt"] + task["canonical_solution"], task["prompt"] + "    return None\n"
        return code_verdict(solved, tests), code_verdict(empty, tests)

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(verdicts, tasks))
    assert [task["task_id"] for task, (solved, _) in zip(tasks, found, strict=True) if solved.status != "correct"] == []
    assert [task["task_id"] for task, (_, empty) in zip(tasks, found, strict=True) if empty.status != "wrong"] == []
    assert len(found) == 164


DOUBLED = {
    "python": "print(int(input()) * 2)",
    "c": '#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d\\n", n * 2); }',
    "cpp": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * 2; }",
    "bash": "read n; echo $((n * 2))",
    "javascript": "console.log(parseInt(require('fs').readFileSync(0)) * 2)",
}
DOUBLES = [{"input": "4\n", "output": "8\n"}, {"input": "-3\n", "output": "-6\n"}]


@pytest.mark.parametrize("language", DOUBLED)
def test_programs_of_every_language_are_judged_by_what_they_print(language: str) -> None:
    code = DOUBLED[language]
    assert code_verdict(code, DOUBLES, language=language).status == "correct"
    assert code_verdict(code.replace("* 2", "* 3"), DOUBLES, language=language).status == "wrong"


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_a_program_that_does_not_compile_is_crashed_and_says_why(language: str) -> None:
    verdict = code_verdict("int main() { return x; }", DOUBLES, language=language)
    assert verdict.status == "crashed"
    assert "does not compile" in verdict.detail
    assert "'x'" in verdict.detail.replace("\u2018", "'").replace("\u2019", "'")


def test_a_language_that_is_none_or_can_not_be_called_into_is_unscored() -> None:
    assert "none of python" in code_verdict("", DOUBLES, language="cobol").detail
    verdict = code_verdict("int f() { return 1; }", "assert f() == 1", language="c")
    assert (verdict.status, "in Python only" in verdict.detail) == ("unscored", True)


def test_a_command_that_the_sandbox_lacks_is_not_the_programs_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = LANGUAGES["bash"].model_copy(update={"run": ("no-such-shell", "main.sh")})
    monkeypatch.setitem(LANGUAGES, "bash", missing)
    assert code_verdict("echo 8", DOUBLES, language="bash").status == "unscored"
    monkeypatch.undo()
    assert code_verdict("exit 127", DOUBLES, language="bash").status == "crashed"


def test_a_program_may_name_its_function_like_a_builtin() -> None:
    """MBPP/126: a `sum` of common divisors. The built-in would pass or fail by itself."""
    tests = ["assert sum(10, 15) == 6", "assert sum(100, 150) == 93"]
    good = "import builtins\ndef sum(a, b):\n    return builtins.sum(n for n in range(1, b) if a % n == b % n == 0)"
    assert code_verdict(good, tests).status == "correct"
    assert code_verdict("def sum(a, b): return 6", tests).status == "wrong"
    assert code_verdict("x = 1", tests).status == "wrong"


def test_a_builtin_that_the_tests_use_stays_theirs() -> None:
    tests = ["assert len(f(3)) == 3", "assert len(f(4)) == 4"]
    assert code_verdict("def f(n): return [0] * n", tests).status == "correct"
    cheat = "class A(list): pass\ndef f(n): return n\ndef len(n): return n"
    assert code_verdict(cheat, tests).status == "wrong"


def test_standard_modules_that_assertions_use_are_imported_for_them() -> None:
    """MBPP/596 compares with `sys.getsizeof` and imports it in the solution only."""
    assert code_verdict("def f(): return 4", ["assert f() == math.sqrt(16)"]).status == "correct"
    assert code_verdict("def f(): return 4", ["assert f() == maths.sqrt(16)"]).status == "wrong"


def test_every_solution_of_mbpp_passes_its_assertions(shared_data: Callable[[str], Path]) -> None:
    rows = json.loads(shared_data("data/mbpp/sanitized-mbpp.json").read_text())

    def judged(row: dict[str, Any]) -> Verdict:
        tests = {"code": "\n".join(row["test_list"]), "setup": "\n".join(row["test_imports"])}
        return code_verdict(row["code"], tests, limits=Limits(wall_s=60, cpu_s=60))

    with ThreadPoolExecutor(2) as threads:
        verdicts = list(threads.map(judged, rows))
    assert [(row["task_id"], v) for row, v in zip(rows, verdicts, strict=True) if v.status != "correct"] == []
    assert len(rows) == 427


def test_all_cases_together_have_a_limit_of_their_own() -> None:
    code = "import time\nn = int(input())\ntime.sleep(0.4)\nprint(n * 2)"
    cases = [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in range(5)]
    assert code_verdict(code, cases).status == "correct"
    verdict = code_verdict(code, cases, total_s=1.0)
    assert verdict.status == "timeout"
    assert 0 < verdict.parts["passed"] < 1
    endless = "def add(a, b):\n    while True: pass"
    assert code_verdict(endless, CALLS, total_s=0.5).status == "timeout"
    for total_s in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="total_s"):
            code_verdict(code, cases, total_s=total_s)
