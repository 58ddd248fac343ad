"""Checkpoints are whole or absent, and damage is noticed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainer.checkpoint import CheckpointError, latest_checkpoint, list_checkpoints, read_state, save_checkpoint


def save(home, step, text="weights", keep_last=2):
    return save_checkpoint(home, step, {"step": step}, lambda folder: write(folder / "w.bin", text), keep_last)


def write(path, text):
    path.write_text(text)


def test_the_last_n_are_kept_and_the_newest_is_resumed_from(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000020", "step-000030"]
    assert read_state(latest_checkpoint(tmp_path)) == {"step": 30}


def test_a_save_that_fails_leaves_no_half_checkpoint_and_the_one_before_whole(tmp_path):
    save(tmp_path, 10)

    def fail(folder):
        write(folder / "w.bin", "half")
        raise OSError(28, "No space left on device")

    with pytest.raises(
        CheckpointError, match=r"No space left on device.*step-000010 is whole.*veriward resume"
    ) as error:
        save_checkpoint(tmp_path, 20, {}, fail, 2)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == ["step-000010"]
    assert read_state(latest_checkpoint(tmp_path)) == {"step": 10}


def test_a_process_killed_inside_a_save_leaves_the_one_before_to_resume_from(tmp_path):
    save(tmp_path, 10)
    code = (
        "import os, sys; from pathlib import Path; from trainer.checkpoint import save_checkpoint\n"
        "def write(folder):\n"
        "    (folder / 'w.bin').write_text('half'); os.kill(os.getpid(), 9)\n"
        "save_checkpoint(Path(sys.argv[1]), 20, {}, write, 2)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert latest_checkpoint(tmp_path).name == "step-000010"
    save(tmp_path, 20)
    assert read_state(latest_checkpoint(tmp_path)) == {"step": 20}
    assert sorted(os.listdir(tmp_path)) == ["step-000010", "step-000020"], "a killed save must not cost disk for ever"


@pytest.mark.parametrize("damage", ["w.bin", "state.json", "manifest.json"])
def test_damage_is_noticed_and_named(damage, tmp_path):
    checkpoint = save(tmp_path, 10)
    for content in (b"{", b"\xff\xfe", b"[]"):
        (checkpoint / damage).write_bytes(content)
        with pytest.raises(CheckpointError, match="step-000010"):
            read_state(checkpoint)
    (checkpoint / damage).unlink()
    with pytest.raises(CheckpointError, match="step-000010"):
        read_state(checkpoint)


def test_an_empty_folder_says_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        latest_checkpoint(tmp_path / "checkpoints")


def test_a_file_system_that_is_full_is_one_clear_line(tmp_path):
    """A real limit of the kernel: the file cannot grow beyond RLIMIT_FSIZE."""
    code = (
        "import resource, signal, sys; from pathlib import Path; from trainer.checkpoint import save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    save_checkpoint(Path(sys.argv[1]), 1, {}, lambda f: (f / 'w').write_bytes(bytes(8192)), 1)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("CheckpointError")
    assert "File too large" in run.stdout
    assert os.listdir(tmp_path) == []
