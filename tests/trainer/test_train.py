"""Whole runs on tiny real models: learning steps, stopping anywhere and going on bit for bit."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sandbox.errors import VeriwardError
from tests.trainer.tiny import save_tiny
from trainer.checkpoint import CheckpointError, latest_checkpoint
from trainer.config import RunConfig, config_from
from trainer.interrupts import Interrupts, RunInterrupted
from trainer.train import resume, train

ENV = str(Path(__file__).with_name("coin_env.py"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def llama(tmp_path_factory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("models") / "llama")


def config(model: Path, *, steps: int = 2, outcome: str = "coin", **tables) -> RunConfig:
    data = {
        "steps": steps,
        "env": {"name": ENV, "options": {"outcome": outcome}},
        "policy": {"model": str(model), "max_tokens": 8},
        "groups": {"tasks_per_step": 2, "group_size": 4},
        "optimizer": {"lr": 1e-3},
        "evaluation": {"every_steps": 2, "dev_tasks": 2, "test_tasks": 3, "samples": 2, "k": [1, 2]},
        "checkpoint": {"every_steps": 1, "keep_last": 2},
    }
    for table, values in tables.items():
        data[table] = {**data[table], **values}
    return config_from(data, "test")


def lines(path: Path) -> list[dict]:
    """Metric lines without what a clock decides."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not key.startswith(("wall_s", "cpu_s", "time/", "throughput/"))}
        for row in rows
    ]


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, optimiser, metrics and rollouts, bit for bit."""
    ends = [latest_checkpoint(run / "checkpoints") for run in (one, other)]
    assert ends[0].name == ends[1].name
    assert (ends[0] / "model.safetensors").read_bytes() == (ends[1] / "model.safetensors").read_bytes()
    states = [torch.load(end / "learner.pt", weights_only=True) for end in ends]
    assert states[0]["optimizer_steps"] == states[1]["optimizer_steps"]
    for mine, theirs in zip(*(state["optimizer"]["state"].values() for state in states), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in ("exp_avg", "exp_avg_sq", "step"))
    assert lines(one / "metrics.jsonl") == lines(other / "metrics.jsonl")
    names = sorted(path.name for path in (one / "rollouts").iterdir())
    assert names == sorted(path.name for path in (other / "rollouts").iterdir())
    for name in names:
        assert (one / "rollouts" / name).read_bytes() == (other / "rollouts" / name).read_bytes()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_two_steps_move_the_weights_of_any_small_causal_model(kind, tmp_path):
    model = save_tiny(kind, tmp_path / kind)
    summary = train(config(model, policy={"temperature": 0.7}), tmp_path / "run")
    before, after = (
        load_file(model / "model.safetensors"),
        load_file(tmp_path / "run/checkpoints/step-000002/model.safetensors"),
    )
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(torch.isfinite(value).all() for value in after.values())
    steps = [line for line in lines(tmp_path / "run/metrics.jsonl") if line["kind"] == "train"]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["policy/mismatch_k3_mean"] < 1e-8 for line in steps), "the sampler's log-probs are the learner's"
    assert summary.fields["steps"] == 2
    fields = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [list(fields[side]["pass@1"]) for side in ("before", "after")] == [list(fields["after"]["greedy"])] * 2
    assert (fields["before"]["pass@1"]["tasks"], fields["before"]["pass@1"]["undefined"]) == (3, 0)
    assert (fields["model"], fields["env_options"]) == (str(model), {"outcome": "coin"})
    assert summary.report.is_file()


def test_run_n_equals_run_k_plus_resume_bit_for_bit(llama, tmp_path):
    train(config(llama, steps=6), tmp_path / "whole")
    train(config(llama, steps=3), tmp_path / "parts")
    resume(tmp_path / "parts", steps=6)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_python_takes_what_the_command_line_takes(llama, tmp_path):
    """From the public name alone: a path and overrides, no class of ours."""
    import veriward

    (tmp_path / "mine.toml").write_text(config(llama, steps=2).to_toml())
    for source in (str(tmp_path / "mine.toml"), tmp_path / "mine.toml", config(llama)):
        out = tmp_path / type(source).__name__
        assert veriward.train(source, str(out), overrides=["steps=1"]).fields["steps"] == 1
    found = veriward.evaluate(ENV, llama, samples=1, k=(1,), limit=1, max_tokens=2, out=str(tmp_path / "eval"))
    assert found.samples == 1
    assert (tmp_path / "eval" / "summary.json").is_file()


def test_every_metric_a_run_writes_is_explained(llama, tmp_path):
    train(config(llama, outcome="judge flaky"), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    page = (ROOT / "docs" / "training.md").read_text()
    table = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for cell in table for name in re.findall(r"`([^`]+)`", cell)}
    whole = {name for cell in table for name in re.findall(r"`(\w+/)[^`]*`, `(\w+)`", cell)}
    named |= {f"{cell[0]}{name}" for cell in whole for name in named if "/" not in name}
    named |= {"kind", "policy/mismatch_k3_max"}
    patterns = [r"pass@\d+(/\w+)?", r"greedy/\w+", r"reward/\w+", r"verdict/\w+_share", r"discards/\S+"]
    for name in {name for row in rows for name in row}:
        assert name in named or any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_another_seed_is_another_run(llama, tmp_path):
    """Without this, the test above could pass on a run that draws nothing."""
    for seed in (0, 1):
        train(config_from({**config(llama).model_dump(), "seed": seed}, "test"), tmp_path / str(seed))
    one, other = (latest_checkpoint(tmp_path / str(seed) / "checkpoints") / "model.safetensors" for seed in (0, 1))
    assert one.read_bytes() != other.read_bytes()


def start_run(config: RunConfig, run: Path, tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "config.toml").write_text(config.to_toml())
    command = [sys.executable, "-m", "veriward", "train", str(tmp_path / "config.toml"), "--out", str(run)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_step(process: subprocess.Popen[str], run: Path, step: int) -> None:
    """Until the run has recorded a step; it must still be running then."""
    metrics = run / "metrics.jsonl"
    while process.poll() is None:
        if metrics.exists() and f'"step": {step}, ' in metrics.read_text():
            return
    pytest.fail(f"the run ended too early: {process.communicate()[0]}")


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_stopped_or_killed_goes_on_to_the_same_end(how, code, llama, tmp_path):
    whole = config(llama, steps=8)
    train(whole, tmp_path / "whole")
    process = start_run(whole, tmp_path / "broken", tmp_path)
    wait_for_step(process, tmp_path / "broken", 2)
    os.kill(process.pid, how)
    output = process.communicate()[0]
    assert process.returncode == code, output
    if how == signal.SIGINT:
        assert f"veriward resume {tmp_path / 'broken'}" in output
    resume(tmp_path / "broken")
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_a_task_set_without_any_signal_ends_the_run_with_a_clear_line_and_unmoved_weights(llama, tmp_path):
    """PrimeIntellect-ai/prime-rl#2353: every group at zero advantage hung the run."""
    with pytest.raises(VeriwardError, match=r"nothing to learn from; give easier tasks") as ended:
        train(config(llama, steps=9, outcome="always wrong", groups={"max_steps_without_signal": 2}), tmp_path / "run")
    assert "\n" not in str(ended.value)
    end = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert end.name == "step-000002"
    assert (end / "model.safetensors").read_bytes() == _saved_again(llama, tmp_path)


def _saved_again(model: Path, tmp_path: Path) -> bytes:
    from trainer.learner import Learner

    Learner(model).save(tmp_path / "again")
    return (tmp_path / "again" / "model.safetensors").read_bytes()


def test_without_dynamic_sampling_a_batch_of_zero_signal_groups_changes_no_weight(llama, tmp_path):
    """A zero gradient still moves AdamW by its momentum, so such a step must not reach the optimiser."""
    settings = {"dynamic_sampling": False, "max_steps_without_signal": 2}
    with pytest.raises(VeriwardError, match="nothing to learn from"):
        train(config(llama, steps=9, outcome="always wrong", groups=settings), tmp_path / "run")
    steps = [line for line in lines(tmp_path / "run/metrics.jsonl") if line["kind"] == "train"]
    assert [line["groups/zero_signal_share"] for line in steps] == [1.0, 1.0]
    assert all("optimizer/loss" not in line for line in steps)


def test_a_judge_that_is_down_is_never_a_score(llama, tmp_path):
    """NVIDIA-NeMo/Gym#3070: a judge's failure was scored 0."""
    with pytest.raises(VeriwardError, match=r"no rollout of the last step could be scored \(.*judge unreachable"):
        train(config(llama, outcome="judge goes down", groups={"max_steps_without_signal": 1}), tmp_path / "run")


def test_a_verifier_that_can_score_nothing_stops_the_run_before_a_step_with_its_cause_in_full(llama, tmp_path):
    with pytest.raises(VeriwardError, match="stopped before training") as ended:
        train(config(llama, outcome="judge down"), tmp_path / "run")
    message = str(ended.value)
    assert "ConnectionError: judge unreachable at the address of its last known host, which is long" in message
    assert "golden()" in message, "without a golden case nobody can tell whose fault it is"
    assert "\n" not in message
    assert not list((tmp_path / "run" / "rollouts").iterdir())


def test_unscored_rollouts_leave_their_group_and_are_counted_by_cause(llama, tmp_path):
    summary = train(config(llama, outcome="judge flaky"), tmp_path / "run")
    steps = [line for line in lines(tmp_path / "run/metrics.jsonl") if line["kind"] == "train"]
    trained = sum(line.get("discards/unscored:judge_unreachable", 0) for line in steps)
    assert 0 < trained <= summary.fields["unscored"]["judge_unreachable"]
    for path in (tmp_path / "run" / "rollouts").iterdir():
        for row in map(json.loads, path.read_text().splitlines()):
            assert (row["reward"] is None) == (row["verdict"]["status"] == "unscored")


def test_a_checkpoint_of_another_model_is_refused(llama, tmp_path):
    train(config(llama), tmp_path / "run")
    other = save_tiny("llama", tmp_path / "other", seed=1)
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace(str(llama), str(other)))
    with pytest.raises(CheckpointError, match="made with model_hash"):
        resume(tmp_path / "run", steps=4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train_size": 0}, "train split is empty"),
        ({"with_reference": False}, "task without reference"),
        ({"sides": 2}, "sides"),
    ],
)
def test_a_faulty_task_set_is_refused_before_a_folder_is_made(options, words, llama, tmp_path):
    with pytest.raises(VeriwardError, match=words):
        train(config(llama, env={"options": options}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_empty_is_refused_and_kept(llama, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep")
    with pytest.raises(VeriwardError, match="not empty"):
        train(config(llama), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("fits", ["nothing", "the weights only"])
def test_a_full_disk_while_saving_is_one_line_and_no_half_checkpoint(fits, llama, tmp_path):
    """The kernel's own limit on a file's size stands in for a full disk: the same write fails. Weights
    and optimiser are written by two libraries, each with its own error."""
    weights = (llama / "model.safetensors").stat().st_size
    limit = {"nothing": weights // 2, "the weights only": weights * 3 // 2}[fits]
    (tmp_path / "config.toml").write_text(config(llama).to_toml())
    code = (
        "import resource, signal, sys; from veriward.cli import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "train", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == 1, ended.stderr
    assert last.startswith("veriward: ")
    assert "checkpoint not saved" in last
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("moment", [("evaluating test", 3), ("training", 1), ("evaluating dev", 2)])
def test_ctrl_c_at_any_moment_leaves_a_run_that_goes_on_to_the_same_end(moment, llama, tmp_path):
    whole = config(llama, steps=4, checkpoint={"every_steps": 3})
    train(whole, tmp_path / "whole")
    asked = []

    def interrupt(phase, done, total, note=""):
        if (phase, done) == moment and not asked:
            asked.append(phase)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(RunInterrupted, match="veriward resume"):
        train(whole, tmp_path / "parts", progress=interrupt)
    resume(tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    "place",
    ["os.replace", "trainer.run_folder.RunFolder._make_record", "trainer.rollouts.Asker._rollout"],
)
def test_a_run_that_is_killed_before_its_first_checkpoint_can_be_begun_or_resumed(place, llama, tmp_path):
    """A folder without a checkpoint once was taken by neither train nor resume."""
    whole = config(llama, steps=1)
    train(whole, tmp_path / "whole")
    code = (
        "import os, sys; from unittest import mock; from trainer.train import train\n"
        "def die(*arguments, **more): os.kill(os.getpid(), 9)\n"
        f"with mock.patch({place!r}, die): train(sys.argv[1], sys.argv[2])"
    )
    (tmp_path / "config.toml").write_text(whole.to_toml())
    command = [sys.executable, "-c", code, str(tmp_path / "config.toml"), str(tmp_path / "parts")]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9
    if (tmp_path / "parts" / "config.toml").exists():
        with pytest.raises(VeriwardError, match="veriward resume"):
            train(whole, tmp_path / "parts")
        resume(tmp_path / "parts")
    else:
        with pytest.raises(VeriwardError, match="not a run folder"):
            resume(tmp_path / "parts")
        train(whole, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("phase", ["evaluating test", "training"])
def test_a_second_ctrl_c_says_how_to_go_on_and_it_does(phase, llama, tmp_path):
    whole = config(llama, steps=2, checkpoint={"every_steps": 2})
    train(whole, tmp_path / "whole")

    def interrupt(now, done, total, note=""):
        if now == phase:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(RunInterrupted, match="veriward resume"):
        train(whole, tmp_path / "parts", progress=interrupt)
    resume(tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_says_so_and_one_whose_checkpoints_are_gone_is_not_begun_again(llama, tmp_path):
    train(config(llama), tmp_path / "run")
    record = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(VeriwardError, match=r"finished, it is at step 2 already; give --steps above"):
        resume(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(VeriwardError, match=r"no complete checkpoint is left; begin again with `veriward train"):
        resume(tmp_path / "run", steps=3)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == record


def test_a_stop_between_two_rounds_of_a_step_skips_no_task(llama, tmp_path, monkeypatch):
    """The rounds sampled so far are given up, so their tasks must be asked again."""
    whole = config(llama, steps=2, outcome="always wrong")
    train(whole, tmp_path / "whole")
    calls, check = [], Interrupts.check

    def stop_at_the_second_round(self):
        calls.append("test, dev, first round, second round")
        self._asked = len(calls) == 4
        check(self)

    monkeypatch.setattr(Interrupts, "check", stop_at_the_second_round)
    with pytest.raises(RunInterrupted):
        train(whole, tmp_path / "parts")
    monkeypatch.undo()
    resume(tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("place", ["trainer.run_folder.os.truncate", "trainer.checkpoint.os.rename"])
def test_a_resume_that_is_killed_half_way_can_be_resumed(place, llama, tmp_path):
    """While the record is cut back, and while the next checkpoint is put in its place."""
    train(config(llama, steps=4), tmp_path / "whole")
    train(config(llama, steps=2), tmp_path / "parts")
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # as a kill while it was written leaves it
    code = (
        "import os, sys; from unittest import mock; from trainer.train import resume\n"
        "def die(*arguments): os.kill(os.getpid(), 9)\n"
        f"with mock.patch({place!r}, die): resume(sys.argv[1], steps=4)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "parts")], cwd=ROOT, check=False)
    assert killed.returncode == -9
    resume(tmp_path / "parts", steps=4)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    left = [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()]
    assert sorted(left) == ["step-000003", "step-000004"]


@pytest.mark.parametrize("file", ["metrics.jsonl", "rollouts/step-000002.jsonl"])
def test_a_disk_that_fills_up_between_checkpoints_is_one_line_and_nothing_is_lost(file, llama, tmp_path):
    """/dev/full takes no byte, as a full disk does."""
    whole = config(llama, steps=3)
    train(whole, tmp_path / "whole")
    target, kept = tmp_path / "parts" / file, tmp_path / "kept"

    def fill(phase, done, total, note=""):
        if (phase, done) == ("training", 1):
            if target.exists():
                target.rename(kept)
            target.symlink_to("/dev/full")

    with pytest.raises(VeriwardError, match=r"cannot be written \(No space left.*veriward resume") as full:
        train(whole, tmp_path / "parts", progress=fill)
    assert "\n" not in str(full.value)
    target.unlink()
    if kept.exists():
        kept.rename(target)
    resume(tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_two_processes_never_work_on_one_run(llama, tmp_path):
    train(config(llama), tmp_path / "run")
    seen = []

    def second(phase, done, total, note=""):
        if not seen:
            seen.append(phase)
            with pytest.raises(VeriwardError, match="another process works on this run"):
                resume(tmp_path / "run", steps=5)

    resume(tmp_path / "run", steps=3, progress=second)
    assert seen
    assert latest_checkpoint(tmp_path / "run" / "checkpoints").name == "step-000003"


def test_a_resume_that_is_refused_changes_nothing(llama, tmp_path):
    """It once wrote its config first, and the run then was further than its config asked."""
    train(config(llama, steps=3), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(VeriwardError, match="at step 3 already; give --steps above"):
        resume(tmp_path / "run", steps=1)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_record_shorter_than_its_checkpoint_is_refused_not_filled_with_zeros(llama, tmp_path):
    train(config(llama), tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:50])
    with pytest.raises(VeriwardError, match="holds 50 bytes"):
        resume(tmp_path / "run", steps=3)
    assert metrics.stat().st_size == 50


def test_a_run_can_be_resumed_from_another_folder(llama, tmp_path, monkeypatch):
    (tmp_path / "env.py").write_text(Path(ENV).read_text())
    monkeypatch.chdir(tmp_path)
    relative = config(Path(os.path.relpath(llama)), env={"name": "env.py"})
    train(relative, "run")
    monkeypatch.chdir("/")
    assert resume(tmp_path / "run", steps=3).fields["steps"] == 3


def test_other_train_tasks_are_not_resumed_with(llama, tmp_path):
    """NVIDIA-NeMo/RL#2519: the cursor went on into other data."""
    train(config(llama), tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace('outcome = "coin"', 'outcome = "coin"\ntrain_size = 49'))
    with pytest.raises(CheckpointError, match="made with train_hash"):
        resume(tmp_path / "run", steps=4)


def test_a_step_whose_replies_are_all_masked_moves_no_weight_and_the_run_says_why(llama, tmp_path):
    masked = config(llama, steps=9, policy={"max_tokens": 1}, groups={"max_steps_without_signal": 2})
    data = {**masked.model_dump(), "algorithm": {"mask_truncated": True}}
    with pytest.raises(VeriwardError, match=r"truncated and masked, so give a longer policy\.max_tokens"):
        train(config_from(data, "test"), tmp_path / "run")
    steps = [line for line in lines(tmp_path / "run/metrics.jsonl") if line["kind"] == "train"]
    assert steps[0]["discards/truncated"] > 0
    end = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert (end / "model.safetensors").read_bytes() == _saved_again(llama, tmp_path)


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "dr_grpo"])
def test_a_train_split_of_one_task_and_every_advantage_train(advantage, llama, tmp_path):
    small = config(llama, env={"options": {"train_size": 1}}, groups={"tasks_per_step": 3, "group_size": 6})
    data = {**small.model_dump(), "algorithm": {"advantage": advantage}}
    train(config_from(data, "test"), tmp_path / "run")
    for path in (tmp_path / "run" / "rollouts").iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        names = {(row["task_id"], row["visit"], row["sample"]) for row in rows}
        assert len(names) == len(rows) >= 3 * 6
