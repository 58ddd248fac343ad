"""The house as the design lays it out: what ships, what does not, and names that shadow nothing."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("veriward", "trainer", "envs", "rewards", "sandbox")
DATA = {"veriward._datasets": "datasets", "veriward._models": "models"}


def python_packages() -> set[str]:
    folders = {path.parent.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return {".".join(folder.parts) for folder in folders}


def test_the_packages_that_ship_are_the_ones_in_the_tree():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(setuptools["packages"]) == python_packages() | set(DATA)
    assert setuptools["package-dir"] == DATA


def test_no_module_bears_a_standard_library_name():
    """`rewards/math.py` would shadow `math` in a worker started by path."""
    modules = {path.stem for room in ROOMS for path in (ROOT / room).rglob("*.py")} - {"__init__", "__main__"}
    assert not modules & set(sys.stdlib_module_names)


def test_datasets_is_no_package_and_every_tests_folder_is_one():
    """As a package it would shadow Hugging Face's `datasets` for everybody who runs from a clone."""
    assert not list((ROOT / "datasets").rglob("__init__.py"))
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)
