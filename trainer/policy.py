"""The contract of what generates: an engine that holds weights at a version.

Two implementations answer it (`local` here; a vLLM server in a later room) and one test suite
holds both. Weights arrive only through `publish`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainer.records import FinishReason

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SampleRequest:
    """One completion to draw.

    prefix_ids   the rendered prompt, or prompt plus an already given start of the reply.
    key          64-bit; with the position it names the randomness of every token drawn, so the
                 draw does not depend on who else is in the batch.
    temperature  > 0; 0 means greedy (argmax, log-probs then at temperature 1).
    """

    request_id: str
    prefix_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    key: int


@dataclass(frozen=True)
class Sample:
    """A finished completion. `token_ids` includes the stop token when one was drawn.
    `logprobs` are of the sampling distribution (temperature applied), natural log, float32."""

    request_id: str
    token_ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    finish_reason: FinishReason


class Policy(Protocol):
    """What every policy answers; all async, all safe to call from one event loop.

    `sample` yields each sample as it finishes, in any order, each request exactly once unless
    aborted. `publish` replaces the weights and sets the version; names and shapes must match the
    served model's, else ValueError and the old weights stay whole.
    """

    @property
    def policy_version(self) -> int: ...

    def sample(self, requests: Sequence[SampleRequest]) -> AsyncIterator[Sample]: ...

    async def publish(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None: ...

    async def logprobs(self, token_ids: Sequence[Sequence[int]]) -> list[list[float]]: ...

    async def abort(self, request_ids: Sequence[str]) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def health(self) -> dict[str, object]: ...

    async def close(self) -> None: ...
