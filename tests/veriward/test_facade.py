"""The public names: the closed list, its laziness, and the guard against a shadowed room."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import veriward

ROOT = Path(veriward.__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "vllm", "verifiers", "datasets", "trl")
UNNEEDED = (*HEAVY, "rich", "plotly", "pydantic", "aiohttp", "math_verify", "sympy", "numpy", "langdetect")
PUBLIC = {
    "Env",
    "Golden",
    "Program",
    "Reply",
    "Sandbox",
    "Task",
    "Verdict",
    "audit",
    "code_verdict",
    "evaluate",
    "instruction_verdict",
    "load_env",
    "math_verdict",
    "tool_verdict",
    "train",
}
BLOCKED = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {HEAVY!r} and path is None:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Absent())
"""


def fresh(code: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, **env},
        check=False,
    )


def type_checking_names() -> dict[str, str]:
    tree = ast.parse((ROOT / "veriward" / "__init__.py").read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    return {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def test_the_list_of_public_names_is_closed() -> None:
    assert set(veriward.__all__) == PUBLIC
    assert len(veriward.__all__) == len(PUBLIC)


def test_type_checkers_see_exactly_what_is_loaded_lazily() -> None:
    assert type_checking_names() == veriward._HOMES
    assert set(veriward._HOMES) == set(veriward.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_the_one_of_its_home(name: str) -> None:
    value = getattr(veriward, name)
    assert value is getattr(importlib.import_module(veriward._HOMES[name]), name)
    assert not isinstance(value, type(sys))


def test_dir_lists_the_public_names_and_an_unknown_one_is_refused() -> None:
    assert set(dir(veriward)) >= PUBLIC
    with pytest.raises(AttributeError, match="load_enw"):
        _ = veriward.load_enw


@pytest.mark.parametrize("statement", ["import veriward", "import veriward.cli"])
def test_importing_loads_nothing_heavy(statement: str) -> None:
    done = fresh(f"import sys; {statement}; print(*[n for n in {UNNEEDED!r} if n in sys.modules])")
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_help_loads_nothing_heavy() -> None:
    code = f"""
import sys
from veriward.cli import main
try:
    main(['--help'])
except SystemExit as end:
    assert end.code == 0
print('LOADED', *[n for n in {UNNEEDED!r} if n in sys.modules])
"""
    done = fresh(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: veriward")
    assert done.stdout.splitlines()[-1].split() == ["LOADED"]


def test_a_dry_run_needs_no_torch() -> None:
    done = fresh(BLOCKED + "from veriward.cli import main\nsys.exit(main(['train', 'arithmetic', '--dry-run']))")
    assert done.returncode == 0, done.stderr
    assert 'name = "arithmetic"' in done.stdout


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_a_public_name_that_needs_what_is_not_installed_is_one_line_with_the_remedy(name: str) -> None:
    done = fresh(BLOCKED + f"from veriward import {name}")
    assert done.returncode != 0
    assert "During handling" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines()[1:] if not line.startswith(" ")]
    assert said.startswith(f"ImportError: veriward.{name}: this needs torch, which is not installed: pip install -e ")
    assert "from a wheel, pip install 'veriward[train] @ file:" in said


def test_every_module_below_the_trainer_imports_where_torch_is_not_installed() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for room in ("sandbox", "rewards", "envs")
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    ]
    code = BLOCKED + f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
    code += f"print(*[n for n in {HEAVY!r} if n in sys.modules])"
    done = fresh(code)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_help_costs_a_small_multiple_of_a_bare_interpreter() -> None:
    """Side by side on the same machine, the least of several runs each, CPU time: it catches a heavy
    import slipped into the command, not a slow computer. A bare `import rich.progress` breaks it."""
    code = f"""
import json, resource, subprocess
def cpu(argv):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
bare = [{sys.executable!r}, '-c', 'import argparse']
help = [{sys.executable!r}, '-m', 'veriward', '--help']
pairs = [(cpu(bare), cpu(help)) for _ in range(7)]
print(json.dumps([min(a for a, _ in pairs), min(b for _, b in pairs)]))
"""
    done = fresh(code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    bare, help_cost = json.loads(done.stdout)
    assert help_cost < 3 * bare


@pytest.mark.parametrize("room", ["envs", "trainer", "rewards", "sandbox"])
def test_a_room_shadowed_by_another_package_is_named_with_the_remedy(room: str, tmp_path: Path) -> None:
    (tmp_path / room).mkdir()
    (tmp_path / room / "__init__.py").write_text("")
    done = fresh("import veriward", cwd=tmp_path)
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("ImportError")]
    assert len(errors) == 1
    assert errors[0].startswith("ImportError: veriward needs its own package")
    assert str((tmp_path / room).resolve()) in errors[0]
    assert "rename" in errors[0]


def test_a_single_file_that_shadows_a_room_is_named(tmp_path: Path) -> None:
    (tmp_path / "envs.py").write_text("")
    done = fresh("import veriward", cwd=tmp_path)
    assert str(tmp_path / "envs.py") in done.stderr.splitlines()[-1]


def test_a_harmless_neighbour_folder_does_not_stop_the_import(tmp_path: Path) -> None:
    """A project folder named like ours, without being importable in our place, is nobody's business."""
    (tmp_path / "src" / "envs").mkdir(parents=True)
    done = fresh("import veriward; print(veriward.Env.__module__)", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("envs.base\n", 0), done.stderr
