"""Shaping terms: small plain functions of a rollout, each with its formula, range, unit and source.

They are added to the outcome by `rewards.composition`, with weights, and logged on their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from rewards.extraction import NoAnswer, box_starts, extract_answer, outside_thoughts


def overlong_punishment(completion_tokens: int, max_tokens: int, cache_tokens: int) -> float:
    r"""DAPO's soft overlong punishment, in [-1, 0], of a length in tokens.

    With n = completion_tokens, L_max = max_tokens, L_cache = cache_tokens:

        0                            n <= L_max - L_cache
        (L_max - L_cache - n)/L_cache  L_max - L_cache < n <= L_max
        -1                           n > L_max

    Source: DAPO (arXiv 2503.14476), eq. 13; fixture "DAPO soft overlong ...". verl's form goes on
    below -1 beyond L_max; ms-swift#5557 had L_cache and L_max - L_cache exchanged. Raises
    ValueError unless 0 < L_cache <= L_max.
    """
    if not 0 < cache_tokens <= max_tokens:
        raise ValueError(f"cache_tokens = {cache_tokens}: must be above 0 and at most max_tokens = {max_tokens}")
    return 0.0 - min(max(completion_tokens - (max_tokens - cache_tokens), 0) / cache_tokens, 1.0)


def cosine_length(
    length: int,
    max_length: int,
    *,
    is_correct: bool,
    correct: tuple[float, float] = (1.0, 0.5),
    wrong: tuple[float, float] = (-1.0, -0.5),
    overlong: float = -1.0,
) -> float:
    r"""A reward by length on half a cosine, in the range of the pair that applies, `overlong` beyond the limit.

    With (start, end) the values at length 0 and at max_length:

        end + (start - end) / 2 * (1 + cos(pi * length / max_length))    length <= max_length
        overlong                                                         length > max_length

    So a short right answer earns more than a long one, and less is taken from a long wrong one than from
    a short one. Lengths in tokens. Source: Yeo et al. (arXiv 2502.03373), its cosine reward; open-r1's form goes up
    again beyond max_length and counts characters. Raises ValueError for a max_length below 1 or a
    negative length.
    """
    if max_length < 1 or length < 0:
        raise ValueError(f"length = {length} of max_length = {max_length}: at least 0 of at least 1")
    if length > max_length:
        return overlong
    start, end = correct if is_correct else wrong
    return end + (start - end) / 2 * (1 + math.cos(math.pi * length / max_length))


def kimi_length(lengths: Sequence[int], are_correct: Sequence[bool]) -> list[float]:
    r"""Kimi k1.5's length reward of each reply of one group, in [-0.5, 0.5].

    With lambda = 0.5 - (length - shortest) / (longest - shortest): lambda for a right reply,
    min(0, lambda) for a wrong one; 0 for all where all are equally long. Any unit of length.
    Source: Kimi k1.5 (arXiv 2501.12599), its length penalty. Raises ValueError where the two differ in number.
    """
    shortest, longest = min(lengths, default=0), max(lengths, default=0)
    if shortest == longest:
        return [0.0 for _, _ in zip(lengths, are_correct, strict=True)]
    terms = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    return [term if is_correct else min(0.0, term) for term, is_correct in zip(terms, are_correct, strict=True)]


def l1_exact(length: int, target: int, *, is_correct: bool, alpha: float = 0.0003) -> float:
    """L1-Exact: 1 if correct, else 0, less alpha for each token off the asked-for length; in (-inf, 1].

    Source: Aggarwal and Welleck (arXiv 2503.04697).
    """
    return float(is_correct) - alpha * abs(target - length)


def l1_max(length: int, target: int, *, is_correct: bool, alpha: float = 0.0003, delta: float = 0.5) -> float:
    """L1-Max: a correct reply within its length earns more the shorter it is; in [0, 1].

    is_correct * clip(alpha * (target - length) + delta, 0, 1), lengths in tokens. Source: Aggarwal and
    Welleck (arXiv 2503.04697).
    """
    return float(is_correct) * min(1.0, max(0.0, alpha * (target - length) + delta))


def repetition_punishment(words: Sequence[str], size: int = 3) -> float:
    """The share of n-grams (of `size` words) that came before, negated: in (-1, 0]; 0 below `size` words.

    -(1 - distinct / all). Source: Yeo et al. (arXiv 2502.03373), as open-r1 implements it.
    Raises ValueError for a size below 1.
    """
    if size < 1:
        raise ValueError(f"size = {size}: n-grams have at least 1 word")
    grams = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
    return 0.0 - (1.0 - len(set(grams)) / len(grams)) if grams else 0.0


def tag_format(text: str) -> float:
    """1 for exactly `<think>...</think><answer>...</answer>`, both with content and nothing around; else 0.

    Every tag must stand once, so that none can be farmed, quoted or left open (verifiers#207; with
    MULTILINE open-r1's pattern takes text after the end). White space around the parts is free.
    """
    rest = text.strip()
    for tag in ("think", "answer"):
        opening, closing = f"<{tag}>", f"</{tag}>"
        if rest.count(opening) != 1 or rest.count(closing) != 1 or not rest.startswith(opening):
            return 0.0
        content, _, after = rest[len(opening) :].partition(closing)
        if not content.strip() or "<think>" in content or "<answer>" in content:
            return 0.0
        rest = after.strip()
    return float(not rest)


def box_format(text: str) -> float:
    r"""1 where the reply shows exactly one closed `\boxed{}` with content outside its thoughts; else 0."""
    visible = outside_thoughts(text)
    is_one = len(box_starts(visible)) == 1
    return float(is_one and not isinstance(extract_answer(text), NoAnswer))


def language_consistency(text: str, script: Literal["latin", "cjk", "cyrillic", "arabic", "devanagari"]) -> float:
    """The share of letters that are of one script, in [0, 1]; 0 where there is no letter.

    DeepSeek-R1 (arXiv 2501.12948) takes the share of words in the target language; letters
    of its script can be told without a model, and no word list can be farmed.
    """
    letters = [character for character in text if character.isalpha()]
    of_script = sum(any(low <= ord(character) <= high for low, high in _SCRIPTS[script]) for character in letters)
    return of_script / len(letters) if letters else 0.0


_SCRIPTS = {
    "latin": ((0x41, 0x24F), (0x1E00, 0x1EFF)),
    "cjk": ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7AF), (0x20000, 0x2FA1F)),
    "cyrillic": ((0x400, 0x52F),),
    "arabic": ((0x600, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8FF)),
    "devanagari": ((0x900, 0x97F),),
}
