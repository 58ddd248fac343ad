"""An evaluation says what it found, on how many tasks, and refuses what would mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.errors import ConfigError, VeriwardError
from tests.trainer.tiny import save_tiny
from trainer.evaluation import evaluate

ENV = str(Path(__file__).with_name("coin_env.py"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny("qwen2", tmp_path_factory.mktemp("model"))


def look(model, outcome="coin", **changes):
    options = {"samples": 4, "k": (1, 4), "limit": 4, "max_tokens": 5, "env_options": {"outcome": outcome}, **changes}
    return evaluate(ENV, model, **options)


def test_figures_are_those_of_the_replies_it_keeps(model, tmp_path):
    result = look(model, out=tmp_path / "eval")
    rows = [json.loads(line) for line in (tmp_path / "eval" / "results.jsonl").read_text().splitlines()]
    by_task: dict[str, list[bool]] = {}
    for row in rows:
        by_task.setdefault(row["task_id"], []).append(row["verdict"]["status"] == "correct")
    assert [len(right) for right in by_task.values()] == [4] * 4
    assert 0 < sum(map(sum, by_task.values())) < 16, "a figure of 0 or 1 would prove nothing"
    assert result.pass_at_k[1].value == pytest.approx(sum(map(sum, by_task.values())) / 16)
    assert result.pass_at_k[4].value == pytest.approx(sum(map(any, by_task.values())) / 4)
    assert result.greedy.tasks == 4
    kept = json.loads((tmp_path / "eval" / "summary.json").read_text())
    assert (kept["pass@1"]["value"], kept["samples"]) == (result.pass_at_k[1].value, 4)
    assert kept["sampling"] == {"temperature": 1.0, "max_tokens": 5, "seed": 0}


def test_the_same_seed_repeats_and_samples_of_a_task_differ(model):
    one, same, other = (look(model, seed=seed) for seed in (0, 0, 1))
    texts = [[rollout.text for rollout in result.rollouts] for result in (one, same, other)]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) == 16


def test_what_no_judge_scored_is_undefined_and_never_a_zero(model):
    """NVIDIA-NeMo/Gym#3070: a judge's failure was scored 0."""
    result = look(model, outcome="judge down")
    data = result.to_json()
    for name in ("pass@1", "pass@4", "greedy"):
        assert (data[name]["value"], data[name]["tasks"], data[name]["undefined"]) == (None, 0, 4)
    ((cause, count),) = result.unscored.items()
    assert cause == "verify_of_env_coin_raised_ConnectionError"
    assert "judge unreachable" in result.unscored_examples[cause]
    assert count == 4 * 4 + 4  # the greedy replies too


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": ()}, "k = "),
        ({"k": (1, 5)}, "samples = 4"),
        ({"samples": 0}, "samples = 0"),
        ({"limit": 0}, "limit = 0"),
        ({"limit": -1}, "limit = -1"),
        ({"temperature": 0.0}, "temperature = 0.0"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"temperature": float("inf")}, "temperature = inf"),
    ],
)
def test_settings_that_mean_nothing_are_refused(model, changes, words):
    with pytest.raises(ConfigError) as refused:
        look(model, **changes)
    assert words in str(refused.value)


def test_a_run_folder_is_said_to_be_one_with_how_to_take_its_model_out(tmp_path):
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(VeriwardError, match=r"a run folder, not a model; `veriward export model"):
        look(tmp_path)


def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(ConfigError, match="give another"):
            look("no model is looked for", out=out)
    assert (tmp_path / "file").read_text() == ""


def test_a_disk_that_is_full_at_the_end_still_tells_the_figures(model, tmp_path):
    code = (
        "import resource, signal, sys; from pathlib import Path; from tests.trainer.test_evaluation import look\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "try:\n"
        "    look(sys.argv[1], out=Path(sys.argv[2]))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(model), str(tmp_path / "out")],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.stdout.startswith("VeriwardError")
    assert "pass@1 0." in run.stdout
    assert run.stdout.count("\n") == 1
    assert os.listdir(tmp_path / "out") == []


def test_an_env_that_cannot_be_loaded_again_by_a_worker_is_refused(model):
    from envs.registry import load_env

    env = load_env(ENV)
    type(env).inline, env.spec = False, None
    with pytest.raises(VeriwardError, match="no worker process can load it"):
        evaluate(env, model, samples=1, k=(1,), limit=1, max_tokens=2)
