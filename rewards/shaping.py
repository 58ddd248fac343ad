"""Shaping terms: small plain functions of a rollout, each with its formula, range, unit and source.

They are added to the outcome by `rewards.composition`, with weights, and logged on their own.
"""

from __future__ import annotations


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
