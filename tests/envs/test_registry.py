"""Loading an env by name: every form of name, every way it fails, and the options it takes."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import envs.loading
from envs.arithmetic import Arithmetic
from envs.base import Env, EnvSpec
from envs.registry import list_envs, load_env
from sandbox.errors import ConfigError, VeriwardError

ENV_FILE = """
from pathlib import Path
from veriward import Env, Task

class Sums(Env):
    version = "7"

    def __init__(self, digits: int = 1, share: float = 0.5, sizes: tuple[int, ...] = (1,), place: Path = Path(".")):
        self.digits, self.share, self.sizes, self.place = digits, share, sizes, place

    def tasks(self, split):
        yield Task(split, [{"role": "user", "content": f"{split} 1+1"}], 2, split)

    def verify(self, task, reply):
        return reply.text == "2"
"""


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    file = tmp_path / "my_env.py"
    file.write_text(ENV_FILE)
    return file


def test_an_env_is_found_by_its_built_in_name_and_remembers_it() -> None:
    env = load_env("arithmetic", train_size=5)
    assert type(env) is Arithmetic
    assert env.spec == EnvSpec("arithmetic", {"train_size": 5})
    assert EnvSpec.from_json(env.spec.to_json()) == env.spec


def test_an_env_is_found_as_module_and_class() -> None:
    assert type(load_env("envs.arithmetic:Arithmetic")) is Arithmetic


def test_an_env_is_found_as_a_file_under_any_working_folder(env_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(env_file.parent)
    env = load_env("./my_env.py", digits=3)
    assert (env.name, env.version, env.digits) == ("sums", "7", 3)  # type: ignore[attr-defined]
    assert env.spec == EnvSpec(str(env_file), {"digits": 3})
    assert env.spec is not None
    assert type(load_env(env.spec.name)) is type(env)


def test_the_same_file_is_the_same_module_in_another_process(env_file: Path) -> None:
    code = f"from envs.registry import load_env; print(type(load_env({str(env_file)!r})).__module__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == type(load_env(str(env_file))).__module__


def test_an_edited_file_is_loaded_anew(env_file: Path) -> None:
    before = load_env(str(env_file))
    env_file.write_text(ENV_FILE.replace('"7"', '"8"'))
    assert (before.version, load_env(str(env_file)).version) == ("7", "8")


def test_a_folder_is_a_package_with_relative_imports(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("ANSWER = 2\n")
    (tmp_path / "__init__.py").write_text("from .rows import ANSWER\n" + ENV_FILE)
    assert load_env(str(tmp_path)).name == "sums"
    assert load_env(f"{tmp_path}:Sums").name == "sums"
    (tmp_path / "rows.py").write_text("OTHER = 2\n")
    with pytest.raises(VeriwardError, match="cannot import name 'ANSWER'"):
        load_env(str(tmp_path))


def test_a_folder_without_init_is_its_env_py_or_its_only_file(env_file: Path) -> None:
    folder = env_file.parent
    assert load_env(str(folder)).name == "sums"
    (folder / "other.py").write_text("")
    with pytest.raises(VeriwardError, match=r"2 \.py files and no __init__\.py or env\.py; name the file"):
        load_env(str(folder))
    (folder / "env.py").write_text(ENV_FILE)
    assert load_env(str(folder)).name == "sums"


def test_a_file_with_two_envs_is_refused_naming_them_until_one_is_named(env_file: Path) -> None:
    env_file.write_text(ENV_FILE + "\nclass More(Sums):\n    pass\n")
    with pytest.raises(VeriwardError, match=r"exactly one Env must be defined there, found More, Sums; name one"):
        load_env(str(env_file))
    env = load_env(f"{env_file}:More")
    assert env.name == "more"
    assert env.spec == EnvSpec(f"{env_file}:More", {})
    with pytest.raises(VeriwardError, match="defines no Env called Less; it defines More, Sums"):
        load_env(f"{env_file}:Less")


def test_an_env_that_is_only_imported_does_not_count(env_file: Path) -> None:
    env_file.write_text("from envs.arithmetic import Arithmetic\n")
    with pytest.raises(VeriwardError, match="exactly one Env must be defined there, found none; define one"):
        load_env(str(env_file))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def (", r"importing it raised SyntaxError: .*my_env\.py:1\)"),
        ("1/0", r"importing it raised ZeroDivisionError: division by zero .*my_env\.py:1\)"),
        ("import sys; sys.exit(3)", "importing it raised SystemExit: 3"),
        ("import no_such_thing", "importing it raised ModuleNotFoundError: No module named 'no_such_thing'"),
        (ENV_FILE.replace('version = "7"', ""), 'class Sums has no version; add version = "1"'),
        (
            ENV_FILE.replace('version = "7"', "version = 7"),
            'class Sums has version = 7, which must be text; write version = "7"',
        ),
        (ENV_FILE.replace("def verify", "def judge"), "class Sums does not define verify"),
        (ENV_FILE.replace("= digits,", "= 1 / 0,"), "its __init__ raised ZeroDivisionError"),
        (ENV_FILE.replace("= digits,", "= exit(2),"), "its __init__ raised SystemExit"),
    ],
)
def test_a_broken_file_is_one_line_naming_the_env_and_the_fault(env_file: Path, content: str, message: str) -> None:
    env_file.write_text(content)
    with pytest.raises(VeriwardError, match=message) as raised:
        load_env(str(env_file))
    assert str(raised.value).startswith(f"env {env_file}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arithmetics", "env arithmetics is not installed; did you mean arithmetic?"),
        ("zzz", "is it one of arithmetic, program?"),
        ("./nowhere.py", "nowhere.py: no such file or folder; check the path"),
        ("/dev/null", "not a .py file or a folder"),
        ("./" + 300 * "x" + ".py", "not a possible path"),
        ("./\0.py", "not a possible path"),
        ("./\ud800.py", "not a possible path"),
        ("~no-such-user/env.py", "not a possible path"),
        ("no_such_package.env:Sums", "no module no_such_package; install its package"),
        ("envs.no_such:Sums", "no module envs.no_such; install its package"),
        ("envs.arithmetic:Sums", "has no attribute 'Sums'; name a class that the module defines"),
        ("envs.arithmetic:evaluate", "not a subclass of veriward.Env"),
        ("", "is not installed"),
    ],
)
def test_a_name_that_means_nothing_says_what_would(name: str, message: str) -> None:
    with pytest.raises(VeriwardError) as raised:
        load_env(name)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("annotation", "message"), [("Env", "has a type no JSON value can have"), ("'list['", "no type")]
)
def test_an_option_of_an_impossible_type_is_one_line(env_file: Path, annotation: str, message: str) -> None:
    env_file.write_text(ENV_FILE.replace("digits: int", f"digits: {annotation}"))
    with pytest.raises(VeriwardError, match=message) as raised:
        load_env(str(env_file), digits=1)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"digit": 3},
            "option digit = 3 is unknown; did you mean digits? Its options: digits: int = 1, share: float = 0.5, "
            'sizes: tuple[int, ...] = [1], place: pathlib.Path = "."',
        ),
        ({"colour": 3}, "option colour = 3 is unknown; its options: digits: int = 1"),
        ({"digits": "3"}, "option digits = '3': input should be a valid integer; give int"),
        ({"digits": True}, "option digits = True: input should be a valid integer; give int"),
        ({"digits": 1.5}, "option digits = 1.5"),
        ({"sizes": [1, "2"]}, "input should be a valid integer; give tuple[int, ...], written like [1]"),
        ({"share": object()}, "is no plain JSON value"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_what_is_right(
    env_file: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_env(str(env_file), **options)
    assert message in str(raised.value)


def test_a_postponed_annotation_is_shown_without_quotes(env_file: Path) -> None:
    env_file.write_text("from __future__ import annotations\n" + ENV_FILE)
    with pytest.raises(ConfigError, match=r"Its options: digits: int = 1, share: float = 0\.5, sizes: tuple\[int,"):
        load_env(str(env_file), digit=3)


def test_options_as_toml_gives_them_arrive_as_the_declared_types(env_file: Path) -> None:
    env = load_env(str(env_file), sizes=[1, 2], place="x/y", share=1)
    assert (env.sizes, env.place, env.share) == ((1, 2), Path("x/y"), 1.0)  # type: ignore[attr-defined]


def test_a_required_option_that_is_missing_is_named(env_file: Path) -> None:
    env_file.write_text(ENV_FILE.replace("digits: int = 1", "digits: int"))
    with pytest.raises(ConfigError, match="option digits is required; give digits: int"):
        load_env(str(env_file))


def test_an_env_without_an_init_takes_no_options(env_file: Path) -> None:
    start = ENV_FILE.index("    def __init__")
    env_file.write_text(ENV_FILE[:start] + ENV_FILE[ENV_FILE.index("    def tasks") :])
    with pytest.raises(ConfigError, match="option digits = 1 is unknown; its options: none"):
        load_env(str(env_file), digits=1)


def test_the_list_has_sizes_and_a_broken_env_is_a_row_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Env):
        version = "1"

        def tasks(self, split):  # type: ignore[no-untyped-def]
            raise RuntimeError("no data")

        def verify(self, task, reply):  # type: ignore[no-untyped-def]
            return True

    entries = {"gone": "no_such_package:Env", "broken": f"{__name__}:BROKEN"}
    monkeypatch.setattr(sys.modules[__name__], "BROKEN", Broken, raising=False)
    monkeypatch.setattr(
        envs.loading.importlib.metadata,
        "entry_points",
        lambda group, name=None: importlib.metadata.EntryPoints(
            importlib.metadata.EntryPoint(key, value, group) for key, value in entries.items() if name in (None, key)
        ),
    )
    rows = {row.name: row for row in list_envs()}
    assert sorted(rows) == ["arithmetic", "broken", "gone", "program"]
    assert rows["arithmetic"].sizes == {"train": 20_000, "dev": 256, "test": 512}
    assert rows["arithmetic"].error == ""
    assert "no module no_such_package" in rows["gone"].error
    assert "its tasks raised RuntimeError: no data" in rows["broken"].error


def test_two_distributions_that_claim_a_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [SimpleNamespace(name="twice", value=value) for value in ("a:A", "b:B")]
    monkeypatch.setattr(envs.loading.importlib.metadata, "entry_points", lambda group, name=None: claims)
    with pytest.raises(VeriwardError, match="declared by several distributions as a:A, b:B"):
        load_env("twice")
