"""The supervised cold start: from nothing to the embedded base model.

First the model learns to do the tasks, from clean demonstrations; then, shortly, from a teacher
who guesses and has misconceptions, so that it does mostly that and can still do better. Closing
this gap is reinforcement's work. Same seed, versions and processor: the same bytes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from sandbox.errors import ConfigError, VeriwardError
from trainer.checkpoint import file_sha256, new_folder
from trainer.demonstrations import ENVS, ArithmeticNoise, Demonstration, Noise, ProgramNoise, demonstrations
from trainer.embedded import END_OF_TURN, build_model, build_tokenizer, save_model
from trainer.model import render_prompt
from trainer.provenance import cpu_seconds, software_versions

BETAS = (0.9, 0.98)
MOMENTUM = 0.95
MAX_GRAD_NORM = 1.0
TOKENIZER_DEMONSTRATIONS = 1500
_REPORT_EVERY = 50
_FINAL_LR_SHARE = 0.05
_VERSIONS = ("python", "torch", "transformers", "tokenizers")  # what the bytes can depend on

Progress = Callable[..., None]


@dataclass(frozen=True)
class Phase:
    """A stretch of supervised steps on one mixture of demonstrations.

    lr                the peak: reached linearly over `warmup_steps`, left on a cosine to 5 % of it.
    arithmetic_share  of the demonstrations are arithmetic, the others program.
    """

    name: str
    steps: int
    lr: float
    noise: Noise = field(default_factory=Noise)
    arithmetic_share: float = 0.5
    batch_size: int = 32
    warmup_steps: int = 50
    weight_decay: float = 0.01


@dataclass(frozen=True)
class Shown:
    """The tokens of a demonstration."""

    prompt: list[int]
    reply: list[int]


PHASES = (
    Phase("clean", steps=1800, lr=4e-3, arithmetic_share=0.85, weight_decay=0.1),
    Phase(
        "misled",
        steps=200,
        lr=1e-3,
        noise=Noise(
            ArithmeticNoise(guess=0.66, right_guess=0.25, slip=0.03), ProgramNoise(misconception=0.6, slip=0.12)
        ),
        warmup_steps=20,
    ),
)


def warmup(
    out: Path | str, *, seed: int = 0, phases: Sequence[Phase] = PHASES, progress: Progress | None = None
) -> dict[str, Any]:
    """Build tokenizer and model, train them through the phases, write the model directory `out`.

    The directory appears whole or not at all. Its recipe.json holds everything that decides the
    bytes, and each phase's last loss. Returns figures for people. Raises ConfigError when `out`
    exists already, VeriwardError when it cannot be written or a loss is not finite.
    """
    out = Path(out)
    if out.exists():
        raise ConfigError(f"{out} exists already; choose a new folder, or remove it first")
    started, cpu_started = time.monotonic(), cpu_seconds()
    with _one_thread():
        tokenizer = build_tokenizer(_tokenizer_texts(seed))
        model = build_model(tokenizer, seed)
        losses = {
            phase.name: _train_phase(model, tokenizer, phase, seed=seed * len(phases) + number, progress=progress)
            for number, phase in enumerate(phases)
        }
    _write(out, model, tokenizer, _recipe(seed, phases, losses))
    return {
        "parameters": model.num_parameters(),
        "last_losses": losses,
        "weights_sha256": file_sha256(out / "model.safetensors"),
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(cpu_seconds() - cpu_started, 1),
    }


def _train_phase(model: Any, tokenizer: Any, phase: Phase, *, seed: int, progress: Progress | None) -> float:
    """Supervised steps with a loss on reply tokens only; returns the mean loss of the last steps."""
    optimizers = _optimizers(model, phase)
    batches = _batches(phase, tokenizer, seed)
    losses: list[float] = []
    for step in range(phase.steps):
        loss = reply_loss(model, next(batches))
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise VeriwardError(f"warm-up, phase {phase.name}, step {step}: the loss is {losses[-1]}; lower its lr")
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = phase.lr * _lr_share(step, phase)
            optimizer.step()
        if progress is not None and (step + 1) % _REPORT_EVERY == 0:
            progress(f"warm-up: {phase.name}", step + 1, phase.steps, f"loss {_mean(losses[-_REPORT_EVERY:]):.3f}")
    return round(_mean(losses[-_REPORT_EVERY:]), 4)


def _optimizers(model: Any, phase: Phase) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding and the norms.

    Muon (Jordan et al. 2024), its update scaled to the size of AdamW's (Liu et al. 2025,
    arXiv:2502.16982) so that both share one lr, needs less than half of AdamW's steps here.
    """
    matrices = [parameter for name, parameter in model.named_parameters() if _is_matrix(name, parameter)]
    others = [parameter for name, parameter in model.named_parameters() if not _is_matrix(name, parameter)]
    return [
        torch.optim.Muon(
            matrices, lr=phase.lr, weight_decay=phase.weight_decay, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=phase.lr, betas=BETAS, weight_decay=phase.weight_decay, fused=True),
    ]


def _is_matrix(name: str, parameter: torch.Tensor) -> bool:
    return parameter.ndim == 2 and "embed" not in name


def _batches(phase: Phase, tokenizer: Any, seed: int) -> Iterator[list[Shown]]:
    streams = {env: demonstrations(env, phase.noise, seed) for env in ENVS}
    rng = Random(f"warmup/{phase.name}/{seed}")
    while True:
        envs = ["arithmetic" if rng.random() < phase.arithmetic_share else "program" for _ in range(phase.batch_size)]
        yield [demonstration_tokens(tokenizer, next(streams[env])) for env in envs]


def demonstration_tokens(tokenizer: Any, demonstration: Demonstration) -> Shown:
    """Prompt, and reply with the end of the turn, as tokens."""
    prompt = render_prompt(tokenizer, demonstration.prompt)
    reply = tokenizer(demonstration.reply + END_OF_TURN, add_special_tokens=False)["input_ids"]
    return Shown(prompt, reply)


def reply_loss(model: Any, batch: Sequence[Shown]) -> torch.Tensor:
    """Mean cross-entropy of the reply tokens, [].

    The model's own forward, not the learner's: whatever the learner comes to compute faster, the
    bytes of a base model stay the same. Padding is on the right, where causal attention hides it.
    """
    longest = max(len(shown.prompt) + len(shown.reply) for shown in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    is_reply = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, shown in enumerate(batch):
        end = len(shown.prompt) + len(shown.reply)
        ids[row, :end] = torch.tensor(shown.prompt + shown.reply)
        is_reply[row, len(shown.prompt) : end] = True
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    trained = is_reply[:, 1:]
    return cross_entropy(model.lm_head(hidden[trained]), ids[:, 1:][trained])


def _lr_share(step: int, phase: Phase) -> float:
    cosine = 0.5 * (1.0 + math.cos(math.pi * step / phase.steps))
    return min(1.0, (step + 1) / phase.warmup_steps) * (_FINAL_LR_SHARE + (1.0 - _FINAL_LR_SHARE) * cosine)


def _tokenizer_texts(seed: int) -> Iterator[str]:
    for env in ENVS:
        for demonstration in islice(demonstrations(env, Noise(), seed), TOKENIZER_DEMONSTRATIONS):
            yield f"system\nuser\n{demonstration.prompt[-1]['content']}\nassistant\n{demonstration.reply}\n"


def _recipe(seed: int, phases: Sequence[Phase], losses: dict[str, float]) -> dict[str, Any]:
    versions = software_versions()
    return {
        "seed": seed,
        "phases": [asdict(phase) for phase in phases],
        "optimizer": {
            "matrices": f"Muon, momentum {MOMENTUM}",
            "others": f"AdamW, betas {BETAS}",
            "max_grad_norm": MAX_GRAD_NORM,
        },
        "last_losses": losses,
        "versions": {name: versions[name] for name in _VERSIONS},
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums are ordered by thread, so a fixed number of threads is part of the same bytes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _write(out: Path, model: Any, tokenizer: Any, recipe: dict[str, Any]) -> None:
    try:
        with new_folder(out) as folder:
            save_model(folder, model, tokenizer)
            (folder / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise VeriwardError(
            f"the model cannot be written to {out}: {error.strerror}; free space or choose another folder"
        ) from error


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
