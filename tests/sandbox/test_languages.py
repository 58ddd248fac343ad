"""Every language runs, compiles apart from its run, takes files in and gives files back."""

from __future__ import annotations

import shutil

import pytest
from pydantic import ValidationError

from sandbox import Limits, Program, Sandbox
from sandbox.errors import ConfigError
from sandbox.languages import Language

pytestmark = pytest.mark.backends("local", "remote", "docker")

_SUMS = {
    "python": "import sys\nprint(sum(map(int, sys.stdin.read().split())), sys.argv[1])",
    "c": "#include <stdio.h>\n#include <stdlib.h>\nint main(int n, char **v) { char t[9], u[9]; "
    'scanf("%8s %8s", t, u); printf("%d %s\\n", atoi(t) + atoi(u), v[1]); }',
    "cpp": "#include <bits/stdc++.h>\nint main(int n, char **v) { int a, b; std::cin >> a >> b; "
    'std::cout << a + b << " " << v[1] << "\\n"; }',
    "bash": 'read a b; echo "$((a + b)) $1"',
    "javascript": "const t = require('fs').readFileSync(0, 'utf8').trim().split(/\\s+/).map(Number);\n"
    "console.log(t[0] + t[1], process.argv[2])",
}
_TOOLS = {"python": "python3", "c": "gcc", "cpp": "g++", "bash": "bash", "javascript": "node"}
_SCI = "import numpy, sympy\nprint(numpy.arange(5).sum(), sympy.factor('x**2 - 1'))"


def needs(language: str) -> None:
    if shutil.which(_TOOLS[language]) is None:
        pytest.skip(f"{_TOOLS[language]} is not installed here")


@pytest.mark.parametrize("language", _SUMS)
def test_every_language_reads_its_input_and_arguments_under_default_limits(box: Sandbox, language):
    needs(language)
    execution = box.run_sync(Program(language=language, code=_SUMS[language], stdin=b"19 23\n", argv=("ok",)))
    assert (execution.status, execution.exit_code, execution.stdout) == ("finished", 0, b"42 ok\n"), execution
    assert (execution.compile is not None) == (language in ("c", "cpp"))


def test_any_other_language_by_its_command(box: Sandbox):
    awk = Language(file="main.awk", run=("awk", "-f", "main.awk"))
    execution = box.run_sync(Program(language=awk, code="{ print $1 * 2 }", stdin=b"21\n"))
    assert execution.stdout == b"42\n"


def test_a_declared_compile_step_may_leave_many_files(box: Sandbox):
    copied = Language(
        file="main.txt", compile=("bash", "-c", "mkdir -p a/b; echo cat main.txt > a/b/run"), run=("bash", "a/b/run")
    )
    execution = box.run_sync(Program(language=copied, code="whole text"))
    assert (execution.stdout, execution.compile.exit_code) == (b"whole text", 0)


@pytest.mark.parametrize(
    ("body", "number"),
    [("abort();", 6), ("*(volatile int *)0 = 1;", 11), ("raise(15);", 15)],
    ids=["abort", "segfault", "term"],
)
def test_the_signal_that_ended_a_native_program_is_told_exactly(box: Sandbox, body, number):
    needs("c")
    code = "#include <stdlib.h>\n#include <signal.h>\nint main() { " + body + " return 0; }"
    execution = box.run_sync(Program(language="c", code=code))
    assert (execution.status, execution.exit_code, execution.signal) == ("finished", None, number)


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_exit_codes_come_back_as_they_are(box: Sandbox, code):
    assert box.run_sync(Program(language="bash", code=f"exit {code}")).exit_code == code


def test_a_missing_command_ends_as_in_a_shell(box: Sandbox):
    execution = box.run_sync(Program(language=Language(file="m", run=("no-such-tool",)), code=""))
    assert (execution.status, execution.exit_code) == ("finished", 127)
    assert execution.stderr == b"no-such-tool: command not found\n"


# --- compiling


def test_a_program_that_does_not_compile_never_runs(box: Sandbox):
    needs("cpp")
    execution = box.run_sync(Program(language="cpp", code="int main() { return x; }"))
    assert (execution.status, execution.exit_code, execution.stdout) == ("not_compiled", None, b"")
    assert execution.compile.exit_code == 1
    assert b"was not declared" in execution.compile.stderr


def test_a_compile_ends_by_its_own_limits(box: Sandbox):
    """Macros that double thirty times are a billion words to a preprocessor."""
    needs("c")
    bomb = "#define A0 x x\n" + "".join(f"#define A{n + 1} A{n} A{n}\n" for n in range(30)) + "A30\n"
    limits = Limits(wall_s=1, cpu_s=20, memory_mb=1024, disk_mb=64)
    execution = box.run_sync(Program(language="c", code=bomb, compile_limits=limits))
    assert (execution.status, execution.compile.status) == ("not_compiled", "timeout")
    assert execution.compile.limit == "wall"


def test_equal_content_is_compiled_once(box: Sandbox):
    """`date` in the compile step differs on every run, so equal output means it ran once."""
    stamped = Language(file="m", compile=("bash", "-c", "od -An -N8 -tx8 /dev/urandom > stamp"), run=("cat", "stamp"))
    first, second, other = (
        box.run_sync(Program(language=stamped, code=code)).stdout for code in ("same", "same", "different")
    )
    assert first == second != other


def test_a_failed_compile_is_tried_again(box: Sandbox):
    flaky = Language(file="m", compile=("bash", "-c", "od -An -N8 -tx8 /dev/urandom >&2; exit 1"), run=("true",))
    first, second = (box.run_sync(Program(language=flaky, code="")).compile.stderr for _ in range(2))
    assert first != second


def test_what_a_compile_leaves_must_fit_the_disk_of_the_run(box: Sandbox):
    big = Language(file="m", compile=("bash", "-c", "head -c 3000000 /dev/zero > out"), run=("true",))
    execution = box.run_sync(Program(language=big, code="", limits=Limits(disk_mb=2, file_size_mb=1)))
    assert execution.status == "not_compiled"
    assert "disk_mb" in execution.error
    many = Language(file="m", compile=("bash", "-c", "for n in {1..100}; do : > f$n; done"), run=("true",))
    execution = box.run_sync(Program(language=many, code="", limits=Limits(disk_inodes=64)))
    assert execution.status == "not_compiled"
    assert "disk_inodes" in execution.error


def test_a_command_without_a_program_is_refused():
    for command in ((), ("",), ("", "x")):
        with pytest.raises(ValidationError, match=r"first word|at least 1"):
            Language(file="m", run=command)


# --- files


def test_files_go_in_and_come_back(box: Sandbox):
    code = "import os\nos.makedirs('out/deep')\nopen('out/deep/b', 'wb').write(open('a/in', 'rb').read()[::-1])"
    program = Program(code=code, files={"a/in": bytes(range(256))}, fetch=("out/deep/b", "a/in", "not there"))
    execution = box.run_sync(program)
    assert execution.files == {"out/deep/b": bytes(range(256))[::-1], "a/in": bytes(range(256))}


@pytest.mark.parametrize(
    "make",
    [
        "os.symlink('/etc/passwd', 'x')",
        "os.symlink('real', 'x')",
        "os.mkfifo('x')",
        "os.mkdir('x')",
        "import socket; socket.socket(socket.AF_UNIX).bind('x')",
        "os.mkdir('y'); os.rename('y', '../y'); os.symlink('../y', 'x')",
    ],
    ids=["link out", "link inside", "fifo", "folder", "socket", "link to a sibling"],
)
def test_only_regular_files_are_fetched(box: Sandbox, make):
    execution = box.run_sync(Program(code=f"import os\nopen('real', 'w').write('r')\n{make}", fetch=("x", "real")))
    assert execution.status == "finished", execution
    assert execution.files == {"real": b"r"}


def test_a_link_in_the_middle_of_a_path_is_not_followed(box: Sandbox):
    execution = box.run_sync(Program(code="import os; os.symlink('/usr', 'u')", fetch=("u/bin/env",)))
    assert execution.files == {}


def test_a_file_that_a_surviving_child_still_writes_is_fetched_whole_and_once(box: Sandbox):
    code = "import os\nf = open('f', 'w')\nf.write('first'); f.flush()\nif os.fork() == 0:\n    while True: pass"
    assert box.run_sync(Program(code=code, fetch=("f",))).files == {"f": b"first"}


def test_a_sparse_file_longer_than_the_disk_is_not_read(box: Sandbox):
    code = "f = open('f', 'w'); f.truncate(12 << 20)"
    limits = Limits(disk_mb=4, file_size_mb=16)
    assert box.run_sync(Program(code=code, fetch=("f",), limits=limits)).files == {}


def test_files_of_a_killed_program_come_back_too(box: Sandbox):
    code = "open('f', 'w').write('so far')\nwhile True: pass"
    execution = box.run_sync(Program(code=code, fetch=("f",), limits=Limits(wall_s=0.3)))
    assert (execution.status, execution.files) == ("timeout", {"f": b"so far"})


# --- flavours


@pytest.mark.parametrize("mode", ["fast", "fresh"])
def test_the_sci_flavour_has_numpy_and_sympy_and_no_other_package(box: Sandbox, mode):
    pytest.importorskip("numpy")
    execution = box.run_sync(Program(code=_SCI, flavour="sci", mode=mode))
    assert execution.stdout == b"10 (x - 1)*(x + 1)\n", execution.stderr
    other = box.run_sync(Program(code="import pydantic", flavour="sci", mode=mode))
    assert b"ModuleNotFoundError" in other.stderr


@pytest.mark.parametrize("flavour", ["slim", "sci"])
def test_no_two_jobs_draw_the_same_random_numbers(box: Sandbox, flavour):
    """All are forks of one interpreter, whose generators were seeded once."""
    pytest.importorskip("numpy")
    draw = "import random\nprint(random.random())" + "\nimport numpy\nprint(numpy.random.rand())" * (flavour == "sci")
    drawn = [box.run_sync(Program(code=draw, flavour=flavour)).stdout.split() for _ in range(4)]
    assert len({number for numbers in drawn for number in numbers}) == (8 if flavour == "sci" else 4), drawn


def test_a_program_finds_nothing_of_the_sandbox_imported(box: Sandbox):
    code = "import sys\nprint([name for name in sys.modules if 'sandbox' in name])"
    assert box.run_sync(Program(code=code)).stdout == b"[]\n"


def test_the_slim_flavour_has_the_standard_library_alone(box: Sandbox):
    assert b"ModuleNotFoundError" in box.run_sync(Program(code="import numpy")).stderr


def test_a_flavour_that_is_not_installed_is_a_plain_error(monkeypatch):
    import importlib.util

    known = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sympy" else known(name))
    with Sandbox(slots=1) as one, pytest.raises(ConfigError, match="sympy is not installed"):
        one.run_sync(Program(code="1", flavour="sci"))


@pytest.mark.backends("local")
def test_idle_slots_of_an_unused_flavour_make_room(box: Sandbox):
    pytest.importorskip("numpy")
    for _ in range(3):
        for flavour in ("slim", "sci"):
            assert box.run_sync(Program(code="print(1)", flavour=flavour)).stdout == b"1\n"
    assert len(box._idle) <= 2 * box.slots
