"""KV-cache decoders: prefill each distinct prefix once, then one token for each row at a time.

All rows of a decoder stand at the same column, prefixes aligned to the right, so a step writes one
column whatever the prompt lengths were. Two of them share one protocol: a fast one for the Llama
family, and one over transformers' own cache for every other causal LM.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.llama import (
    close_layer,
    fuse_layers,
    is_llama_family,
    project_qkv,
    rotations,
    shape_of,
    vocabulary_logits,
)

_GROWTH_COLUMNS = 256


class Decoder(Protocol):
    """Logits are [rows, vocabulary] float32, for the token that follows each row."""

    def start(self, prefixes: Sequence[Sequence[int]], rows: Sequence[int], max_new_tokens: int) -> Tensor:
        """Begin rows; row i continues prefixes[rows[i]]. At most max_new_tokens - 1 steps follow."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row, [rows]."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, [kept]; one that changes its place comes from behind the kept ones."""
        ...

    def refresh(self) -> None:
        """The model's weights changed; rows under way continue on their old cache with the new weights."""
        ...


def decoder_for(model: Any) -> Decoder:
    return FusedDecoder(model) if is_llama_family(model) else CacheDecoder(model)


def left_padded(prefixes: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids [prefixes, longest] with zeros before the shorter ones, and how many zeros: [prefixes]."""
    longest = max(map(len, prefixes))
    padding = [longest - len(prefix) for prefix in prefixes]
    ids = [[0] * pad + list(prefix) for pad, prefix in zip(padding, prefixes, strict=True)]
    return torch.tensor(ids, device=device), torch.tensor(padding, device=device)


class FusedDecoder:
    """For the Llama family. Keys are kept transposed, [layers, rows, kv_heads, head_dim, columns]: the
    score product reads them along columns (measured 1.5-2 times faster than the usual order)."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._shape = shape_of(model)
        self.refresh()

    @torch.inference_mode()
    def refresh(self) -> None:
        self._layers = fuse_layers(self._model)

    @torch.inference_mode()
    def start(self, prefixes: Sequence[Sequence[int]], rows: Sequence[int], max_new_tokens: int) -> Tensor:
        device = self._model.device
        ids, padding = left_padded(prefixes, device)
        index = torch.tensor(rows, device=device)
        self._columns, self._rows = ids.shape[1], len(rows)
        self._last_column = self._columns + max_new_tokens - 1
        self._has_padding = bool(padding.any())
        self._padding = padding[index]
        self._rotations = rotations(self._model, torch.arange(max(self._columns, self._last_column), device=device))
        self._allocate(min(self._last_column, self._columns + _GROWTH_COLUMNS))
        x = self._prefill(ids, padding, index)
        return vocabulary_logits(self._model, x)[index].float()

    def _allocate(self, capacity: int) -> None:
        _, kv_heads, head_dim, _ = self._shape
        like = {"dtype": self._model.dtype, "device": self._model.device}
        size = len(self._layers), self._rows, kv_heads
        self._keys = torch.empty(*size, head_dim, capacity, **like)
        self._values = torch.empty(*size, capacity, head_dim, **like)

    def _prefill(self, ids: Tensor, padding: Tensor, index: Tensor) -> Tensor:
        """Fill the cache and return the last hidden state of each prefix, [prefixes, hidden]."""
        heads, kv_heads, head_dim, epsilon = self._shape
        count, columns = ids.shape
        place = torch.arange(columns, device=ids.device)
        rotation = self._rotations[(place - padding[:, None]).clamp(min=0).flatten()]
        # A padding query sees itself, so that its softmax has something to sum; nobody sees padding.
        visible = (place <= place[:, None]) & (place >= padding[:, None, None]) | (place == place[:, None])
        x = F.embedding(ids.flatten(), self._model.model.embed_tokens.weight)
        for number, layer in enumerate(self._layers):
            qkv = project_qkv(x, layer, self._shape, rotation)
            q, k, v = (part.unflatten(0, (count, columns)).transpose(1, 2) for part in qkv)
            self._keys[number, :, :, :, :columns] = k.transpose(2, 3)[index]
            self._values[number, :, :, :columns] = v[index]
            attended = F.scaled_dot_product_attention(
                q, k, v, attn_mask=visible[:, None], scale=1.0, enable_gqa=heads != kv_heads
            )
            attended = attended.transpose(1, 2).reshape(count * columns, heads * head_dim)
            x = close_layer(x, attended, layer, epsilon)
        return x.view(count, columns, -1)[:, -1]

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        heads, kv_heads, head_dim, epsilon = self._shape
        rows, column = self._rows, self._columns
        if column == self._keys.shape[-1]:
            self._grow()
        self._columns = end = column + 1
        rotation = self._rotations[column - self._padding]
        hidden = self._padding_mask(end)
        x = F.embedding(tokens, self._model.model.embed_tokens.weight)
        for number, layer in enumerate(self._layers):
            q, k, v = project_qkv(x, layer, self._shape, rotation)
            keys, values = self._keys[number, :rows], self._values[number, :rows]
            keys[..., column] = k
            values[:, :, column] = v
            scores = torch.matmul(q.reshape(rows, kv_heads, heads // kv_heads, head_dim), keys[..., :end])
            if hidden is not None:
                scores += hidden
            attended = torch.matmul(scores.softmax(-1), values[:, :, :end]).view(rows, heads * head_dim)
            x = close_layer(x, attended, layer, epsilon)
        return vocabulary_logits(self._model, x).float()

    def _padding_mask(self, end: int) -> Tensor | None:
        """-inf where a row's column is padding, to be added to scores: [rows, 1, 1, columns]."""
        if not self._has_padding:
            return None
        is_padding = torch.arange(end, device=self._padding.device) < self._padding[:, None]
        return torch.where(is_padding, float("-inf"), 0.0).to(self._model.dtype)[:, None, None]

    def _grow(self) -> None:
        keys, values, used = self._keys, self._values, self._columns
        self._allocate(min(self._last_column, used + max(_GROWTH_COLUMNS, used // 2)))
        self._keys[..., :used] = keys[:, : self._rows]
        self._values[:, :, :, :used] = values[:, : self._rows]

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        used = self._columns
        places = torch.arange(len(rows), device=rows.device)
        moved = rows != places
        source, target = rows[moved], places[moved]
        self._keys[:, target, :, :, :used] = self._keys[:, source, :, :, :used]
        self._values[:, target, :, :used] = self._values[:, source, :, :used]
        self._padding = self._padding[rows]
        self._rows = len(rows)


class CacheDecoder:
    """For any causal LM of transformers, over its own forward and cache."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: Any = None
        accepted = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def refresh(self) -> None:
        """Nothing is copied from the model, so there is nothing to renew."""

    @torch.inference_mode()
    def start(self, prefixes: Sequence[Sequence[int]], rows: Sequence[int], max_new_tokens: int) -> Tensor:
        device = self._model.device
        ids, padding = left_padded(prefixes, device)
        index = torch.tensor(rows, device=device)
        self._padding = padding
        self._columns, self._cache = 0, None
        logits = self._forward(ids)[index]
        self._cache.reorder_cache(index)
        self._padding = padding[index]
        return logits

    def _forward(self, ids: Tensor) -> Tensor:
        first, end = self._columns, self._columns + ids.shape[1]
        place = torch.arange(end, device=ids.device)
        positions = {}
        if self._takes_positions:
            positions["position_ids"] = (place[first:] - self._padding[:, None]).clamp(min=0)
        output = self._model(
            input_ids=ids,
            attention_mask=(place >= self._padding[:, None]).long(),
            cache=self._cache,
            use_cache=True,
            **positions,
            **self._last_only,
        )
        self._columns, self._cache = end, output.cache
        logits: Tensor = output.logits[:, -1].float()
        return logits

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        return self._forward(tokens[:, None])

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        self._cache.reorder_cache(rows)
        self._padding = self._padding[rows]
