"""Who runs, who waits and who is turned away; and what was already answered under a key.

At most `slots` jobs run and `size` wait, first come first served; the rest is refused with a time
after which to try again. Everything here belongs to one event loop and knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sandbox.backend import Backend
from sandbox.errors import ConfigError, VeriwardError
from sandbox.models import Execution, Program

_KEPT_S = 600.0
_KEPT_COUNT = 10_000
_KEPT_BYTES = 256 << 20
_ENTRY_BYTES = 1024  # what an entry costs beside its body
_LONGEST_RETRY_S = 60


class Refused(Exception):
    """Not accepted, nothing was run; the same request may come again after `retry_after_s`."""

    def __init__(self, reason: str, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class JobQueue:
    """Runs programs on `backend`, `slots` at a time."""

    def __init__(self, backend: Backend, slots: int, size: int) -> None:
        self.slots = slots
        self.running = 0
        self.is_draining = False
        self._backend = backend
        self._size = size
        self._line: deque[asyncio.Future[None]] = deque()
        self._job_s = 0.0  # how long a job lately kept its slot
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        return len(self._line)

    def refuse_if_full(self) -> None:
        """Raises Refused when a job that came now would be."""
        if self.is_draining:
            raise _draining()
        if self.running >= self.slots and self.waiting >= self._size:
            message = f"{self.running} jobs run and {self.waiting} wait; try again later"
            raise Refused("full", message, self.retry_after_s())

    def retry_after_s(self) -> int:
        """When about half of those who wait now will have run, going by recent jobs."""
        return min(max(1, math.ceil(self._job_s * (self.waiting + 1) / self.slots / 2)), _LONGEST_RETRY_S)

    async def run(self, program: Program) -> tuple[Execution, float]:
        """The execution, and the seconds it waited for its turn. Raises Refused."""
        async with self.turn() as waited_s:
            return await self._execute(program), waited_s

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """A slot, for as long as the block lasts; gives the seconds it waited for it. Raises Refused."""
        self.refuse_if_full()
        arrived = time.monotonic()
        await self._take_slot()
        began = time.monotonic()
        try:
            yield began - arrived
        finally:
            self._job_s += 0.1 * (time.monotonic() - began - self._job_s)
            self._give_slot()

    async def _take_slot(self) -> None:
        if self.running < self.slots:
            self.running += 1
            self._idle.clear()
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._line:
                self._line.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:  # the slot came together with the cancellation
                self._give_slot()
            raise

    def _give_slot(self) -> None:
        """To the next in line."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():  # else its owner was cancelled and hasn't noticed yet
                turn.set_result(None)
                return
        self.running -= 1
        if not self.running:
            self._idle.set()

    async def _execute(self, program: Program) -> Execution:
        try:
            return await self._backend.run(program)
        except ConfigError:  # this backend can't run such a program
            raise
        except VeriwardError as error:  # of the machine, never of the program
            return Execution(status="unavailable", error=str(error))

    async def drain(self) -> None:
        """Accept nothing more, refuse those who wait, and return when the running jobs have ended."""
        self.is_draining = True
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_exception(_draining())
        await self._idle.wait()


def _draining() -> Refused:
    return Refused("draining", "the server is about to stop; try again, or elsewhere", 5)


@dataclass(frozen=True)
class Answer:
    """What an HTTP answer is made of."""

    status: int
    body: bytes
    headers: dict[str, str]


class Cancelled(Exception):
    """The key's job was cancelled by request."""


class OtherBody(Exception):
    """The key was already used for another body."""


@dataclass
class _Entry:
    digest: bytes
    task: asyncio.Task[Answer] | None  # None: cancelled before it came
    at: float
    size: int = _ENTRY_BYTES


class Answers:
    """One answer per key: made once, shared by all who ask while it is made or for ten minutes after."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._bytes = 0

    def __contains__(self, key: str) -> bool:
        self._forget_old()
        return key in self._entries

    async def get(self, key: str, digest: bytes, make: Callable[[], Awaitable[Answer]]) -> Answer:
        """The key's answer; `make` runs to its end even when the asking side goes away.

        An answer other than 200 isn't kept. Raises OtherBody, Cancelled, or what `make` raises.
        """
        self._forget_old()
        entry = self._entries.get(key)
        if entry is None:
            entry = _Entry(digest, None, time.monotonic())
            entry.task = asyncio.ensure_future(self._make(key, entry, make))
            entry.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be left to ask
            self._keep(key, entry)
        elif entry.task is None:
            raise Cancelled
        elif entry.digest != digest:
            raise OtherBody
        try:
            return await asyncio.shield(entry.task)
        except asyncio.CancelledError:
            if entry.task.cancelled():
                raise Cancelled from None
            raise

    async def cancel(self, key: str) -> bool:
        """End the key's job and let the key never run again; True if it was under way."""
        entry = self._entries.get(key)
        task = entry.task if entry else None
        was_under_way = task is not None and not task.done()
        self._drop(key)
        self._keep(key, _Entry(b"", None, time.monotonic()))
        if task is not None and was_under_way:
            task.cancel()
            await asyncio.wait([task])
        return was_under_way

    async def _make(self, key: str, entry: _Entry, make: Callable[[], Awaitable[Answer]]) -> Answer:
        is_kept = False
        try:
            answer = await make()
            is_kept = answer.status == 200
            return answer
        finally:
            if self._entries.get(key) is entry:  # else it was cancelled
                self._drop(key)
                if is_kept:
                    entry.at = time.monotonic()
                    entry.size += len(answer.body)
                    self._keep(key, entry)

    def _keep(self, key: str, entry: _Entry) -> None:
        self._entries[key] = entry
        self._bytes += entry.size
        self._forget_old()

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size

    def _forget_old(self) -> None:
        """The oldest first; never one that is under way, which the queue bounds."""
        now = time.monotonic()
        count, total = len(self._entries), self._bytes
        old: list[str] = []
        for key, entry in self._entries.items():
            if count - len(old) <= _KEPT_COUNT and total <= _KEPT_BYTES and now - entry.at < _KEPT_S:
                break
            if entry.task is None or entry.task.done():
                old.append(key)
                total -= entry.size
        for key in old:
            self._drop(key)
