"""Inside a session's sandbox: what is kept between cells, and how it comes back when a cell goes down.

Both kinds answer the same calls: `start` a cell, `is_over`, then either `keep` what it left or `undo`
it. Nothing is kept before the driver says so. Standard library only; sent to every backend.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import time
from collections.abc import Callable
from typing import NoReturn

from sandbox.session_cells import hold
from sandbox.session_processes import Others, readable

_TICK_S = 0.1
_TAKEOVER_S = 10.0
_OWN_FILES = 3  # of the holder, beside the standard streams
_WHOLE = b"# whole\n"

# Builtins by name, since a cell may define functions called `cd` or `source`, or lose its PATH.
_SHELL = r"""
unset BASH_EXECUTION_STRING
IFS= builtin read -r -d '' -u 3 __session_cell
exec 3<&-
__session_keep() {
  {
    builtin printf 'builtin cd -- %q || __session_gone=1\n' "$PWD" && builtin unset __session_cell &&
      builtin declare -p && builtin declare -f && builtin export -fp && builtin printf '# whole\n'
  } >| "$__session_file.new" || builtin echo "the shell's variables could not be saved" >&3
  builtin return "$1"
} 3>&2 2> /dev/null
if [[ -f $1 ]]; then
  builtin source "$1" 2> /dev/null
fi
__session_file=$1
if [[ ${__session_gone-} ]]; then
  unset __session_gone
  builtin cd -- "$2"
  builtin echo "the directory is gone: back in $2" >&2
fi
builtin trap '__session_keep $?' EXIT
builtin set --
builtin eval "$__session_cell"
__session_keep $?
"""


class Shell:
    """A new bash for each cell, which reads what the last one wrote: variables, functions and the directory."""

    def __init__(self, others: Others, open_files: int) -> None:
        self.others, self.open_files = others, open_files
        self.state = os.path.join(os.environ.get("TMPDIR", "/tmp"), ".shell-state")
        self.new = self.state + ".new"
        self.home = os.getcwd()
        self.child = -1
        self.ended: int | None = None

    def start(self, cell: str, deadline: float) -> None:
        self.ended = None
        self.others.reap()
        self.others.ends.clear()
        with contextlib.suppress(OSError):
            os.unlink(self.new)
        reader, writer = os.pipe()
        self.child = self.others.fork()
        if not self.child:
            self._become_bash(reader)
        os.close(reader)
        os.set_blocking(writer, False)
        _feed(writer, cell.encode("utf-8", "surrogatepass"), deadline, self.is_over)
        os.close(writer)

    def _become_bash(self, cell: int) -> NoReturn:
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.open_files, self.open_files))
        os.dup2(cell, 3)
        os.set_inheritable(3, True)
        try:
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-c", _SHELL, "bash", self.state, self.home])
        except OSError as error:
            os.write(2, f"bash: {error.strerror}\n".encode())
        os._exit(127)

    def descriptors(self) -> list[int]:
        return [self.others.news]

    def is_over(self) -> bool:
        if self.ended is None and self.child in self.others.reap():
            self.ended = self.others.ends.pop(self.child)
        return self.ended is not None

    def keep(self) -> tuple[int, bool]:
        """How the cell ended, and whether the state is lost."""
        if self.ended is not None and self.ended >= 0 and _is_whole(self.new):
            with contextlib.suppress(OSError):
                os.replace(self.new, self.state)
        return self.ended or 0, False

    def undo(self) -> tuple[int, bool]:
        self.others.end()
        self.is_over()
        return self.ended or 0, False


def _is_whole(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with open(descriptor, "rb", buffering=0) as file:
        try:
            file.seek(-len(_WHOLE), os.SEEK_END)
            return file.read(len(_WHOLE)) == _WHOLE
        except OSError:
            return False


class Holder:
    """The process that has the variables, and the sleeping copy that can take its place."""

    def __init__(self, others: Others, open_files: int, not_theirs: list[int]) -> None:
        self.others, self.open_files, self.not_theirs = others, open_files, not_theirs
        self.number = 0
        self._begin()

    def _begin(self) -> None:
        self.copy = self.took_over = -1
        self.ended: int | None = None
        self.crashed: int | None = None
        self.heard = bytearray()
        (cells, self.cells), (wake, self.wake), (self.status, status) = os.pipe(), os.pipe(), os.pipe()
        self.pid = self.others.fork()
        if not self.pid:
            for descriptor in (*self.not_theirs, self.cells, self.wake, self.status):
                os.close(descriptor)
            low = [os.dup(descriptor) for descriptor in (cells, wake, status)]  # a limit bounds numbers, not how many
            for descriptor in (cells, wake, status):
                os.close(descriptor)
            files = min(self.open_files + _OWN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
            hold(*low)
        for descriptor in (cells, wake, status):
            os.close(descriptor)
        os.set_blocking(self.status, False)
        os.set_blocking(self.cells, False)

    def start(self, cell: str, deadline: float) -> None:
        self.number += 1
        self.ended = self.crashed = None
        self.copy = self.took_over = -1
        for pid in set(self.others.reap()) - {self.pid}:
            del self.others.ends[pid]
        text = cell.encode("utf-8", "surrogatepass")
        _feed(self.cells, b"%d %d\n" % (self.number, len(text)) + text, deadline, self.is_over)

    def descriptors(self) -> list[int]:
        return [self.status, self.others.news]

    def is_over(self) -> bool:
        if self.crashed is None and self.pid in self.others.reap():
            self.crashed = self.others.ends.pop(self.pid)
        self._hear()
        return self.ended is not None or self.crashed is not None

    def _hear(self) -> None:
        """Take in whole lines about this cell; a cell can write here too, so anything else is passed over."""
        try:
            self.heard += os.read(self.status, 4096)
        except BlockingIOError:
            return
        *lines, rest = bytes(self.heard).split(b"\n")
        self.heard = bytearray(rest[-64:])
        for line in lines:
            word, *numbers = line.split(b" ")
            if len(numbers) != 2 or not all(n.isdigit() and len(n) < 10 for n in numbers):
                continue
            if int(numbers[0]) != self.number:
                continue
            value = int(numbers[1])
            if word == b"copy":
                self.copy = value
            elif word == b"took":
                self.took_over = value
            elif word == b"done":
                self.ended = value & 0xFF

    def keep(self) -> tuple[int, bool]:
        """How the cell ended, and whether the state is lost: where the holder went down there is nothing to keep."""
        if self.crashed is not None or self.ended is None:
            return self.undo()
        if self.copy > 0:
            self.others.end_one(self.copy)
        return self.ended, False

    def undo(self) -> tuple[int, bool]:
        """End all but the copy and let it take over."""
        self.is_over()  # a limit may be met before the copy's number was heard
        is_whole = self.copy > 0 and self.others.end_all_but(self.copy) and self._takes_over()
        if not is_whole:
            self.others.end()
        code = self.others.ends.pop(self.pid, -9) if self.crashed is None else self.crashed
        if is_whole:
            self.pid = self.copy
        else:
            for descriptor in (self.cells, self.wake, self.status):
                os.close(descriptor)
            self._begin()
        return code, not is_whole

    def _takes_over(self) -> bool:
        os.write(self.wake, b"w")
        deadline = time.monotonic() + _TAKEOVER_S
        while time.monotonic() < deadline:
            self._hear()
            if self.took_over == self.copy:
                return True
            if self.copy in self.others.reap():
                return False
            readable(self.descriptors(), _TICK_S)
        return False


def _feed(descriptor: int, data: bytes, deadline: float, is_over: Callable[[], bool]) -> None:
    """Write it all, unless the reader ends or the time is up first."""
    left = memoryview(data)
    while left and not is_over() and time.monotonic() < deadline:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [], _TICK_S)
        except BrokenPipeError:
            return
