"""The frozen rows: what the card says of them is true, and the named command makes them again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envs.base import SPLITS
from envs.data import data_hash, data_root, frozen_tasks, read_tasks
from envs.procedural import FROZEN_SIZES
from envs.registry import load_env
from envs.splits import check_tasks, find_overlaps
from sandbox.errors import VeriwardError

NAMES = ["arithmetic", "program"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_the_command_in_the_card_makes_the_same_bytes_and_the_cards_hashes_are_theirs(
    name: str, tmp_path: Path
) -> None:
    folder = ROOT / "datasets" / name
    card = (folder / "README.md").read_text()
    command = f"python -m envs.freeze {name} --out DIR"
    assert command in card
    arguments = [str(tmp_path) if part == "DIR" else part for part in command.split()[1:]]
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, timeout=60, capture_output=True)
    for split in FROZEN_SIZES:
        frozen = (folder / f"{split}.jsonl").read_bytes()
        assert (tmp_path / f"{split}.jsonl").read_bytes() == frozen
        assert hashlib.sha256(frozen).hexdigest() in card


@pytest.mark.parametrize("name", NAMES)
def test_the_held_out_splits_have_their_declared_sizes_and_distinct_tasks(name: str) -> None:
    env = load_env(name)
    for split, size in FROZEN_SIZES.items():
        tasks = list(env.tasks(split))
        assert len({env.canonical(task) for task in tasks}) == len(tasks) == size
        assert {task.split for task in tasks} == {split}


@pytest.mark.parametrize("name", NAMES)
def test_no_split_shares_a_task_with_another_in_any_sense(name: str) -> None:
    """The field run this replaces had 57% and 74% of its held-out tasks in train up to form or behaviour."""
    env = load_env(name)
    tasks = check_tasks(env)
    assert [len(tasks[split]) for split in SPLITS] == [20_000, 256, 512]
    assert find_overlaps(env, tasks) == []


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_draws_no_held_out_task_into_train_either(name: str) -> None:
    env = load_env(name, seed=17, train_size=2000)
    assert find_overlaps(env) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_data_hash_is_that_of_the_two_files_one_after_the_other(name: str) -> None:
    folder = data_root("datasets") / name
    both = (folder / "dev.jsonl").read_bytes() + (folder / "test.jsonl").read_bytes()
    env = load_env(name, train_size=10)
    assert data_hash(env) == hashlib.sha256(both).hexdigest()
    assert data_hash(env, ["train"]) != data_hash(load_env(name, train_size=10, seed=1), ["train"])


def test_an_unreadable_row_is_named_with_file_and_line(tmp_path: Path) -> None:
    good = json.dumps(next(frozen_tasks("arithmetic", "dev")).to_json())
    for broken in ("{", '{"id": "a"}', "[]"):
        file = tmp_path / "rows.jsonl"
        file.write_text(f"{good}\n{broken}\n")
        with pytest.raises(VeriwardError, match=r"rows\.jsonl, line 2: not a task"):
            list(read_tasks(file))


def test_a_missing_file_of_rows_is_one_line() -> None:
    with pytest.raises(VeriwardError, match=r"cannot read tasks from /nowhere/rows\.jsonl"):
        list(read_tasks(Path("/nowhere/rows.jsonl")))


def test_installed_rows_are_found_beside_another_package_called_datasets(tmp_path: Path) -> None:
    """In site-packages `datasets` is Hugging Face's; ours is package data under `veriward/`."""
    for room in ("envs", "rewards", "sandbox"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text("raise AssertionError('imported')\n")
    rows = tmp_path / "veriward" / "_datasets" / "arithmetic"
    rows.mkdir(parents=True)
    shutil.copy(ROOT / "datasets/arithmetic/dev.jsonl", rows)
    code = "from envs.registry import load_env; print(len(list(load_env('arithmetic').tasks('dev'))))"
    environment = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.strip() == "256", ran.stderr
