"""What a figure rests on: versions, hashes and the source's commit, recorded with every result."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from trainer.checkpoint import file_sha256

_MODEL_FILES = {".safetensors", ".bin", ".json", ".jinja", ".model", ".txt"}
_DISTRIBUTIONS = ("veriward", "torch", "transformers", "tokenizers", "math-verify", "sympy", "numpy")


def software_versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def cpu_seconds() -> float:
    """CPU seconds of this process and its children so far, the running ones (sandbox slots, workers)
    included where /proc tells; elsewhere those only count once they have ended."""
    ended = os.times()
    return ended.user + ended.system + ended.children_user + ended.children_system + _running_children_cpu_s()


def _running_children_cpu_s() -> float:
    ticks = 0
    for path in Path("/proc/self/task").glob("*/children"):
        for child in path.read_text().split():
            try:
                # The fields after the parenthesised name; utime, stime, cutime, cstime are proc(5)'s 14 to 17.
                stat = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(int(number) for number in stat[11:15])
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def model_hash(directory: Path) -> str:
    """sha256 over the names and contents of the weights, the config and the tokenizer."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.suffix in _MODEL_FILES and path.name != "recipe.json":
            digest.update(f"{path.name}\0{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def source_commit() -> str | None:
    """The commit of the clone this code runs from, with "+changes" when it was edited since; None outside a clone."""
    home = Path(__file__).resolve().parent.parent
    if not (home / ".git").exists():
        return None
    try:
        head = _git(home, "rev-parse", "HEAD")
        return head + ("+changes" if _git(home, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(home: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(home), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()
