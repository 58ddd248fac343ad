"""Text to ids, once, and sampled ids to text: the only two places where tokens and text meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.base import Message
from trainer.model import render_prompt


class TextCodec:
    """The chat template and tokenizer of one model."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(stop_ids)

    def render_prompt(self, messages: Sequence[Message]) -> list[int]:
        return render_prompt(self._tokenizer, messages)

    def decode_completion(self, token_ids: Sequence[int]) -> str:
        """The text of a completion without its stop token. Other special tokens stay visible: dropping
        them once made every <think> vanish and every reward zero (TRL's skip_special_tokens)."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self._stop_ids else token_ids
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text
