"""The `local` policy: the sampler in this process, behind the contract every policy keeps.

All torch work happens in one worker thread, so the event loop stays live. Between two tokens that
thread does what was asked of it meanwhile (publish, log-probs, pause), so weights may change under
requests in flight: their tokens then carry both versions.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import torch

from sandbox.errors import VeriwardError
from trainer.batch import Row, micro_batches, scoring_row
from trainer.logprobs import token_logprobs
from trainer.model import load_model
from trainer.policy import Sample, SampleRequest
from trainer.sampler import Sampler

_T = TypeVar("_T")
_LOGPROB_TOKENS = 16384


class _Call:
    """One `sample` call: what it still waits for, and where its samples go."""

    def __init__(self, requests: Sequence[SampleRequest], loop: asyncio.AbstractEventLoop) -> None:
        self.requests = list(requests)
        self.results: asyncio.Queue[Sample | Exception] = asyncio.Queue()  # holds at most one a request
        self._loop = loop

    def deliver(self, result: Sample | Exception) -> None:
        try:
            self._loop.call_soon_threadsafe(self.results.put_nowait, result)
        except RuntimeError:  # the loop that asked is closed: nobody waits for it any more
            return


class LocalPolicy:
    """Serves one model folder. Calls that wait at the same time are sampled together."""

    def __init__(
        self, model_path: str | Path, device: str = "auto", max_batch_rows: int = 512, policy_version: int = 0
    ) -> None:
        loaded = load_model(model_path, device)
        self.tokenizer, self.stop_ids = loaded.tokenizer, loaded.stop_ids
        self._model = loaded.model
        self._sampler = Sampler(loaded.model, loaded.stop_ids, max_batch_rows)
        self._version = policy_version
        self._wakes = threading.Condition()
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._waiting: deque[_Call] = deque()
        self._aborted: set[str] = set()
        self._known: set[str] = set()
        self._is_paused = False
        self._is_closed = False
        self._worker = threading.Thread(target=self._work, name="local-policy", daemon=True)
        self._worker.start()

    @property
    def policy_version(self) -> int:
        return self._version

    async def sample(self, requests: Sequence[SampleRequest]) -> AsyncIterator[Sample]:
        """Each request's sample as it finishes; an aborted one with finish_reason "aborted" and what it has.

        Raises VeriwardError before anything is sampled when a request cannot be served or its id is
        already in flight, and later when the policy is closed meanwhile. Leaving the iteration early aborts
        what is left.
        """
        call = _Call(requests, asyncio.get_running_loop())
        for request in requests:
            self._sampler.check(request)
        left = {request.request_id for request in requests}
        with self._wakes:
            self._refuse_if_closed()
            if len(left) < len(call.requests) or left & self._known:
                raise VeriwardError("two sample requests in flight bear the same request_id; make them unique")
            self._known |= left
            self._waiting.append(call)
            self._wakes.notify_all()
        try:
            while left:
                result = await call.results.get()
                if isinstance(result, Exception):
                    raise result
                left.discard(result.request_id)
                yield result
        finally:
            if left:
                await self.abort(list(left))

    async def publish(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy the weights in and set the version, between two tokens. Tied weights may be given once or
        under both names. Raises ValueError, with nothing changed, on any missing, unknown or misshapen name."""
        given = list(weights)
        await self._command(lambda: self._replace_weights(given, version))

    async def logprobs(self, token_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """For each sequence, the log-prob at temperature 1 of its tokens 1, 2, ..., one fewer than its length."""
        rows = [scoring_row(ids) for ids in token_ids]
        return await self._command(lambda: self._score(rows))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests after their next token; ids not in flight are ignored."""
        with self._wakes:
            self._aborted |= self._known & set(request_ids)
            self._wakes.notify_all()

    async def pause(self) -> None:
        """Stop before the next token. Requests stay, publish and logprobs still work; an abort shows on resume."""
        with self._wakes:
            self._is_paused = True
        await self._command(lambda: None)  # answered between two tokens: afterwards none is being computed

    async def resume(self) -> None:
        with self._wakes:
            self._is_paused = False
            self._wakes.notify_all()

    async def health(self) -> dict[str, object]:
        with self._wakes:
            return {
                "is_alive": self._worker.is_alive() and not self._is_closed,
                "is_paused": self._is_paused,
                "policy_version": self._version,
                "requests_in_flight": len(self._known),
                "device": str(self._model.device),
            }

    async def close(self) -> None:
        """End the worker; whoever still waits for a sample gets a VeriwardError."""
        with self._wakes:
            self._is_closed = True
            self._wakes.notify_all()
        await asyncio.to_thread(self._worker.join)

    async def _command(self, action: Callable[[], _T]) -> _T:
        """Have the worker do something between two tokens, and wait for its result."""
        done: Future[_T] = Future()
        with self._wakes:
            self._refuse_if_closed()
            self._commands.append((action, done))
            self._wakes.notify_all()
        return await asyncio.wrap_future(done)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise _closed()

    # What follows runs in the worker thread.

    def _work(self) -> None:
        while not self._is_closed:
            with self._wakes:
                self._wakes.wait_for(lambda: self._commands or self._waiting or self._is_closed)
                calls = list(self._waiting)
                self._waiting.clear()
            try:
                self._serve(calls)
            except Exception as error:  # whoever waits must hear of it, and the next call may well succeed
                self._fail(calls, error)
        self._fail(list(self._waiting), _closed())
        for _, done in self._commands:
            if done.set_running_or_notify_cancel():
                done.set_exception(_closed())

    def _serve(self, calls: Sequence[_Call]) -> None:
        owners = {request.request_id: call for call in calls for request in call.requests}
        requests = [request for call in calls for request in call.requests]
        self._between_tokens()
        for sample in self._sampler.sample(requests, self._between_tokens, self._aborted.__contains__):
            with self._wakes:
                self._known.discard(sample.request_id)
                self._aborted.discard(sample.request_id)
            owners[sample.request_id].deliver(sample)

    def _between_tokens(self) -> int:
        """Do what was asked meanwhile, stay here while paused; returns the version the next token is drawn at."""
        while True:
            with self._wakes:
                if self._is_closed:
                    raise _closed()
                if not self._commands:
                    if not self._is_paused:
                        return self._version
                    self._wakes.wait_for(lambda: self._commands or self._is_closed or not self._is_paused)
                    continue
                action, done = self._commands.popleft()
            if not done.set_running_or_notify_cancel():
                continue  # whoever asked was cancelled meanwhile
            try:
                done.set_result(action())
            except Exception as error:
                done.set_exception(error)

    def _fail(self, calls: Sequence[_Call], error: Exception) -> None:
        ids = {request.request_id for call in calls for request in call.requests}
        with self._wakes:
            self._known -= ids
            self._aborted -= ids
        for call in calls:
            call.deliver(error)

    def _replace_weights(self, given: Sequence[tuple[str, torch.Tensor]], version: int) -> None:
        targets = dict(self._model.named_parameters(remove_duplicate=False))
        for name, value in given:
            if name not in targets:
                raise ValueError(f"published weight {name!r} is no weight of the served model")
            if value.shape != targets[name].shape:
                raise ValueError(f"published weight {name!r} is {[*value.shape]}, served {[*targets[name].shape]}")
        reached = {id(targets[name]) for name, _ in given}
        missing = [name for name, target in targets.items() if id(target) not in reached]
        if missing:
            raise ValueError(f"{len(missing)} served weights were not published, {missing[0]!r} first")
        with torch.no_grad():
            for name, value in given:
                targets[name].copy_(value)
        self._sampler.refresh()
        self._version = version

    @torch.no_grad()
    def _score(self, rows: Sequence[Row]) -> list[list[float]]:
        found: dict[int, list[float]] = {}
        for part in micro_batches(rows, _LOGPROB_TOKENS):
            values = token_logprobs(self._model, part)[0]
            for row, own in zip(part, values.split([len(row.trained) for row in part]), strict=True):
                found[id(row)] = own.tolist()
        return [found.get(id(row), []) for row in rows]


def _closed() -> VeriwardError:
    return VeriwardError("the policy was closed; make a new one")
