"""CPU-seconds of one RL step: Veriward against TRL's GRPOTrainer, on the same base, task and batch.

    python -m bench.trainer_vs_trl [--model FOLDER | --random-weights] [--repeats 3] [--steps 6] [--out FILE.json]

One step of either is 16 prompts x 8 samples, their verdicts, and 2 optimiser steps of the DAPO loss (token
mean, clip 0.2/0.28, advantage = reward - mean, no KL), with dynamic sampling and evaluation off. Each
measurement is a fresh process of one thread; the two take turns, so that a busy machine treats them alike.
The learning rate is so small (1e-9) that both keep sampling from the base's distribution: token counts
then agree but for chance (each repeat has its own seed), and are reported. The first step of each process
warms up and is not counted.
Without --model the embedded base is used. --random-weights measures the other extreme: a model of the base's
shape whose replies nearly all run to the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROMPTS, GROUP_SIZE = 16, 8
LEARNING_RATE = 1e-9
BAR = 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a causal-LM folder with a chat template")
    parser.add_argument("--random-weights", action="store_true", help="random weights of the base's shape")
    parser.add_argument("--seed", type=int, default=0, help="of the first repeat")
    parser.add_argument("--steps", type=int, default=6, help="RL steps counted in each process")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each")
    parser.add_argument("--max-new-tokens", type=int, default=50)
    parser.add_argument("--out", type=Path, help="write the result here as JSON")
    parser.add_argument("--child", choices=list(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(SIDES[options.child](options.model, options.steps, options.max_new_tokens, options.seed)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = options.model or ROOT / "models" / "base"
        if options.random_weights:
            model = random_base(Path(scratch) / "random-base")
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for repeat in range(options.repeats):
            for side in SIDES if repeat % 2 == 0 else reversed(SIDES):
                runs[side].append(in_child(side, model, options.steps, options.max_new_tokens, options.seed + repeat))
                print(f"{side:9} {describe(runs[side][-1])}", flush=True)
    result = compare(runs) | {"model": model.name, "steps": options.steps, "max_new_tokens": options.max_new_tokens}
    print(f"CPU per step, ours / TRL: {result['ratio']:.3f} (per token {result['ratio_per_token']:.3f}); bar {BAR}")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def describe(run: dict[str, float]) -> str:
    return f"{run['cpu_s_per_step']:.3f} CPU-s a step, {run['tokens_per_step']:.0f} tokens a step"


def compare(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians over the repeats with their spread, and the ratios of ours to TRL's."""
    result: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
    for side, measured in runs.items():
        seconds = [run["cpu_s_per_step"] for run in measured]
        result[side] = {
            "cpu_s_per_step": statistics.median(seconds),
            "lowest": min(seconds),
            "highest": max(seconds),
            "tokens_per_step": statistics.median(run["tokens_per_step"] for run in measured),
            "runs": measured,
        }
    ours, trl = result["veriward"], result["trl"]
    result["ratio"] = ours["cpu_s_per_step"] / trl["cpu_s_per_step"]
    result["ratio_per_token"] = result["ratio"] * trl["tokens_per_step"] / ours["tokens_per_step"]
    return result


def in_child(side: str, model: Path, steps: int, max_new_tokens: int, seed: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.trainer_vs_trl", "--child", side, "--model", str(model)]
    command += ["--steps", str(steps), "--max-new-tokens", str(max_new_tokens), "--seed", str(seed)]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | one_thread, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"the {side} side failed:\n{done.stderr[-3000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def cpu_seconds() -> float:
    """Of this process and of children it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measured(marks: list[float], tokens: list[int]) -> dict[str, float]:
    """From a CPU reading at each step's end, the first one a warm-up's, and each step's sampled tokens."""
    seconds = [later - earlier for earlier, later in pairwise(marks)]
    return {"cpu_s_per_step": sum(seconds) / len(seconds), "tokens_per_step": sum(tokens[1:]) / len(tokens[1:])}


def run_veriward(model: Path, steps: int, max_new_tokens: int, seed: int) -> dict[str, float]:
    from envs.registry import load_env
    from envs.verification import Verifier
    from rewards.composition import RewardTerms
    from trainer.algorithm import AlgorithmSettings, OptimizerSettings
    from trainer.batch import build_batch
    from trainer.codec import TextCodec
    from trainer.learner import Learner
    from trainer.local_policy import LocalPolicy
    from trainer.rollouts import Asker, Draw

    algorithm = AlgorithmSettings()
    marks, tokens = [], []

    async def train() -> None:
        env = load_env("arithmetic")
        policy = LocalPolicy(model, device="cpu")
        learner = Learner(model, algorithm, OptimizerSettings(lr=LEARNING_RATE), device="cpu")
        codec = TextCodec(policy.tokenizer, policy.stop_ids)
        asker = Asker(env, policy, Verifier(env), codec, RewardTerms(), seed, max_new_tokens)
        tasks = list(islice(env.tasks("train"), PROMPTS * (steps + 1)))
        for step in range(steps + 1):
            draws = [Draw(task, 0) for task in tasks[step * PROMPTS : (step + 1) * PROMPTS]]
            groups = (await asker.collect(draws, GROUP_SIZE, 1.0)).groups
            learner.step(build_batch(groups, algorithm))
            await policy.publish(learner.weights(), step + 1)
            marks.append(cpu_seconds())
            tokens.append(sum(rollout.completion_tokens for group in groups for rollout in group.rollouts))
        await policy.close()

    asyncio.run(train())
    return measured(marks, tokens)


def run_trl(model: Path, steps: int, max_new_tokens: int, seed: int) -> dict[str, float]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from datasets import Dataset
    from envs.base import Reply
    from envs.registry import load_env

    env = load_env("arithmetic")
    tasks = {task.id: task for task in islice(env.tasks("train"), PROMPTS * (steps + 1))}
    tokenizer = AutoTokenizer.from_pretrained(model)
    marks, tokens = [], []

    def reward(completion_ids: list[list[int]], task_id: list[str], **_: Any) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        texts = [tokenizer.decode([t for t in ids if t != tokenizer.eos_token_id]) for ids in completion_ids]
        verdicts = [env.verify(tasks[name], Reply(text)) for name, text in zip(task_id, texts, strict=True)]
        return [verdict.score or 0.0 for verdict in verdicts]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % 2 == 0:  # two optimiser steps are one RL step
                marks.append(cpu_seconds())

    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch, seed=seed, use_cpu=True, bf16=False, gradient_checkpointing=False, disable_dropout=True,
            learning_rate=LEARNING_RATE, adam_beta2=0.99, lr_scheduler_type="constant", max_grad_norm=1.0,
            max_steps=2 * (steps + 1), per_device_train_batch_size=PROMPTS * GROUP_SIZE // 2, steps_per_generation=2,
            num_generations=GROUP_SIZE, num_iterations=1, max_completion_length=max_new_tokens,
            temperature=1.0, top_p=1.0, top_k=0, beta=0.0, epsilon=0.2, epsilon_high=0.28,
            loss_type="dapo", scale_rewards="none", shuffle_dataset=False, remove_unused_columns=False,
            save_strategy="no", report_to=[], logging_steps=2, disable_tqdm=True,
        )  # fmt: skip
        dataset = Dataset.from_list([{"prompt": env.messages(task), "task_id": name} for name, task in tasks.items()])
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model), reward_funcs=reward, args=config, train_dataset=dataset,
            processing_class=tokenizer, callbacks=[Clock()],
        )  # fmt: skip
        trainer.train()
    return measured(marks, tokens)


SIDES = {"veriward": run_veriward, "trl": run_trl}


def random_base(folder: Path) -> Path:
    """Random weights of the embedded base's shape (0.83 million parameters) with a byte tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.trainer.tiny import VOCABULARY, byte_tokenizer

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=True,
        initializer_range=0.06, bos_token_id=None, eos_token_id=259,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
