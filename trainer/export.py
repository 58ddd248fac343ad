"""A run's trained model as a plain Hugging Face directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from sandbox.errors import ConfigError, VeriwardError
from trainer.checkpoint import MANIFEST, STATE, latest_checkpoint, new_folder, read_state
from trainer.learner import STATE_FILE
from trainer.run_folder import RunFolder


def export_model(run: Path, path: Path) -> Path:
    """Write the last checkpoint's weights, config and tokenizer to the new folder `path`.

    It loads with AutoModelForCausalLM and AutoTokenizer. Raises ConfigError when `path` is not empty,
    CheckpointError when the checkpoint is damaged.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path}: exists and is not empty; export to a new folder")
    folder, _ = RunFolder.open(run)
    checkpoint = latest_checkpoint(folder.checkpoints)
    read_state(checkpoint)
    try:
        with new_folder(path) as filled:
            for file in checkpoint.iterdir():
                if file.name not in {MANIFEST, STATE, STATE_FILE}:
                    shutil.copy2(file, filled)
    except OSError as error:
        raise VeriwardError(f"{path}: not exported ({error.strerror})") from error
    return path
