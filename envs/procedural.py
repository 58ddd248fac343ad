"""Tasks drawn from a seed, in splits that cannot overlap.

The split of a task is a function of its canonical form alone, so a held-out task can reach the
train split by no seed, no generator and no demonstration that asks `split_of` first.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from envs.base import Split, Task
from sandbox.errors import ConfigError

Item = TypeVar("Item")

FROZEN_SIZES: Mapping[Split, int] = {"dev": 256, "test": 512}
FROZEN_SEED = 0
MAX_TRAIN_SIZE = 50_000

_BUCKETS = 16
_HELD_OUT: Mapping[int, Split] = {0: "dev", 1: "test"}
# A short size has few canonical forms. After this many draws in a row without a new one it counts
# as used up, and the longest size, of which there are always more, takes its turn.
_PATIENCE = 3000


@dataclass(frozen=True)
class TaskStream:
    """Tasks made anew each time they are iterated, one at a time; their number is known beforehand."""

    size: int
    make: Callable[[], Iterator[Task]]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Task]:
        return self.make()


def split_of(canonical: str) -> Split:
    """The split a canonical form belongs to: 1/16 dev, 1/16 test, the rest train."""
    digest = hashlib.blake2b(canonical.encode(), digest_size=8).digest()
    return _HELD_OUT.get(int.from_bytes(digest, "big") % _BUCKETS, "train")


def distinct_items(
    draw: Callable[[random.Random, int], tuple[Item, str] | None],
    *,
    name: str,
    split: Split,
    seed: int,
    size: int,
    mix: Mapping[int, int],
) -> Iterator[tuple[Item, int]]:
    """`size` items of one split, no two with the same canonical form, each with its difficulty.

    draw  makes one item of a given difficulty and its canonical form, or None for a misfit.
    mix   how many of each difficulty, in every block of sum(mix) items; the order inside a block
          is shuffled. The same mix holds in every split, so their difficulty is the same.
    """
    rng = random.Random(f"{name}/{split}/{seed}")
    seen: set[str] = set()
    used_up: set[int] = set()
    longest = max(mix)
    made = 0
    while made < size:
        block = [difficulty for difficulty, count in mix.items() for _ in range(count)]
        rng.shuffle(block)
        for difficulty in block[: size - made]:
            found = None if difficulty in used_up else _draw_new(draw, rng, difficulty, split, seen)
            if found is None:
                used_up.add(difficulty)
                difficulty, found = longest, _draw_new(draw, rng, longest, split, seen)
            if found is None:
                raise ConfigError(f"{name}: only {made} distinct {split} tasks exist; ask for fewer than {size}")
            made += 1
            yield found, difficulty


def _draw_new(
    draw: Callable[[random.Random, int], tuple[Item, str] | None],
    rng: random.Random,
    difficulty: int,
    split: Split,
    seen: set[str],
) -> Item | None:
    for _ in range(_PATIENCE):
        drawn = draw(rng, difficulty)
        if drawn is not None and drawn[1] not in seen and split_of(drawn[1]) == split:
            seen.add(drawn[1])
            return drawn[0]
    return None


def check_sizes(name: str, seed: int, train_size: int) -> None:
    """Raises ConfigError for an option no train split can be made from."""
    if not 1 <= train_size <= MAX_TRAIN_SIZE:
        raise ConfigError(f"{name}: train_size = {train_size}; give 1 to {MAX_TRAIN_SIZE}")
    if seed < 0:
        raise ConfigError(f"{name}: seed = {seed}; give 0 or more")
