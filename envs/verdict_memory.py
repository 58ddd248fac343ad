"""Equal questions are judged once: a memory of verdicts for a verifier that is slow and depends on nothing else.

A group often holds the same reply several times, the more so the better the policy gets. Replies
that arrive while an equal one is being judged wait for its verdict.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor

from rewards.verdict import Verdict


class VerdictMemory:
    """The last `size` verdicts by key. An unscored one is not kept, nor is an exception.

    threads  judgements at the same time; the judging function is blocking and runs in one of them.
    Safe from any thread and any number of loops.
    """

    def __init__(self, size: int, threads: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Future[Verdict]] = OrderedDict()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="verdict")

    async def verdict(self, key: Hashable, judge: Callable[[], Verdict]) -> Verdict:
        """The verdict for `key`: remembered, awaited, or made by `judge`. Raises what `judge` raises."""
        with self._lock:
            future = self._known.get(key)
            is_new = future is None
            if future is None:
                future = self._known[key] = self._threads.submit(judge)
                if len(self._known) > self._size:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(key)
        if is_new:
            # Outside the lock, which it takes too: a future already done calls back at once.
            future.add_done_callback(lambda done: self._forget_unless_scored(key, done))
        # Shielded: one caller that is cancelled must not take the verdict from the others.
        return await asyncio.shield(asyncio.wrap_future(future))

    def _forget_unless_scored(self, key: Hashable, future: Future[Verdict]) -> None:
        if future.cancelled() or future.exception() or future.result().status == "unscored":
            with self._lock:
                if self._known.get(key) is future:
                    del self._known[key]
