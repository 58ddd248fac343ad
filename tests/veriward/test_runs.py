"""A run from the command line, as a person lives it: stopped by Ctrl-C, resumed, drawn, taken out, evaluated."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.tiny import save_tiny
from veriward.cli import main

# A random model answers noise, so what is judged is a property that noise has about half of the time.
EVEN_ENV = """
from veriward import Env, Task

class Even(Env):
    version = "1"
    inline = True

    def tasks(self, split):
        for i in range(8):
            yield Task(f"{split}-{i}", [{"role": "user", "content": f"{split} {i}"}], i, split)

    def verify(self, task, reply):
        return len(reply.text) % 2 == 0
"""
SETTINGS = {
    "policy.max_tokens": 6,
    "groups.tasks_per_step": 2,
    "groups.group_size": 4,
    "evaluation.every_steps": 1000,
    "evaluation.dev_tasks": 2,
    "evaluation.test_tasks": 4,
    "evaluation.samples": 2,
    "evaluation.k": [1, 2],
    "checkpoint.every_steps": 1000,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "even.py").write_text(EVEN_ENV)
    save_tiny("qwen2", folder / "model")
    return folder


def settings(home: Path, steps: int) -> list[str]:
    chosen = {**SETTINGS, "steps": steps, "policy.model": json.dumps(str(home / "model"))}
    return [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def stopped(home: Path) -> tuple[Path, int, str]:
    """A run that was stopped by one SIGINT in the middle: its folder, exit code and what stderr said after."""
    run = home / "run with spaces"
    argv = [sys.executable, "-m", "veriward", "train", str(home / "even.py"), "--out", str(run)]
    argv += settings(home, 100_000)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home) as process:
        assert process.stderr
        for line in process.stderr:
            if line.startswith("training "):
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    return run, process.returncode, said


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(stopped: tuple[Path, int, str]) -> None:
    run, code, said = stopped
    assert code == 130, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("veriward: ")
    assert f"veriward resume '{run}'" in said
    assert list((run / "checkpoints").glob("step-*"))


def test_a_stopped_run_goes_on_to_its_end_and_can_be_used(
    stopped: tuple[Path, int, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped[0]
    first = max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))
    assert main(["resume", str(run), "--steps", str(first + 2), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["steps"], summary["env"], summary["split"]) == (first + 2, "even", "test")
    assert {"pass@1", "pass@2", "greedy"} <= set(summary["after"])
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines() if "train" in line]
    assert steps[-1] == first + 2
    assert "Sample rollouts" in Path(summary["report"]).read_text()

    exported = home / "exported"
    assert main(["export", "model", str(run), str(exported), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == str(exported)
    options = ["-n", "2", "-k", "1,2", "--limit", "3", "--max-tokens", "6", "--json"]
    assert main(["eval", str(home / "even.py"), "--model", str(exported), *options]) == 0
    assert json.loads(capsys.readouterr().out)["pass@2"]["tasks"] == 3


def test_a_finished_run_ends_with_the_table_and_the_path_of_its_page(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = home / "short"
    argv = ["train", str(home / "even.py"), "--out", str(run), *settings(home, 1)]
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "even, held-out test tasks, with 95% intervals"
    assert lines[1].split() == ["before", "after"]
    assert [line.split()[0] for line in lines[2:5]] == ["pass@1", "pass@2", "greedy"]
    assert lines[-1] == f"report: {run / 'report.html'}"

    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "not empty" in err.splitlines()[-1]


def test_a_reply_longer_than_the_model_can_hold_is_refused_in_one_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raised in the middle of concurrent sampling and judging, where it would come as a group of exceptions."""
    argv = ["eval", str(home / "even.py"), "--model", str(home / "model"), "--max-tokens", "5000"]
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("veriward: ")
    assert err.count("\n") == 1
    assert "max_tokens 5000 exceeds" in err


def test_an_evaluation_keeps_its_figures_and_every_reply(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = home / "evaluation"
    argv = ["eval", str(home / "even.py"), "--model", str(home / "model"), "--limit", "3", "--max-tokens", "5"]
    assert main([*argv, "--out", str(out), "-n", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["pass@1", "pass@8", "greedy"]
    assert len((out / "results.jsonl").read_text().splitlines()) == 3 * 8
    assert json.loads((out / "summary.json").read_text())["samples"] == 8
    assert main([*argv, "--out", str(out)]) == 1
    assert "not empty" in capsys.readouterr().err
