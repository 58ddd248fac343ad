"""The server under load: started and restarted as a service manager would, killed on purpose, watched from outside.

Whatever a killed one leaves becomes a child of this process, so nothing of it can hide.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
_DESCRIPTORS_PER_SLOT = 3  # its control socket, a handle on its pid 1, its stderr
_SETTLED_S = 30.0


class Sample(NamedTuple):
    """What the server held at a moment, and how much had been answered by then."""

    rss_kb: int
    answered_bytes: int


class Life:
    """One process of the server, from its start to its end."""

    def __init__(self, process: subprocess.Popen[str], slots: int) -> None:
        self.process = process
        self._most_slots = 2 * slots  # that a sandbox keeps
        self.samples: list[Sample] = []
        self.base_descriptors = self.descriptors()

    def descriptors(self) -> int:
        """Open ones that belong to no slot. A slot that was killed while idle is one until it is needed."""
        slots = min(self._most_slots, len(children_of(self.process.pid)))
        with contextlib.suppress(OSError):
            return len(os.listdir(f"/proc/{self.process.pid}/fd")) - _DESCRIPTORS_PER_SLOT * slots
        return -1

    def keepers(self) -> list[int]:
        return [pid for pid in children_of(self.process.pid) if _is_slot(pid)]

    def rss_kb(self) -> int:
        return _status_kb(self.process.pid, "VmRSS:")


class Server:
    """`veriward sandbox serve` with a folder and a log of its own, always on the same port."""

    def __init__(self, slots: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.slots = slots
        self.lives: list[Life] = []
        self._folder = tempfile.TemporaryDirectory(prefix="veriward-load-")
        self.home = Path(self._folder.name)
        self.home.chmod(0o711)
        self.temp = self.home / "tmp"
        self.temp.mkdir()
        self.token = random.SystemRandom().randbytes(16).hex()
        (self.home / "token").touch(0o600)
        (self.home / "token").write_text(self.token)
        self.url = ""
        self._mounts = _mounts()
        self.start()

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def start(self) -> None:
        """Blocks until it listens."""
        port = self.url.rsplit(":", 1)[1] if self.url else "0"
        options = ["--port", port, "--token-file", str(self.home / "token"), "--slots", str(self.slots)]
        environment = {**os.environ, "TMPDIR": str(self.temp)}
        with open(self.home / "log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "veriward", "sandbox", "serve", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("sandbox server on "):
            raise RuntimeError(f"the server did not start; its log: {self.log()[-2000:]}")
        self.url = line.split()[-1]
        self.lives.append(Life(process, self.slots))

    def kill(self, what: str, rng: random.Random) -> bool:
        """SIGKILL to the server, or to a keeper or a pid 1 of one of its slots; False where there is none."""
        if what == "server":
            self.life.process.kill()
            self.life.process.wait()
            return True
        keepers = self.life.keepers()
        victims = keepers if what == "keeper" else [pid for keeper in keepers for pid in children_of(keeper)]
        with contextlib.suppress(IndexError, ProcessLookupError):
            os.kill(rng.choice(victims), signal.SIGKILL)
            return True
        return False

    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def settled_descriptors(self) -> int:
        """How many more it has than when it started, once idle; waits for connections to be taken down."""
        deadline = time.monotonic() + _SETTLED_S
        while (more := self.life.descriptors() - self.life.base_descriptors) > 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        return more

    def stop(self) -> list[str]:
        """End it in good order; returns what it, or any before it, has left on this machine."""
        self.life.process.send_signal(signal.SIGTERM)
        left = [] if self.life.process.wait(60) == 0 else [f"exit status {self.life.process.returncode}"]
        for life in self.lives:
            if life.process.stdout is not None:
                life.process.stdout.close()
        left += [f"process {pid}: {_name(pid)}" for pid in self._orphans()]
        pids = [life.process.pid for life in self.lives]
        groups = {str(path) for pid in pids for path in Path("/sys/fs/cgroup").glob(f"**/veriward-{pid}-*")}
        left += [f"cgroup {path}" for path in sorted(groups)]
        left += [f"mount {line}" for line in sorted(_mounts() - self._mounts) if "veriward" in line or "/job" in line]
        left += [f"file {path}" for path in sorted(self.temp.rglob("*"))]
        return left

    def _orphans(self) -> list[int]:
        """What killed servers left falls to this process; it may take a moment to end."""
        deadline = time.monotonic() + _SETTLED_S
        while True:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            found = children_of(os.getpid())
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *unused: Any) -> None:
        if self.life.process.poll() is None:
            self.life.process.kill()
            self.life.process.wait()
        self._folder.cleanup()


def children_of(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found


def _is_slot(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"sandbox.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80]
    return "gone"


def _status_kb(pid: int, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1])
    return 0


def _mounts() -> set[str]:
    return {line.split(" - ")[0].split(" ", 4)[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
