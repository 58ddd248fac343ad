"""The parent's side of one zygote: start it, hand it a job, end it.

A slot runs one job at a time and is not safe to share between threads while it does, except for
`order_stop`. Ending a slot ends everything in it: its pid 1 dies, and the kernel takes the rest.
"""

from __future__ import annotations

import array
import contextlib
import importlib.util
import marshal
import os
import select
import shutil
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from sandbox.cgroups import SlotCgroup, make_slot_cgroup
from sandbox.errors import ConfigError, VeriwardError
from sandbox.languages import LANGUAGES
from sandbox.models import Limits
from sandbox.slot_dirs import make_slot_dir, remove_slot_dir

_START_TIMEOUT_S = 30.0
_SCI_PACKAGES = ("numpy", "sympy", "mpmath", "gmpy2")
_MESSAGE_BYTES = 4096
_HERE = Path(__file__).resolve().parent
_STARTER = """
import sys
sys.path.append({root!r})
from sandbox.zygote import run_job, serve
sys.path.remove({root!r})
run_job(*serve({control}, {parent}))
"""


class SlotLost(Exception):
    """The slot died, or stopped answering, while it was needed."""


class Slot:
    """One confined process ready to fork jobs. Raises VeriwardError where the machine can't confine
    and SlotLost when it did not come up for another reason."""

    def __init__(self, name: str, flavour: str = "slim", *, shares_root: bool = False) -> None:
        """`shares_root`: confine by Landlock on the machine's own root, where namespaces are refused."""
        self.jobs_started = 0
        self.flavour = flavour
        if shares_root and os.geteuid() == 0 and not _is_open_to_all(sys.base_prefix):
            raise cannot_confine(f"namespaces, or else an interpreter that any uid may read ({sys.base_prefix} is not)")
        self._slot_dir = make_slot_dir() if shares_root else ""
        self.cgroup: SlotCgroup | None = make_slot_cgroup(name)
        self._pid1 = -1
        try:
            self._control, child_end = _socket_pair()
        except OSError as error:
            self._remove_traces()
            raise SlotLost(f"this process has no room for a slot: {error.strerror}") from error
        try:
            self._process = _start_process(child_end)
        except OSError as error:
            self._control.close()
            self._remove_traces()
            raise SlotLost(f"its process did not start: {error}") from error
        finally:
            child_end.close()
        try:
            self._features = self._introduce(_slot_uid(self._process.pid))
        except BaseException:
            self.close()
            raise

    @property
    def landlock_abi(self) -> int:
        return self._features["landlock"]

    @property
    def has_proc(self) -> bool:
        return bool(self._features["proc"])

    def fileno(self) -> int:
        return self._control.fileno()

    def begin(self, limits: Limits, *, warm: bool, fetch: tuple[str, ...], descriptors: list[int]) -> int:
        """Start a job on `[program, stdin, stdout, stderr]` and return its number. Raises SlotLost."""
        self.jobs_started += 1
        try:
            if self.cgroup is not None:
                self.cgroup.prepare(limits.memory_mb, limits.processes)
            request = {**limits.model_dump(), "job": self.jobs_started, "warm": warm, "fetch": fetch}
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            self._control.sendmsg([marshal.dumps(request)], rights)
        except OSError as error:
            raise SlotLost(self._last_words(str(error))) from error
        return self.jobs_started

    def order_stop(self, job: int) -> None:
        """Ask the slot to kill that job, if it still runs."""
        with contextlib.suppress(OSError):
            self._control.send(b"kill %d" % job)

    def receive(self) -> tuple[bytes, int]:
        """The slot's next message, and the descriptor with it or -1; waits for it. Raises SlotLost at its end."""
        try:
            message, files, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
        except OSError as error:
            raise SlotLost(self._last_words(str(error))) from error
        if not message:
            raise SlotLost(self._last_words("its process died"))
        return message, files[0] if files else -1

    def kill(self) -> None:
        """End the slot and everything in it at once, whatever state it is in."""
        if self._pid1 >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pid1, signal.SIGKILL)
        else:
            self._process.kill()

    def close(self) -> None:
        """Kill it, wait until every process of it is gone, and give its cgroup back."""
        self._control.close()
        self.kill()
        self._process.wait()
        self.forget()
        self._remove_traces()

    def forget(self) -> None:
        """Let go of the descriptors only: for the child of a fork, which does not own the slot."""
        self._control.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        if self._pid1 >= 0:
            os.close(self._pid1)
            self._pid1 = -1
        self._process.returncode = self._process.returncode or 0  # a forked child must not wait for it

    def _introduce(self, uid: int) -> dict[str, int]:
        config = {
            "uid": uid,
            "interpreter_dirs": _interpreter_dirs(),
            "package_dirs": _package_dirs(),
            "tool_dirs": tool_dirs(),
            "sci_dirs": sci_dirs() if self.flavour == "sci" else [],
            "python": os.path.realpath(_base_python()),
            "run_main_source": (_HERE / "run_main.py").read_text(),
            "cgroup_procs": self.cgroup.procs_files if self.cgroup else [],
            "cpu_file": self.cgroup.cpu_file if self.cgroup else "",
            "watch_memory": self.cgroup is None,
            "slot_dir": self._slot_dir,
        }
        deadline = time.monotonic() + _START_TIMEOUT_S
        try:
            self._control.send(marshal.dumps(config))
            while True:
                if not select.select([self._control], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise SlotLost(f"it did not come up within {_START_TIMEOUT_S:.0f} s")
                line, handles, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
                if handles:
                    self._pid1 = handles[0]
                elif line.startswith(b"ready"):
                    break
                elif line.startswith(b"refused"):
                    raise cannot_confine(line.decode().partition(" ")[2])
                else:
                    raise SlotLost(self._last_words("its process died while starting"))
        except OSError as error:
            raise SlotLost(self._last_words(str(error))) from error
        if self.cgroup is not None:
            self.cgroup.note_baseline()
        return {key: int(value) for key, _, value in (word.partition("=") for word in line.decode().split()[1:])}

    def _last_words(self, fallback: str) -> str:
        """The last line its process wrote to its own stderr, which jobs do not share."""
        if self._process.stderr is None or self._process.stderr.closed:
            return fallback
        os.set_blocking(self._process.stderr.fileno(), False)
        text = (self._process.stderr.read() or b"").decode("utf-8", "replace").strip()
        return text.splitlines()[-1] if text else fallback

    def _remove_traces(self) -> None:
        if self.cgroup is not None:
            self.cgroup.remove()
        if self._slot_dir:
            remove_slot_dir(self._slot_dir)


class CannotConfine(VeriwardError):
    """This machine lacks what the local backend needs."""


def cannot_confine(missing: str) -> CannotConfine:
    return CannotConfine(
        f"this machine can't run untrusted programs: missing {missing}; they need Linux with namespaces or "
        "Landlock, or another backend: Docker, or a server that was started with `veriward sandbox serve`"
    )


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """The second keeps its number in the slot, so it stays clear of standard streams that a daemon has closed."""
    import fcntl  # not on Windows, where this module is imported to say that nothing runs there

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return ours, socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 10))


def _start_process(control: socket.socket) -> subprocess.Popen[bytes]:
    """A new interpreter, so that nothing of this process's memory is in it."""
    code = _STARTER.format(root=str(_HERE.parent), control=control.fileno(), parent=os.getpid())
    process = subprocess.Popen(
        # A fixed hash seed: what a candidate prints from a set is the same in every slot and every run.
        [_base_python(), "-s", "-P", "-S", "-B", "-c", code],
        env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
        cwd="/",
        # Pipes, not /dev/null: the interpreter's own stream objects serve the jobs, and remember what they were.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[control.fileno()],
        start_new_session=True,
    )
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    return process


def tool_dirs() -> list[str]:
    """Prefixes of compilers and interpreters that lie outside the system's folders, node's often."""
    found = (shutil.which(language.run[0]) for language in LANGUAGES.values())
    prefixes = {os.path.dirname(os.path.dirname(os.path.realpath(path))) for path in found if path}
    return sorted(path for path in prefixes if path != "/" and not path.startswith("/usr"))


def sci_dirs() -> list[str]:
    """The folders of numpy, sympy and what they stand on. Raises ConfigError where one of the two is missing."""
    found = []
    for name in _SCI_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            folder = os.path.realpath(next(iter(spec.submodule_search_locations)))
            found += [path for path in (folder, f"{folder}.libs") if os.path.isdir(path)]
        elif name in ("numpy", "sympy"):
            raise ConfigError(f'flavour "sci": {name} is not installed here; `pip install {name}`, or use "slim"')
    return found


def _base_python() -> str:
    """The interpreter under a virtual environment: a slot sees no site-packages anyway."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _interpreter_dirs() -> list[str]:
    found = {sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.path.dirname(os.path.realpath(_base_python())))}
    return sorted(path for path in found if path != "/")


def _package_dirs() -> list[str]:
    """Where packages lie, ours and its frozen rows among them: below the interpreter they would be a job's to read."""
    own = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(_HERE.parent)]
    return sorted({os.path.realpath(path) for path in [*own, *site.getsitepackages([sys.base_prefix])]})


def _is_open_to_all(folder: str) -> bool:
    return all(os.stat(path).st_mode & 0o001 for path in (folder, *map(str, Path(folder).parents)))


def _slot_uid(pid: int) -> int:
    """A uid that no account has and, as long as the slot's own process lives, no other slot; 0 when not root.

    RLIMIT_NPROC and signals count by real uid, so two slots must not share one.
    """
    if os.geteuid() != 0:
        return 0
    mapped = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    highest = max(int(first) + int(count) - 1 for first, _, count in mapped)
    uid = 0x40000000 + pid
    return uid if highest > uid else 20_000 + pid % 40_000
