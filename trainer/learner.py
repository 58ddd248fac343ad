"""The learner: takes batches, moves weights, says what it saw.

A step reads top to bottom: deal the groups to minibatches; for each, count trained tokens over all
its micro-batches, sum weighted losses, clip, check that all is finite, move. One or many
micro-batches give the same gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sandbox.errors import VeriwardError
from trainer.algorithm import AlgorithmSettings, OptimizerSettings
from trainer.batch import Batch, Row, has_signal, micro_batches, trained_vector
from trainer.logprobs import token_logprobs
from trainer.model import load_model
from trainer.objective import clipped_token_loss, is_clipped, k3, token_weights

STATE_FILE = "learner.pt"
_WEIGHTS_FILE = "model.safetensors"


class Learner:
    """Owns the trained weights, their optimiser and its schedule.

    `max_tokens_per_micro_batch` bounds memory, counted with padding; it does not change results.
    """

    def __init__(
        self,
        model_path: str | Path,
        algorithm: AlgorithmSettings | None = None,
        optimizer: OptimizerSettings | None = None,
        device: str = "auto",
        dtype: torch.dtype = torch.float32,
        max_tokens_per_micro_batch: int = 8192,
    ) -> None:
        loaded = load_model(model_path, device, dtype)
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.algorithm = algorithm or AlgorithmSettings()
        self.settings = optimizer or OptimizerSettings()
        self._max_tokens = max_tokens_per_micro_batch
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self.settings.lr,
            betas=self.settings.betas,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )
        self.optimizer_steps = 0

    def step(self, batch: Batch) -> dict[str, float]:
        """Train on a batch: `minibatches_per_step` optimiser steps, fewer when it has fewer groups with a signal.

        The ratio is learner over sampler. Metrics are token means over the whole batch, except
        mismatch_*, which compare learner and sampler before the first optimiser step, and loss,
        grad_norm and lr, which are means over the optimiser steps. Raises VeriwardError, with the weights
        as the last optimiser step left them, when a loss or gradient is not finite.
        """
        minibatches = [part for part in _deal(batch.groups, self.algorithm.minibatches_per_step) if has_signal(part)]
        seen = [self._optimizer_step(rows, batch.temperature) for rows in minibatches]
        if not seen:
            raise VeriwardError("the batch trains no token: every group is empty, unscored, masked or all alike")
        return _summarise(seen)

    def _optimizer_step(self, rows: Sequence[Row], temperature: float) -> dict[str, Tensor | float]:
        parts = micro_batches(rows, self._max_tokens)
        counts = torch.tensor([len(row.trained) for part in parts for row in part])
        weights = iter(token_weights(counts, self.algorithm).split([len(part) for part in parts]))
        self._optimizer.zero_grad(set_to_none=True)
        seen = [self._backward(part, next(weights), temperature) for part in parts]
        grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.max_grad_norm)
        loss = sum(float(part["loss"]) for part in seen)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise VeriwardError(
                f"optimiser step {self.optimizer_steps}: loss {loss} and gradient norm {float(grad_norm)} are not both "
                "finite; the weights did not move. Lower optimizer.lr, or look for extreme log-probs in the rollouts"
            )
        lr = self._set_learning_rate()
        self._optimizer.step()
        self.optimizer_steps += 1
        gathered: dict[str, Any] = {name: torch.cat([part[name] for part in seen]) for name in _TOKEN_METRICS}
        return gathered | {"loss": loss, "grad_norm": float(grad_norm), "lr": lr}

    def _backward(self, rows: Sequence[Row], row_weights: Tensor, temperature: float) -> dict[str, Tensor]:
        """Add these rows' part of the gradient; returns what the metrics need, [tokens] each."""
        logprobs, entropy = token_logprobs(self.model, rows, temperature)
        sampled = [value for row in rows for value in row.logprobs]
        sampler_logprobs = torch.tensor(sampled, dtype=logprobs.dtype, device=logprobs.device)
        advantages = trained_vector(rows, [row.advantage for row in rows], logprobs.dtype).to(logprobs.device)
        weights = trained_vector(rows, row_weights.tolist(), logprobs.dtype).to(logprobs.device)
        low, high = self.algorithm.clip_low, self.algorithm.clip_high
        log_ratio = logprobs - sampler_logprobs
        loss = (weights * clipped_token_loss(log_ratio, advantages, low, high)).sum()
        loss.backward()
        log_ratio = log_ratio.detach()
        return {
            "loss": loss.detach(),
            "entropy": entropy,
            "log_ratio": log_ratio,
            "is_clipped": is_clipped(log_ratio, advantages, low, high),
        }

    def _set_learning_rate(self) -> float:
        """lr * min(1, (n + 1) / (warmup_steps + 1)) for optimiser step n = 0, 1, ..."""
        lr = self.settings.lr * min(1.0, (self.optimizer_steps + 1) / (self.settings.warmup_steps + 1))
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        return lr

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> list[list[float]]:
        """The current log-prob of every trained token, a list for each of `batch.rows`, in their order."""
        rows = batch.rows
        found: dict[int, list[float]] = {id(row): [] for row in rows}
        for part in micro_batches(rows, self._max_tokens):
            values = token_logprobs(self.model, part, batch.temperature)[0]
            for row, own in zip(part, values.split([len(row.trained) for row in part]), strict=True):
                found[id(row)] = own.tolist()
        return [found[id(row)] for row in rows]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by name, tied ones once, as views of the live weights: copy before the next step."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()

    def save(self, path: str | Path) -> None:
        """Write a model folder (loadable by itself) plus the optimiser's state and step count."""
        path = Path(path)
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        state = {"optimizer": self._optimizer.state_dict(), "optimizer_steps": self.optimizer_steps}
        torch.save(state, path / STATE_FILE)

    def load(self, path: str | Path) -> None:
        """Continue bit for bit from what `save` wrote.

        Raises VeriwardError, with nothing changed, when it is missing, unreadable or of another model.
        """
        path = Path(path)
        try:
            weights = load_file(path / _WEIGHTS_FILE)
            state = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, UnpicklingError, SafetensorError) as error:
            raise VeriwardError(f"no learner state can be read from {path}: {error}") from error
        own = dict(self.weights())
        if {name: value.shape for name, value in weights.items()} != {name: value.shape for name, value in own.items()}:
            raise VeriwardError(
                f"the weights in {path} are of another model than this learner's; use the model it began with"
            )
        for name, value in weights.items():
            own[name].copy_(value)
        self._optimizer.load_state_dict(state["optimizer"])
        self.optimizer_steps = state["optimizer_steps"]


_TOKEN_METRICS = ("entropy", "log_ratio", "is_clipped")


def _deal(groups: Sequence[list[Row]], minibatches: int) -> list[list[Row]]:
    """Groups in order, in parts as equal as can be; rows that train nothing left out."""
    bounds = [len(groups) * part // minibatches for part in range(minibatches + 1)]
    dealt = [groups[first:end] for first, end in itertools.pairwise(bounds)]
    return [[row for group in part for row in group if row.trained] for part in dealt]


def _summarise(seen: Sequence[dict[str, Any]]) -> dict[str, float]:
    every = {name: torch.cat([part[name] for part in seen]).double() for name in _TOKEN_METRICS}
    mismatch = seen[0]["log_ratio"].double()
    token_means = {
        "entropy": every["entropy"].mean(),
        "clip_fraction": every["is_clipped"].mean(),
        "ratio_mean": every["log_ratio"].exp().mean(),
        "sampler_kl": k3(every["log_ratio"]).mean(),
        "mismatch_k3_mean": k3(mismatch).mean(),
        "mismatch_k3_max": k3(mismatch).max(),
        "mismatch_probability_error": mismatch.abs().exp().mean(),
    }
    step_means = {name: sum(part[name] for part in seen) / len(seen) for name in ("loss", "grad_norm", "lr")}
    return {
        **{name: float(value) for name, value in token_means.items()},
        **step_means,
        "trained_tokens": float(len(every["log_ratio"])),
        "optimizer_steps": float(len(seen)),
    }
