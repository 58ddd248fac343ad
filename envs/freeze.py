"""Writes the frozen dev and test rows of a shipped env: `python -m envs.freeze arithmetic --out DIR`.

The same command gives the same bytes; the cards in `datasets/` name their hashes.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from envs import arithmetic, program
from envs.base import Split, Task
from envs.data import task_line
from envs.procedural import FROZEN_SIZES

GENERATORS: dict[str, Callable[[Split, int], Iterator[Task]]] = {
    "arithmetic": arithmetic.generate_tasks,
    "program": program.generate_tasks,
}


def freeze(name: str, folder: Path) -> dict[str, str]:
    """Write `dev.jsonl` and `test.jsonl` of a shipped env; returns file name -> sha256 in hex."""
    folder.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for split, size in FROZEN_SIZES.items():
        content = "".join(map(task_line, GENERATORS[name](split, size))).encode()
        (folder / f"{split}.jsonl").write_bytes(content)
        hashes[f"{split}.jsonl"] = hashlib.sha256(content).hexdigest()
    return hashes


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the frozen dev and test rows of a shipped env.")
    parser.add_argument("name", choices=sorted(GENERATORS))
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")
    arguments = parser.parse_args()
    for file, digest in freeze(arguments.name, arguments.out).items():
        print(f"{digest}  {file}")


if __name__ == "__main__":
    main()
