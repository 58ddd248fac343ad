"""How many threads torch computes with, when nobody said."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_SMALL_WEIGHTS_BYTES = 64 << 20


def settle_threads(model: Path) -> None:
    """One thread for a small model, unless OMP_NUM_THREADS says otherwise.

    The matrices of a small model are too small to share out, and a second thread spins while it waits:
    on two busy cores the trainer's tests took 101 CPU-seconds with it and 22 without. One thread also
    sums in one order, so that a run's bits do not depend on the number of cores.
    """
    weights = sum(path.stat().st_size for path in model.iterdir() if path.suffix in {".safetensors", ".bin"})
    if "OMP_NUM_THREADS" not in os.environ and weights < _SMALL_WEIGHTS_BYTES:
        torch.set_num_threads(1)
