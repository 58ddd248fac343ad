"""Randomness by name: every draw is a pure function of what it is for.

A sample's key names (run seed, task, visit, sample); the key and a position give one uniform.
No generator is shared, so neither the order of work nor who else is in a batch can change a draw.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def sample_key(seed: int, task_id: str, visit: int, sample: int) -> int:
    """The 64-bit key of one sample, in [0, 2**64): blake2b over the JSON list of the four names."""
    name = json.dumps([seed, task_id, visit, sample]).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def uniforms(keys: ArrayLike, positions: ArrayLike) -> NDArray[np.float64]:
    """One uniform in [0, 1) for each key and position, which broadcast together.

    The value is output number `position` of SplitMix64 seeded with the key (Steele, Lea, Flood 2014):
    z = key + (position + 1) * 0x9e3779b97f4a7c15, two xor-shift-multiplies, a last xor-shift; its upper
    53 bits are the uniform. Multiples of 2**-53 are exact in float64 and never reach 1.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is the algorithm
        z = np.asarray(keys, np.uint64) + (np.asarray(positions, np.uint64) + np.uint64(1)) * _GAMMA
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
