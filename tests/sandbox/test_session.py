"""Sessions keep their state, survive what a cell does, and bound each cell on its own."""

from __future__ import annotations

import asyncio

import pytest

from sandbox import Limits, Sandbox
from sandbox.errors import ConfigError
from tests.sandbox.conftest import jobs, shares_root

TIGHT = Limits(wall_s=2, memory_mb=256, output_bytes=20_000)


@pytest.fixture
async def python(box: Sandbox):
    async with box.session("python", limits=TIGHT) as session:
        yield session


@pytest.fixture
async def shell(box: Sandbox):
    async with box.session("shell", limits=TIGHT) as session:
        yield session


@pytest.fixture(autouse=True)
def nothing_is_left(box: Sandbox):
    yield
    assert jobs() == []


# --- python


async def test_variables_imports_and_functions_are_kept(python):
    await python.run("import math\nx = 40\ndef more(n):\n    return x + n")
    assert (await python.run("x = more(2)\nprint(x, math.floor(2.5))")).stdout == b"42 2\n"


async def test_the_value_of_a_last_expression_is_shown_as_in_a_notebook(python):
    assert (await python.run("'a' + 'b'")).stdout == b"'ab'\n"
    assert (await python.run("None")).stdout == b""
    assert (await python.run("y = 3")).stdout == b""
    assert (await python.run("_ is None, y")).stdout == b"(False, 3)\n"


async def test_an_exception_is_told_with_its_lines_and_keeps_what_came_before(python):
    execution = await python.run("z = 1\n1 / 0\nz = 2")
    assert (execution.status, execution.exit_code) == ("finished", 1)
    assert b'File "<cell 1>", line 2' in execution.stderr
    assert b"1 / 0" in execution.stderr
    assert b"session_main" not in execution.stderr
    assert (await python.run("z")).stdout == b"1\n"


async def test_exit_and_end_of_input_and_syntax_errors_end_only_the_cell(python):
    assert (await python.run("import sys; sys.exit(7)")).exit_code == 7
    assert b"EOFError" in (await python.run("input()")).stderr
    assert b"SyntaxError" in (await python.run("def")).stderr
    assert (await python.run("1")).stdout == b"1\n"


CRASHES = {
    "exit": ("import os; keep = 'changed'; os._exit(9)", "finished", 9, None),
    "segfault": ("import ctypes; keep = 'changed'; ctypes.string_at(0)", "finished", None, 11),
    "kill": ("import os; keep = 'changed'; os.kill(os.getpid(), 9)", "finished", None, 9),
    "endless": ("keep = 'changed'\nwhile True: pass", "timeout", None, 9),
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "timeout", None, 9),
    "hidden": (
        "import ctypes, os\nwhile True:\n    try:\n        if not os.fork(): ctypes.CDLL(None).prctl(4, 0)\n"
        "    except OSError: pass",
        "timeout",
        None,
        9,
    ),
    "deaf": ("import signal\nfor n in range(1, 32):\n    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\n"
             "while True: pass", "timeout", None, 9),
    "output": ("while True: print('y' * 100)", "killed", None, 9),
}  # fmt: skip


@pytest.mark.parametrize("kind", CRASHES)
async def test_a_cell_that_goes_down_leaves_the_variables_as_they_were(python, box: Sandbox, kind):
    cell, status, code, signal = CRASHES[kind]
    if kind in ("fork bomb", "hidden") and shares_root(box):
        execution = await python.run(cell)  # no process numbers of its own to go through: all of it is ended
        assert execution.status in ("killed", "timeout")
        assert "state is lost" in execution.error
        return
    await python.run("keep = 'kept'")
    for _ in range(2):
        execution = await python.run(cell)
        assert (execution.status, execution.exit_code, execution.signal, execution.error) == (status, code, signal, "")
        assert (await python.run("keep")).stdout == b"'kept'\n"


async def test_a_cell_out_of_memory_leaves_the_variables_as_they_were(python, box: Sandbox):
    await python.run("keep = 'kept'")
    execution = await python.run("hog = []\nwhile True: hog.append(bytearray(8 << 20))")
    if box.guarantees().enforces("memory"):
        assert (execution.status, execution.limit, execution.error) == ("killed", "memory", "")
        assert (await python.run("keep")).stdout == b"'kept'\n"
    else:  # a process met its own bound, or the sum over all was found too high and ended the session
        assert b"MemoryError" in execution.stderr or execution.limit == "memory"


@pytest.mark.parametrize(
    "cell", ["import os; os.kill(os.getppid(), 9)", "import os; os.kill(-1, 9)"], ids=["driver", "everything"]
)
async def test_a_cell_that_ends_the_session_is_told_so_and_the_next_starts_anew(python, cell):
    await python.run("x = 1")
    execution = await python.run(cell)
    assert execution.status == "killed"
    assert "state is lost" in execution.error
    assert b"NameError" in (await python.run("x")).stderr


async def test_threads_and_open_files_live_on_between_cells(python):
    await python.run("import threading\nevent, seen = threading.Event(), []\nf = open('log', 'w+')")
    await python.run(
        "thread = threading.Thread(target=lambda: (event.wait(), seen.append(1)), daemon=True)\nthread.start()"
    )
    assert (await python.run("event.set(); thread.join(); f.write('x'); seen")).stdout == b"[1]\n"


async def test_limits_are_counted_anew_for_each_cell(python):
    for _ in range(5):
        execution = await python.run("import time; time.sleep(0.5); print('y' * 9000)")
        assert (execution.status, len(execution.stdout)) == ("finished", 9001)


async def test_cpu_of_children_counts_for_the_cell(box: Sandbox):
    if shares_root(box):
        assert "sessions" in {item.name: item for item in box.guarantees().items}["cpu"].how
        return
    async with box.session(limits=Limits(wall_s=20, cpu_s=0.5)) as session:
        execution = await session.run(
            "import os\nfor _ in range(2):\n    if not os.fork():\n        while True: pass\nos.wait()"
        )
        assert (execution.status, execution.limit) == ("timeout", "cpu")
        assert (await session.run("1")).stdout == b"1\n"


async def test_a_cell_can_not_speak_for_the_driver(python):
    forged = '{"end": 0, "limit": null, "wall_s": 0, "cpu_s": 0, "is_lost": false}'
    cell = f"import os\nfor fd in range(64):\n    try: os.write(fd, b'done 0\\n' + {forged!r}.encode() + b'\\n')\n"
    cell += "    except OSError: pass\nx = 'reached'"
    await python.run(cell)  # it may end its own cell early so, and nothing else
    assert (await python.run("x")).status == "finished"
    read = "import glob, os\nfor path in glob.glob(f'/proc/{os.getppid()}/fd/*') + [f'/proc/{os.getppid()}/mem']:\n"
    read += "    try: print(open(path, 'rb'))\n    except OSError: pass"
    assert b"<_io" not in (await python.run(read)).stdout


# --- shell


async def test_directory_variables_and_functions_are_kept(shell):
    await shell.run("mkdir -p a/b; cd a/b; export E='x y'; plain=1; list=(1 2); f() { echo \"f $1\"; }")
    execution = await shell.run('pwd; echo "$E $plain ${list[1]}"; f 3; bash -c \'echo "$E"\'')
    assert execution.stdout.splitlines()[0].endswith(b"/a/b")
    assert execution.stdout.splitlines()[1:] == [b"x y 1 2", b"f 3", b"x y"]


@pytest.mark.parametrize(
    ("cell", "code", "signal"),
    [
        ("false", 1, None),
        ("exit 3", 3, None),
        ("kill -9 $$", None, 9),
        ("no-such-command", 127, None),
        ("if (", 2, None),
    ],
)
async def test_how_a_shell_cell_ended_is_told_exactly(shell, cell, code, signal):
    await shell.run("kept=1")
    execution = await shell.run(cell)
    assert (execution.status, execution.exit_code, execution.signal) == ("finished", code, signal)
    assert (await shell.run("echo $kept")).stdout == b"1\n"


async def test_a_shell_cell_that_takes_too_long_leaves_the_directory_and_no_process(shell):
    await shell.run("mkdir d; cd d")
    execution = await shell.run("cd /; sleep 60 & setsid sleep 60 & sleep 60")
    assert (execution.status, execution.limit) == ("timeout", "wall")
    assert (await shell.run("pwd")).stdout.endswith(b"/d\n")
    assert (await shell.run("pgrep sleep || echo none")).stdout.endswith(b"none\n")


async def test_a_background_process_lives_on_and_speaks_with_the_next_cell(shell):
    await shell.run("mkfifo go back; (read x < go; echo later $x; echo > back) & echo started")
    assert (await shell.run("echo now > go; read y < back; echo end")).stdout == b"later now\nend\n"


async def test_a_directory_that_is_gone_is_told(shell):
    await shell.run("mkdir d; cd d; rmdir ../d")
    execution = await shell.run("touch here && echo ok")
    assert execution.stdout == b"ok\n"
    assert b"the directory is gone" in execution.stderr
    assert (await shell.run("ls")).stderr == b""


# --- files, ends


async def test_files_go_in_and_out_whole(python):
    content = bytes(range(256)) * 3000
    await python.write_file("a/b/data", content)
    assert (await python.run("open('a/b/data', 'rb').read() == bytes(range(256)) * 3000")).stdout == b"True\n"
    await python.run("open('back', 'wb').write(open('a/b/data', 'rb').read()[::-1]) and None")
    assert await python.read_file("back") == content[::-1]
    await python.write_file("a/b/data", b"")
    assert await python.read_file("a/b/data") == b""


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../b", "", "a\0b"])
async def test_a_path_that_is_not_plain_is_refused(python, path):
    with pytest.raises(ValueError, match="path"):
        await python.read_file(path)
    with pytest.raises(ValueError, match="path"):
        await python.write_file(path, b"x")


async def test_no_link_fifo_or_folder_is_read_and_no_link_written_through(python):
    await python.run(
        "import os\nos.symlink('/etc', 'l'); os.symlink('/etc/hostname', 'm'); os.mkfifo('p'); os.mkdir('d')"
    )
    for path in ("l/hostname", "m", "p", "d", "none", "none/x"):
        with pytest.raises(FileNotFoundError):
            await python.read_file(path)
    for path in ("l/x", "m", "p", "d"):
        with pytest.raises(OSError):  # noqa: PT011
            await python.write_file(path, b"x")
    assert (await python.run("1")).stdout == b"1\n"


async def test_a_file_larger_than_the_limit_is_an_error_and_not_an_end(box: Sandbox):
    async with box.session(limits=Limits(file_size_mb=1, disk_mb=4)) as session:
        await session.run("x = 1")
        with pytest.raises(OSError, match="large"):
            await session.write_file("big", bytes(2 << 20))
        assert (await session.run("x")).stdout == b"1\n"


async def test_two_sessions_do_not_see_each_other(box: Sandbox):
    async with box.session() as one, box.session() as two:
        await one.run("secret = 1; open('f', 'w').write('1')")
        await two.run("import os")
        assert (await two.run("os.listdir(), 'secret' in globals()")).stdout == b"(['main.py'], False)\n"


async def test_cancelling_ends_the_cell_and_the_session_starts_anew(box: Sandbox):
    async with box.session(limits=Limits(wall_s=600)) as session:
        await session.run("x = 1")
        endless = asyncio.create_task(session.run("print('up', flush=True)\nwhile True: pass"))
        await asyncio.sleep(0.2)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        assert b"NameError" in (await session.run("x")).stderr


async def test_a_closed_session_refuses_and_may_be_closed_again(box: Sandbox):
    session = box.session()
    await session.run("1")
    await session.close()
    await session.close()
    with pytest.raises(RuntimeError, match="closed"):
        await session.run("1")


def test_an_unknown_kind_is_refused_in_one_line(box: Sandbox):
    with pytest.raises(ConfigError, match="'python' or 'shell'"):
        box.session("ruby")


async def test_closing_the_sandbox_ends_its_sessions():
    sandbox = Sandbox(slots=1)
    session = sandbox.session()
    await session.run("1")
    await asyncio.to_thread(sandbox.close)
    assert jobs() == []
    await session.close()
