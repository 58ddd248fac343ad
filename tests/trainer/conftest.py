"""One thread for tiny models: more only spin and wait for each other on a busy machine."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
