"""What the same CPU buys without reinforcement, from the same base and judged alike.

    python -m bench.controls demonstrations|rejection ENV --cpu-s 120 [--seed 0] --out FILE.json

`demonstrations` tunes on clean worked solutions of train tasks: an oracle that reinforcement does
without. `rejection` (RAFT, arXiv 2304.06767) spends half of the budget on sampling train tasks from
the base, keeps the replies the verifier finds correct, and tunes on those. Both: AdamW, batches of 32
replies, learning rate falling linearly to 0 as the budget is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from envs.base import Env
from envs.registry import load_env
from envs.verification import Verifier
from rewards.composition import RewardTerms
from trainer.codec import TextCodec
from trainer.config import load_config
from trainer.demonstrations import Noise, demonstrations
from trainer.evaluation import evaluate
from trainer.local_policy import LocalPolicy
from trainer.model import load_model, resolve_model
from trainer.provenance import cpu_seconds
from trainer.rollouts import Asker
from trainer.schedule import TaskSchedule
from trainer.warmup import Shown, demonstration_tokens, reply_loss

BATCH = 32
LR = 1e-3
TASKS_AT_ONCE = 64
SAMPLES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=["demonstrations", "rejection"])
    parser.add_argument("env")
    parser.add_argument("--cpu-s", type=float, required=True, help="budget, sampling included, evaluation not")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=LR)
    parser.add_argument("--split", default="test", choices=["dev", "test"])
    parser.add_argument("--limit", type=int, help="held-out tasks looked at (default all)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    config = load_config(options.env)
    base = resolve_model(config.policy.model)
    env = load_env(options.env)
    deadline = cpu_seconds() + options.cpu_s
    loaded = load_model(base)
    if options.method == "demonstrations":
        batches = _demonstrated(options.env, loaded.tokenizer, options.seed)
        kept = None
    else:
        rows = asyncio.run(_accepted(env, base, config.policy.max_tokens, options.seed, options.cpu_s / 2))
        batches, kept = _shuffled(rows, options.seed), len(rows)
    steps = _tune(loaded.model, batches, options.lr, options.cpu_s, deadline)
    with tempfile.TemporaryDirectory() as folder:
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        found = evaluate(
            env,
            folder,
            split=options.split,
            limit=options.limit,
            max_tokens=config.policy.max_tokens,
            seed=options.seed,
        )
    result = {
        "method": options.method, "seed": options.seed, "budget_cpu_s": options.cpu_s, "lr": options.lr, "steps": steps,
        "accepted_replies": kept, **found.to_json(),
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def _tune(model: Any, batches: Iterator[list[Shown]], lr: float, budget_s: float, deadline: float) -> int:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    first_left = max(deadline - cpu_seconds(), 1e-9)
    steps = 0
    while (left := deadline - cpu_seconds()) > 0:
        for group in optimizer.param_groups:
            group["lr"] = lr * left / first_left
        loss = reply_loss(model, next(batches))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
    return steps


def _demonstrated(env: str, tokenizer: Any, seed: int) -> Iterator[list[Shown]]:
    # Another stream than the one the base was warmed up on.
    stream = demonstrations(env, Noise(), 1000 + seed)
    while True:
        yield [demonstration_tokens(tokenizer, next(stream)) for _ in range(BATCH)]


async def _accepted(env: Env, base: Path, max_tokens: int, seed: int, budget_s: float) -> list[Shown]:
    """Correct replies to train tasks, each text once a task, until the budget is spent."""
    policy, verifier = LocalPolicy(base), Verifier(env)
    codec = TextCodec(policy.tokenizer, policy.stop_ids)
    asker = Asker(env, policy, verifier, codec, RewardTerms(), seed, max_tokens, stream="rejection/")
    schedule = TaskSchedule(list(env.tasks("train")), seed)
    end = cpu_seconds() + budget_s
    rows: list[Shown] = []
    try:
        while cpu_seconds() < end:
            for group in (await asker.collect(schedule.draw(TASKS_AT_ONCE), SAMPLES, 1.0)).groups:
                correct = {r.text: r for r in group.rollouts if r.verdict and r.verdict.status == "correct"}
                rows += [Shown(*(segment.token_ids for segment in r.segments)) for r in correct.values()]
    finally:
        verifier.close()
        await policy.close()
    return rows


def _shuffled(rows: list[Shown], seed: int) -> Iterator[list[Shown]]:
    for epoch in itertools.count():
        order = rows[:]
        random.Random(f"rejection/{seed}/{epoch}").shuffle(order)
        yield from (order[start : start + BATCH] for start in range(0, len(order), BATCH))


if __name__ == "__main__":
    main()
