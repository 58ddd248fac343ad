"""Sample completions from a causal LM: every draw named, every log-prob kept.

Requests with the same prefix share its prefill; rows that finish leave the batch at once. A token
is drawn by inverse CDF from one uniform named by the request's key and the token's position, so a
row's draws do not depend on its neighbours (beyond float rounding), and a completion that is
interrupted and continued from its prefix goes on as it would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sandbox.errors import VeriwardError
from trainer.decoder import decoder_for
from trainer.policy import Sample, SampleRequest
from trainer.randomness import uniforms
from trainer.records import FinishReason


class Sampler:
    """Draws completions for requests, in waves of at most `max_rows` rows.

    `before_step` is called before each token: it may change the model's weights (then call
    `refresh`), and returns the policy version the next token is drawn at.
    """

    def __init__(self, model: Any, stop_ids: Sequence[int], max_rows: int = 512) -> None:
        self._model = model
        self._decoder = decoder_for(model)
        self._max_rows = max_rows
        vocabulary = model.get_output_embeddings().weight.shape[0]
        self._known_ids = model.get_input_embeddings().weight.shape[0]
        self._is_stop = np.zeros(vocabulary, dtype=bool)
        self._is_stop[[token for token in stop_ids if token < vocabulary]] = True
        self._max_positions = getattr(model.config, "max_position_embeddings", None)

    def refresh(self) -> None:
        """Call after the model's weights changed."""
        self._decoder.refresh()

    def check(self, request: SampleRequest) -> None:
        """Raises VeriwardError when a request cannot be served by this model."""
        name = f"sample request {request.request_id!r}"
        if not request.prefix_ids or request.max_tokens < 1 or request.temperature < 0:
            raise VeriwardError(f"{name}: give a prefix, max_tokens >= 1 and temperature >= 0")
        if max(request.prefix_ids) >= self._known_ids:
            raise VeriwardError(
                f"{name}: token {max(request.prefix_ids)} is beyond the model's {self._known_ids} embeddings; "
                "its tokenizer is of another model"
            )
        needed = len(request.prefix_ids) + request.max_tokens
        if self._max_positions is not None and needed > self._max_positions:
            raise VeriwardError(
                f"{name}: prompt of {len(request.prefix_ids)} tokens + max_tokens {request.max_tokens} exceeds the "
                f"model's {self._max_positions} positions; shorten one of them"
            )

    def sample(
        self,
        requests: Sequence[SampleRequest],
        before_step: Callable[[], int] = lambda: 0,
        is_aborted: Callable[[str], bool] = lambda request_id: False,
    ) -> Iterator[Sample]:
        """Each request's sample, as it finishes. An aborted one ends with what it has so far."""
        for request in requests:
            self.check(request)
        # Alike lengths together: less padding, and rows that end at about the same step.
        order = sorted(requests, key=lambda request: (request.max_tokens, len(request.prefix_ids)))
        for first in range(0, len(order), self._max_rows):
            wave = []
            for request in order[first : first + self._max_rows]:
                if is_aborted(request.request_id):
                    yield Sample(request.request_id, [], [], [], "aborted")
                else:
                    wave.append(request)
            if wave:
                yield from self._wave(wave, before_step, is_aborted)

    def _wave(
        self, requests: Sequence[SampleRequest], before_step: Callable[[], int], is_aborted: Callable[[str], bool]
    ) -> Iterator[Sample]:
        limits = np.array([request.max_tokens for request in requests])
        keys = np.array([request.key for request in requests], dtype=np.uint64)
        starts = np.array([len(request.prefix_ids) for request in requests])
        temperatures = torch.tensor([request.temperature for request in requests], dtype=torch.float32)
        tokens = np.zeros((len(requests), limits.max()), dtype=np.int64)
        logprobs = np.zeros(tokens.shape, dtype=np.float32)
        versions: list[int] = []
        alive = np.arange(len(requests))  # which request each row of the decoder serves

        def finished(request: int, length: int, reason: FinishReason) -> Sample:
            row = slice(0, length)
            return Sample(
                requests[request].request_id, tokens[request, row].tolist(), logprobs[request, row].tolist(),
                versions[:length], reason,
            )  # fmt: skip

        version = before_step()
        unique: dict[tuple[int, ...], int] = {}
        rows = [unique.setdefault(request.prefix_ids, len(unique)) for request in requests]
        logits = self._decoder.start(list(unique), rows, int(limits.max()))
        for step in range(int(limits.max())):
            versions.append(version)
            named = torch.from_numpy(uniforms(keys[alive], starts[alive] + step))
            drawn, drawn_logprobs = draw(logits, temperatures[alive], named)
            drawn_here = drawn.cpu().numpy()
            tokens[alive, step] = drawn_here
            logprobs[alive, step] = _finite(drawn_logprobs.cpu().numpy())
            is_stopped = self._is_stop[drawn_here]
            is_over = is_stopped | (step + 1 >= limits[alive])
            for row in np.flatnonzero(is_over):
                yield finished(alive[row], step + 1, "stop" if is_stopped[row] else "length")
            version = before_step()
            for row in np.flatnonzero(~is_over):
                if is_aborted(requests[alive[row]].request_id):
                    is_over[row] = True
                    yield finished(alive[row], step + 1, "aborted")
            if is_over.any():
                kept = _fill_holes(is_over)
                if not len(kept):
                    return
                alive = alive[kept]
                index = torch.from_numpy(kept).to(drawn.device)
                drawn = drawn[index]
                self._decoder.keep(index)
            logits = self._decoder.step(drawn)


def draw(logits: Tensor, temperatures: Tensor, named_uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """A token for each row and its log-prob under the sampling distribution, both [rows].

    logits [rows, vocabulary] float32; temperatures [rows], 0 = argmax with the log-prob at
    temperature 1; named_uniforms [rows] float64 in [0, 1). The token is the first whose cumulative
    probability exceeds the uniform (cumulated in float64, times the total, so that rounding can
    never pick a token of probability 0).
    """
    is_greedy = temperatures == 0
    if bool((temperatures != 1).any()):
        logits = logits / torch.where(is_greedy, 1.0, temperatures).to(logits.device)[:, None]
    logprobs = logits.log_softmax(-1)
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    threshold = named_uniforms.to(logits.device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    if bool(is_greedy.any()):
        tokens = torch.where(is_greedy.to(logits.device), logits.argmax(-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _finite(logprobs: np.ndarray) -> np.ndarray:
    if not np.isfinite(logprobs).all():
        raise VeriwardError("the model's logits are not finite, so nothing can be sampled: its weights are broken")
    return logprobs


def _fill_holes(is_over: np.ndarray) -> np.ndarray:
    """The rows that go on, holes filled from the end so that few rows move: [kept] old row numbers."""
    going_on = np.flatnonzero(~is_over)
    kept = np.arange(len(going_on))
    kept[is_over[: len(going_on)]] = going_on[going_on >= len(going_on)]
    return kept
