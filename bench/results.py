"""The three-seed tables of docs/results.md: runs, controls at equal steps and at equal CPU.

    python -m bench.results --work FOLDER [--jobs 2] [--only NAME ...]

Every job is a process of one thread; `--jobs` of them run side by side. What is in FOLDER already
is not run again, so an interrupted table goes on where it was. Prints the tables as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ENVS = ("arithmetic", "program")
RANDOM = {"arithmetic": "bench.random_rewards:RandomArithmetic", "program": "bench.random_rewards:RandomProgram"}
SEEDS = (0, 1, 2)
TEST_TASKS = 512
METHODS = ("reinforcement", "random rewards", "rejection", "demonstrations")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=METHODS, default=METHODS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for methods in (METHODS[:2], METHODS[2:]):
        jobs = [(env, m, seed) for m in methods if m in options.only for seed in SEEDS for env in ENVS]
        with ThreadPoolExecutor(options.jobs) as pool:
            for done in pool.map(lambda job: _run(options.work, *job), jobs):
                print(done, file=sys.stderr, flush=True)
    for env in ENVS:
        print(_table(options.work, env, [m for m in METHODS if m in options.only]))


def _run(work: Path, env: str, method: str, seed: int) -> str:
    """One job; its result is summary.json of a run, or a control's JSON."""
    path = _result(work, env, method, seed)
    if path.exists():
        return f"{path}: kept"
    if method in ("rejection", "demonstrations"):
        budget = _training_cpu_s(_result(work, env, "reinforcement", seed).parent)
        arguments = ["bench.controls", method, env, "--seed", str(seed), "--cpu-s", f"{budget:.1f}", "--out", str(path)]
    else:
        sets = [f"seed={seed}", f"evaluation.test_tasks={TEST_TASKS}"]
        if method == "random rewards":
            sets.append(f"env.name={RANDOM[env]}")
        arguments = ["veriward", "train", env, "--out", str(path.parent)]
        arguments += [word for value in sets for word in ("--set", value)]
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with path.with_name(path.name + ".log").open("w") if path.parent == work else open(os.devnull, "w") as log:
        subprocess.run([sys.executable, "-m", *arguments], check=True, env=os.environ | quiet, stdout=log, stderr=log)
    return f"{path}: done"


def _result(work: Path, env: str, method: str, seed: int) -> Path:
    name = f"{env}-{method.replace(' ', '-')}-{seed}"
    return work / f"{name}.json" if method in ("rejection", "demonstrations") else work / name / "summary.json"


def _training_cpu_s(run: Path) -> float:
    """CPU seconds of a run's training steps, evaluations left out: each line carries the seconds so far."""
    spent = before = 0.0
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        spent += (line["cpu_s"] - before) * (line["kind"] == "train")
        before = line["cpu_s"]
    return spent


def _table(work: Path, env: str, methods: list[str]) -> str:
    rows = [
        f"\n### {env}\n",
        "| method | seed | pass@1 | pass@8 | greedy | training CPU-s |",
        "|---|---|---|---|---|---|",
    ]
    base = json.loads(_result(work, env, "reinforcement", 0).read_text())["before"]
    rows.append(f"| base | | {_cells(base)} | |")
    for method in methods:
        found = [json.loads(_result(work, env, method, seed).read_text()) for seed in SEEDS]
        afters = [result.get("after", result) for result in found]
        for seed, (result, after) in enumerate(zip(found, afters, strict=True)):
            run = _result(work, env, method, seed).parent
            spent = _training_cpu_s(run) if "after" in result else result["budget_cpu_s"]
            rows.append(f"| {method} | {seed} | {_cells(after)} | {spent:.0f} |")
        rows.append(f"| {method} | mean (least to most) | {_spread(afters)} | |")
    return "\n".join(rows)


def _cells(estimates: dict[str, Any]) -> str:
    shown = [estimates[name] for name in ("pass@1", "pass@8", "greedy")]
    return " | ".join(f"{e['value']:.3f} [{e['low']:.3f}, {e['high']:.3f}]" for e in shown)


def _spread(afters: list[dict[str, Any]]) -> str:
    columns = [[after[name]["value"] for after in afters] for name in ("pass@1", "pass@8", "greedy")]
    return " | ".join(f"{statistics.mean(c):.3f} ({min(c):.3f} to {max(c):.3f})" for c in columns)


if __name__ == "__main__":
    main()
