"""The learner's forward: the log-prob and entropy of every trained token of some rows.

Work is done once per distinct token: a prompt shared by a group is computed once, nothing is
computed for padding or for tokens that predict nothing trained, and logits exist at trained
positions only. Models outside the Llama family take a padded forward of transformers, same results.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.batch import Row
from trainer.llama import close_layer, fuse_layers, is_llama_family, project_qkv, rotations, shape_of, vocabulary_logits

_MOST_SCORES_KEPT = 1 << 22


def token_logprobs(model: Any, rows: Sequence[Row], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-prob (differentiable) and entropy (not) of each trained token at a temperature, both [tokens].

    Tokens in the order of the rows, each row's in its own order. Every row trains something.
    """
    logits = _packed_logits(model, rows) if is_llama_family(model) else _padded_logits(model, rows)
    targets = torch.tensor([row.token_ids[place] for row in rows for place in row.trained], device=logits.device)
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(logits, targets, temperature)
    return result


class _TokenLogprobs(torch.autograd.Function):
    """log p(target) and the entropy from logits [tokens, vocabulary]; d log p / d logits = (onehot - p) / T."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs = (logits / temperature if temperature != 1.0 else logits).log_softmax(-1)
        probabilities = logprobs.exp()
        entropy = -torch.linalg.vecdot(probabilities, logprobs)
        ctx.save_for_backward(probabilities, targets)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs.gather(-1, targets[:, None])[:, 0], entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        probabilities, targets = ctx.saved_tensors
        grad = (grads[0] / ctx.temperature)[:, None]
        result = probabilities * -grad
        return result.scatter_add_(-1, targets[:, None], grad), None, None


def _padded_logits(model: Any, rows: Sequence[Row]) -> Tensor:
    """Right-padded rows through the model's own forward; logits before each trained token."""
    longest = max(len(row.token_ids) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row.token_ids)] = torch.tensor(row.token_ids)
        mask[number, : len(row.token_ids)] = 1
    inputs = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = torch.arange(longest, device=model.device).expand(len(rows), -1)
    logits = model(**inputs, use_cache=False).logits
    row_of = torch.tensor([number for number, row in enumerate(rows) for _ in row.trained], device=model.device)
    before = torch.tensor([place - 1 for row in rows for place in row.trained], device=model.device)
    selected: Tensor = logits[row_of, before]
    return selected if selected.dtype == torch.float64 else selected.float()


@dataclass(frozen=True)
class _Block:
    """Some stretches of tokens with what each may look at, as indices into the packed tokens.

    queries, keys  [stretches, longest], padded with the number of packed tokens (a row of zeros).
    is_hidden      [stretches, 1, queries, keys]: keys later than the query, or padding.
    """

    queries: Tensor
    keys: Tensor
    is_hidden: Tensor


@dataclass(frozen=True)
class _Packing:
    """Distinct tokens of some rows: first every distinct prefix, then what follows it in each row."""

    token_ids: Tensor
    positions: Tensor
    blocks: list[_Block]
    gather: Tensor  # [packed tokens]: where each token's attention is in the blocks' padded outputs
    before_trained: Tensor  # [trained tokens]: the packed token that predicts each


def _packed_logits(model: Any, rows: Sequence[Row]) -> Tensor:
    packing = _pack(rows, model.device)
    shape = shape_of(model)
    rotation = rotations(model, packing.positions)
    x = F.embedding(packing.token_ids, model.model.embed_tokens.weight)
    for layer in fuse_layers(model):
        q, k, v = project_qkv(x, layer, shape, rotation)
        x = close_layer(x, _attend(q, k, v, packing), layer, shape.epsilon)
    return vocabulary_logits(model, x.index_select(0, packing.before_trained))


def _pack(rows: Sequence[Row], device: torch.device) -> _Packing:
    token_ids: list[int] = []
    positions: list[int] = []
    starts: dict[tuple[int, ...], int] = {}
    for row in rows:
        prefix = row.token_ids[: row.prefix_tokens]
        if prefix not in starts:
            starts[prefix] = len(token_ids)
            token_ids.extend(prefix)
            positions.extend(range(len(prefix)))
    prefix_keys = [np.arange(start, start + len(prefix)) for prefix, start in starts.items()]
    queries, keys, before = [], [], []
    for row in rows:
        start, first, end = starts[row.token_ids[: row.prefix_tokens]], row.prefix_tokens, row.trained[-1]
        own = np.arange(len(token_ids), len(token_ids) + end - first)
        token_ids.extend(row.token_ids[first:end])  # the last trained token predicts nothing
        positions.extend(range(first, end))
        places = np.concatenate([np.arange(start, start + first), own])
        before.append(places[np.array(row.trained) - 1])
        if len(own):
            queries.append(own)
            keys.append(places)
    blocks = [_block(prefix_keys, prefix_keys, len(token_ids), device)]
    if queries:
        blocks.append(_block(queries, keys, len(token_ids), device))
    padded = torch.cat([block.queries.flatten() for block in blocks])
    gather = torch.empty(len(token_ids) + 1, dtype=torch.long, device=device)
    gather[padded] = torch.arange(len(padded), device=device)
    return _Packing(
        torch.tensor(token_ids, device=device),
        torch.tensor(positions, device=device),
        blocks,
        gather[:-1],
        torch.from_numpy(np.concatenate(before)).to(device),
    )


def _block(queries: list[np.ndarray], keys: list[np.ndarray], pad: int, device: torch.device) -> _Block:
    """Queries are the last of each stretch's keys."""
    query_counts = np.array([len(part) for part in queries])[:, None, None]
    key_counts = np.array([len(part) for part in keys])[:, None, None]
    query = np.arange(query_counts.max())[:, None]
    # A padding query sees what the last real one sees: its softmax must have something to sum.
    sees_up_to = np.minimum(query, query_counts - 1) + key_counts - query_counts
    is_hidden = np.arange(key_counts.max()) > sees_up_to
    return _Block(
        _padded_index(queries, pad).to(device),
        _padded_index(keys, pad).to(device),
        torch.from_numpy(is_hidden)[:, None].to(device),
    )


def _padded_index(parts: list[np.ndarray], pad: int) -> Tensor:
    index = np.full((len(parts), max(map(len, parts))), pad)
    for number, part in enumerate(parts):
        index[number, : len(part)] = part
    return torch.from_numpy(index)


def _attend(q: Tensor, k: Tensor, v: Tensor, packing: _Packing) -> Tensor:
    """Attention of every packed token over its own row: [tokens, heads * head_dim]."""
    _, heads, head_dim = q.shape
    flat_q, flat_k, flat_v = (F.pad(part.flatten(1), (0, 0, 0, 1)) for part in (q, k, v))
    outputs = []
    for block in packing.blocks:
        query, key, value = (
            flat.index_select(0, index.flatten()).view(*index.shape, -1, head_dim).transpose(1, 2)
            for index, flat in ((block.queries, flat_q), (block.keys, flat_k), (block.keys, flat_v))
        )
        attended = _attention(query, key, value, block.is_hidden)
        outputs.append(attended.transpose(1, 2).reshape(-1, heads * head_dim))
    return torch.cat(outputs).index_select(0, packing.gather)


def _attention(query: Tensor, key: Tensor, value: Tensor, is_hidden: Tensor) -> Tensor:
    """softmax(query key^T) value with grouped heads: [stretches, heads, queries, head_dim].

    While the scores are few, three plain operations with the heads of a group folded into the queries
    take two thirds of the time of the fused kernel, which is for scores too many to keep.
    """
    stretches, heads, queries, head_dim = query.shape
    kv_heads, keys = key.shape[1:3]
    if stretches * heads * queries * keys > _MOST_SCORES_KEPT:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=~is_hidden, scale=1.0, enable_gqa=heads != kv_heads
        )
    folded = query.reshape(stretches, kv_heads, -1, head_dim)
    scores = torch.matmul(folded, key.transpose(2, 3)).view(stretches, heads, queries, keys)
    weights = scores.masked_fill_(is_hidden, float("-inf")).softmax(-1)
    return torch.matmul(weights.view(stretches, kv_heads, -1, keys), value).view(query.shape)
