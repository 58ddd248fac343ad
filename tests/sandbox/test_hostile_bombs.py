"""Programs that want all there is: processes, memory, disk, output, CPUs. Each is held and ends with its job."""

from __future__ import annotations

import threading

import pytest

from sandbox import Limits, Program
from sandbox.backend import Backend
from tests.sandbox.backends import Outside
from tests.sandbox.hostile import BACKENDS, assert_held, outcome_of

FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"

pytestmark = [pytest.mark.backends(*BACKENDS), pytest.mark.usefixtures("nothing_is_left")]


@pytest.mark.parametrize(
    "code",
    [
        FORK_BOMB,
        "import threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(99,)).start()\n"
        "    except RuntimeError: pass",
        "import os\nfor _ in range(12):\n    if not os.fork(): break\nwhile True: pass",
    ],
    ids=["forks", "threads", "busy children"],
)
def test_a_bomb_is_held_and_ends_with_its_job(run, box: Backend, code):
    assert_held(run(code, wall_s=0.8, cpu_s=60), box)


def test_a_fork_bomb_never_has_more_processes_than_allowed(box: Backend, tested: Outside):
    seen = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            seen.append(len(tested.jobs()))

    watcher = threading.Thread(target=count)
    watcher.start()
    box.run_sync(Program(code=FORK_BOMB, limits=Limits(wall_s=1, processes=7)))
    done.set()
    watcher.join()
    if box.guarantees().enforces("processes"):
        assert 3 < max(seen) <= 7


def test_a_neighbour_answers_while_bombs_go_off(box: Backend):
    bomb = threading.Thread(target=box.run_sync, args=(Program(code=FORK_BOMB, limits=Limits(wall_s=1)),))
    bomb.start()
    answers = [box.run_sync(Program(code="print(1)")).stdout for _ in range(5)]
    bomb.join()
    assert answers == [b"1\n"] * 5


def test_memory_of_one_process_is_bounded(run, box: Backend):
    execution = run("x = []\nwhile True: x.append(bytearray(8 << 20))", memory_mb=64)
    if box.guarantees().enforces("memory"):
        assert (execution.status, execution.limit, execution.signal) == ("killed", "memory", 9)
        assert execution.peak_memory_mb < 80
    else:
        assert b"MemoryError" in execution.stderr or execution.limit == "memory"


def test_memory_of_many_children_together_is_bounded(run, box: Backend):
    """Thirty children of 80 MB were not stopped by RLIMIT_AS alone (field notes, section 5)."""
    code = (
        "import os, time\n"
        "for n in range(14):\n"
        "    if not os.fork():\n"
        "        x = bytearray(60 << 20); time.sleep(1.2); print(n, flush=True); os._exit(0)\n"
        "for n in range(14): os.wait()"
    )
    execution = run(code, memory_mb=128)
    survivors = len(execution.stdout.split())
    if box.guarantees().enforces("memory"):
        assert survivors <= 2
    else:
        assert execution.limit == "memory"


def test_shared_memory_counts_as_memory(run):
    code = "import mmap\nm = mmap.mmap(-1, 300 << 20)\nfor i in range(0, len(m), 4096): m[i] = 1\nprint('had it')"
    assert b"had it" not in run(code, memory_mb=64).stdout


def test_the_work_directory_is_capped_in_bytes(run, root):
    code = (
        "import os\nn = 0\ntry:\n    while True:\n        open(f'f{n}', 'wb').write(bytes(1 << 20)); n += 1\n"
        "except OSError as e: print(sum(os.path.getsize(f) for f in os.listdir()), e.errno)"
    )
    execution = run(code, disk_mb=8)
    if root == "shared":
        assert (execution.status, execution.limit) == ("killed", "disk")
        return
    size, errno = map(int, execution.stdout.split())
    assert 7 << 20 < size <= 8 << 20
    assert errno == 28  # ENOSPC


def test_the_work_directory_is_capped_in_inodes(run, root):
    code = "n = 0\ntry:\n    while True:\n        open(f'f{n}', 'w').close(); n += 1\n"
    code += "except OSError as e: print(n, e.errno)"
    execution = run(code, disk_inodes=100)
    if root == "shared":
        assert (execution.status, execution.limit) == ("killed", "disk")
        return
    count, errno = map(int, execution.stdout.split())
    assert (90 <= count <= 100, errno) == (True, 28)


def test_deep_directories_end_at_the_inode_cap_and_are_cleared(run, root):
    code = "import os\ntry:\n    while True:\n        os.mkdir('d'); os.chdir('d')\nexcept OSError as e: print(e.errno)"
    execution = run(code, disk_inodes=500)
    if root == "shared":
        assert (execution.status, execution.limit) == ("killed", "disk")
        assert run("import os; print(os.listdir('.'), os.listdir('..'))").stdout == b"['main.py'] ['work']\n"
    else:
        assert execution.stdout == b"28\n"


def test_one_file_is_capped_even_when_sparse(run):
    assert outcome_of(run, "open('f', 'wb').truncate(1 << 40)") == "OSError 27"
    assert outcome_of(run, "open('f', 'wb').write(bytes(5 << 20))") == "OSError 27"


def test_open_files_are_capped(run):
    code = "n = []\ntry:\n    while True: n.append(open('/dev/null'))\nexcept OSError as e: print(len(n), e.errno)"
    count, errno = map(int, run(code, open_files=32).stdout.split())
    assert count <= 29
    assert errno == 24


HIDDEN_DISK = {
    "files without a name": "f = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(f, bytes(3 << 20))",
    "deleted files": "f = os.open(f'f{n}', os.O_RDWR | os.O_CREAT); os.write(f, bytes(3 << 20)); os.unlink(f'f{n}')",
    "below any path": "os.mkdir('a' * 250); os.chdir('a' * 250); open('f', 'wb').write(bytes((n > 17) * 3 << 20))",
    "in folders that nobody may read": "os.mkdir(f'd{n}', 0o300); open(f'd{n}/f', 'wb').write(bytes(3 << 20))",
}


@pytest.mark.parametrize("step", HIDDEN_DISK.values(), ids=HIDDEN_DISK)
def test_disk_that_no_listing_shows_is_capped_too(run, step):
    """The job is ended, or the disk itself says no before 8 MB are passed by far."""
    code = (
        f"import os, time\nfor n in range(24):\n    {step}\n    time.sleep(0.02)\ntime.sleep(0.3)\nprint('had it all')"
    )
    execution = run(code, disk_mb=8)
    assert b"had it all" not in execution.stdout
    assert (execution.status, execution.limit) == ("killed", "disk") or execution.exit_code == 1
