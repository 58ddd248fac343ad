"""From rollouts to rows of tokens: what is trained, against which log-probs, with which advantage.

A row is a whole rollout as sampled, prompt and tool output included but not trained. Rows stay
ragged; padding and packing happen where a forward pass needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.advantages import group_advantages
from trainer.algorithm import AlgorithmSettings
from trainer.records import Group, Rollout


@dataclass(frozen=True)
class Row:
    """One rollout for the learner.

    token_ids      all its tokens, in order.
    prefix_tokens  how many of them come before the first trained one; rows of a batch that share
                   these tokens share the work on them. At least 1 where anything is trained.
    trained        positions of the trained tokens, ascending.
    logprobs       the sampler's log-prob of each trained token.
    """

    token_ids: tuple[int, ...]
    prefix_tokens: int
    trained: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float


@dataclass(frozen=True)
class Batch:
    """What a learner step trains on: rows by group. `temperature` is the one they were sampled at."""

    groups: list[list[Row]] = field(default_factory=list)
    temperature: float = 1.0

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group]

    @property
    def has_signal(self) -> bool:
        return has_signal(self.rows)


def has_signal(rows: Sequence[Row]) -> bool:
    """Whether these rows have any gradient. AdamW moves by its momentum even on a zero one, so rows
    without a signal must not reach it."""
    return any(row.advantage != 0 and row.trained for row in rows)


def build_batch(groups: Sequence[Group], settings: AlgorithmSettings, temperature: float = 1.0) -> Batch:
    """The batch of some groups of rewarded rollouts.

    A rollout without a reward (unscored) or masked as truncated is neither trained nor part of its
    group's baseline (verl#6452: a masked reply must not move its siblings).
    """
    return Batch([_group_rows(group, settings) for group in groups], temperature)


def _group_rows(group: Group, settings: AlgorithmSettings) -> list[Row]:
    kept = [rollout for rollout in group.rollouts if _is_trained(rollout, settings)]
    advantages = group_advantages(settings.advantage, [rollout.reward for rollout in kept])
    return [rollout_row(rollout, advantage or 0.0) for rollout, advantage in zip(kept, advantages, strict=True)]


def _is_trained(rollout: Rollout, settings: AlgorithmSettings) -> bool:
    is_cut = rollout.finish_reason == "length" and settings.mask_truncated
    return rollout.reward is not None and rollout.finish_reason != "aborted" and not is_cut


def rollout_row(rollout: Rollout, advantage: float) -> Row:
    """A rollout as a row: its sampled tokens are trained, everything given is context.

    Raises ValueError when the first token was sampled: without a token before it, it has no log-prob.
    """
    tokens: list[int] = []
    trained: list[int] = []
    logprobs: list[float] = []
    for segment in rollout.segments:
        if segment.is_sampled:
            trained.extend(range(len(tokens), len(tokens) + len(segment.token_ids)))
            logprobs.extend(segment.logprobs)
        tokens.extend(segment.token_ids)
    if trained and trained[0] == 0:
        raise ValueError(f"rollout of task {rollout.task_id!r} starts with a sampled token; give it a prompt")
    prefix = trained[0] if trained else len(tokens)
    return Row(tuple(tokens), prefix, tuple(trained), tuple(logprobs), advantage)


def scoring_row(token_ids: Sequence[int]) -> Row:
    """A row that asks for the log-prob of every token but the first."""
    trained = tuple(range(1, len(token_ids)))
    return Row(tuple(token_ids), 1, trained, (0.0,) * len(trained), 0.0)


def micro_batches(rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
    """Rows that train something, in parts of at most `max_tokens` padded tokens (a longer row goes alone).

    Sorted by length, so that little is padded, with rows of one prompt together, so that its tokens
    are computed once.
    """
    longest: dict[tuple[int, ...], int] = {}
    for row in rows:
        prefix = row.token_ids[: row.prefix_tokens]
        longest[prefix] = max(longest.get(prefix, 0), len(row.token_ids))
    useful = [row for row in rows if row.trained]
    useful.sort(key=lambda row: (longest[p := row.token_ids[: row.prefix_tokens]], p, len(row.token_ids)))
    parts: list[list[Row]] = []
    width = 0
    for row in useful:
        width = max(width, len(row.token_ids))
        if not parts or width * (len(parts[-1]) + 1) > max_tokens:
            parts.append([])
            width = len(row.token_ids)
        parts[-1].append(row)
    return parts


def trained_vector(rows: Sequence[Row], values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """One value for each row, repeated for each of its trained tokens: [tokens]."""
    counts = torch.tensor([len(row.trained) for row in rows])
    return torch.repeat_interleave(torch.tensor(values, dtype=dtype), counts)
