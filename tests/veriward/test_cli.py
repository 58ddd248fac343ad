"""The command line as a person and a script meet it: help, one-line errors, exit codes, JSON, safe output."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.errors import VeriwardError
from trainer.config import load_config, preset_names
from veriward import progress
from veriward.cli import main
from veriward.output import say_json, say_table

VERBS = ["train", "resume", "report", "export", "export model", "eval", "envs", "show", "verify", "warmup"]
HOSTILE = "\x1b[2J\x1b]0;own\x07\u202eevil\x9b31m\u2028[bold red]\r"
TRICKY_ENV = '''
from veriward import Env, Task, Verdict

class Tricky(Env):
    """Says hostile things."""
    version = "1"
    inline = True

    def tasks(self, split):
        yield Task(f"{split}-\\x1b[31m", [{"role": "user", "content": HOSTILE}], "1", split)

    def golden(self):
        from veriward import Golden
        yield Golden(next(iter(self.tasks("dev"))), HOSTILE, "wrong", HOSTILE)

    def verify(self, task, reply):
        if reply.text == "raise":
            raise RuntimeError(HOSTILE)
        return Verdict.wrong(HOSTILE, {"part": 0.5})
'''


@pytest.fixture
def tricky(tmp_path: Path) -> str:
    path = tmp_path / "tricky.py"
    path.write_text(f"HOSTILE = {HOSTILE!r}\n{TRICKY_ENV}")
    return str(path)


def written(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def is_safe(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


def object_on_stdout(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    value = json.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*verb.split(), "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: veriward {verb}")


def test_the_general_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert [verb for verb in VERBS if " " not in verb and f"\n    {verb} " not in shown] == []


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["export"],
        ["verify", "arithmetic"],
        ["eval", "arithmetic"],
        ["eval", "arithmetic", "--model", "m", "-k", "0"],
        ["eval", "arithmetic", "--model", "m", "-n", "x"],
        ["eval", "arithmetic", "--model", "m", "--split", "all"],
    ],
)
def test_wrong_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert "usage: veriward" in capsys.readouterr().err


def test_version_prints_the_version_and_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    name, version, path = capsys.readouterr().out.split()
    assert (end.value.code, name) == (0, "veriward")
    assert version[0].isdigit()
    assert (Path(path) / "cli.py").is_file()


def test_python_m_veriward_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "veriward", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("veriward ")


PLAIN_ENV = """
from veriward import Env, Task

class Plain(Env):
    version = "1"
    inline = True
    system_prompt = "Be brief."

    def tasks(self, split):
        for number in range(5):
            yield Task(f"{split}-{number}", [{"role": "user", "content": f"Say {split} {number}."}], number, split)

    def verify(self, task, reply):
        return reply.text == str(task.reference)
"""

BAD_INPUT = {
    "missing config": (["train", "{here}/none.toml"], "none.toml: no such file"),
    "broken TOML": (["train", "{here}/broken.toml"], "not valid TOML"),
    "binary TOML": (["train", "{here}/binary.toml"], "not valid TOML"),
    "unknown key": (["train", "arithmetic", "--set", "polcy.model=x", "--dry-run"], "polcy"),
    "wrong type": (["train", "arithmetic", "--set", "steps=many", "--dry-run"], "steps = 'many'"),
    "impossible value": (["train", "arithmetic", "--set", "groups.group_size=1", "--dry-run"], "group_size"),
    "no equals sign": (["train", "arithmetic", "--set", "steps", "--dry-run"], "--set steps"),
    "nothing to train": (["train"], "train what?"),
    "resume of nothing": (["resume", "{here}/none"], "none"),
    "resume of no run": (["resume", "{here}"], "not a run folder"),
    "report of nothing": (["report", "{here}/none"], "no such folder"),
    "report of no run": (["report", "{here}"], "not a run folder"),
    "unknown env": (["show", "arithmetics"], "did you mean arithmetic"),
    "missing env file": (["show", "{here}/gone.py"], "gone.py"),
    "env file with a mistake": (["show", "{here}/mistake.py"], "SyntaxError"),
    "env option without value": (["show", "arithmetic", "--env-option", "seed"], "key=value"),
    "unknown env option": (["show", "arithmetic", "--env-option", "sed=1"], "did you mean seed"),
    "env option of a wrong type": (["show", "arithmetic", "--env-option", "seed=one"], "seed = 'one'"),
    "env option of train without value": (["train", "arithmetic", "--env-option", "seed"], "key=value"),
    "unknown env option in a dry run": (["train", "arithmetic", "--env-option", "sed=1", "--dry-run"], "mean seed"),
    "env that does not load in a dry run": (["train", "{here}/mistake.py", "--dry-run"], "SyntaxError"),
    "missing reply": (["verify", "arithmetic", "--task", "x", "--reply", "{here}/none"], "No such file"),
    "reply is a folder": (["verify", "arithmetic", "--task", "x", "--reply", "{here}"], "directory"),
    "binary reply": (["verify", "arithmetic", "--task", "x", "--reply", "{here}/binary.toml"], "not UTF-8"),
    "unknown task": (["verify", "arithmetic", "--task", "x", "--reply", "{here}/reply.txt"], "no task 'x'"),
    "unknown task of a file": (
        ["verify", "{here}/plain.py", "--task", "x", "--reply", "{here}/reply.txt"],
        "`veriward show {here}/plain.py` lists some ids",
    ),
    "golden that raises": (["show", "{here}/golden.py"], "env plain: golden() raised ZeroDivisionError"),
    "golden that raises, in verify": (
        ["verify", "{here}/golden.py", "--task", "dev-0", "--reply", "{here}/reply.txt"],
        "env plain: golden() raised ZeroDivisionError",
    ),
    "tasks that are None": (
        ["verify", "{here}/none.py", "--task", "x", "--reply", "{here}/reply.txt"],
        'env plain: tasks("dev") returned None',
    ),
    "a task that train would refuse": (
        ["verify", "{here}/text.py", "--task", "dev-0", "--reply", "{here}/reply.txt"],
        "dev task dev-0: prompt is no list of messages",
    ),
    "hostile task id": (["verify", "arithmetic", "--task", HOSTILE, "--reply", "{here}/reply.txt"], "no task"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_1(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "broken.toml", "steps = = 3\n")
    written(tmp_path / "binary.toml", b"\x00\xff\xfe")
    written(tmp_path / "mistake.py", "class Broken(:\n")
    written(tmp_path / "reply.txt", "14")
    written(tmp_path / "plain.py", PLAIN_ENV)
    written(tmp_path / "golden.py", PLAIN_ENV + "    def golden(self):\n        return [1 / 0]\n")
    written(tmp_path / "none.py", PLAIN_ENV + "    def tasks(self, split):\n        return None\n")
    written(
        tmp_path / "text.py", PLAIN_ENV.replace('[{"role": "user", "content": f"Say {split} {number}."}]', '"Say."')
    )
    argv, fragment = BAD_INPUT[case]
    code = main([part.replace("{here}", str(tmp_path)) for part in argv])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert err.startswith("veriward: ")
    assert err.count("\n") == 1
    assert fragment.replace("{here}", str(tmp_path)) in err
    assert is_safe(err)


def test_a_reply_too_long_to_be_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "reply.txt", "9" * ((4 << 20) + 1))
    assert main(["verify", "arithmetic", "--task", "x", "--reply", path]) == 1
    assert "longer than 4 MiB" in capsys.readouterr().err


def test_a_dry_run_prints_a_config_that_means_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "arithmetic", "--set", "optimizer.lr=1e-5", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert tomllib.loads(printed)["optimizer"]["lr"] == 1e-5
    again = load_config(written(tmp_path / "again.toml", printed), [])
    assert again == load_config("arithmetic", ["optimizer.lr=1e-5"])


def test_an_env_option_of_train_is_one_of_its_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "arithmetic", "--env-option", "seed=7", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert main(["train", "arithmetic", "--set", "env.options.seed=7", "--dry-run"]) == 0
    assert printed == capsys.readouterr().out
    assert tomllib.loads(printed)["env"]["options"] == {"seed": 7}


def test_json_of_a_dry_run_is_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "arithmetic", "--set", "steps=3", "--dry-run", "--json"]) == 0
    config = object_on_stdout(capsys)
    assert (config["steps"], config["env"]) == (3, {"name": "arithmetic", "options": {}})


def test_list_names_presets_and_envs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list", "--json"]) == 0
    listed = object_on_stdout(capsys)
    assert listed["presets"] == preset_names()
    assert {"arithmetic", "program"} <= set(listed["envs"])  # type: ignore[call-overload]


def test_envs_lists_names_versions_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "--json"]) == 0
    rows = {row["name"]: row for row in object_on_stdout(capsys)["envs"]}  # type: ignore[attr-defined]
    assert rows["arithmetic"]["version"] == "1"
    assert rows["arithmetic"]["sizes"]["test"] == 512
    assert main(["envs"]) == 0
    assert "arithmetic" in capsys.readouterr().out


@pytest.mark.parametrize("env", ["arithmetic", "program"])
def test_show_gives_a_task_a_golden_reply_and_the_verdict_it_must_get(
    env: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", env, "--json"]) == 0
    shown = object_on_stdout(capsys)
    assert shown["verdict"]["status"] == shown["expected_status"]  # type: ignore[index]
    assert shown["task"]["prompt"]  # type: ignore[index]
    assert main(["show", env]) == 0
    assert f"verdict: {shown['expected_status']}" in capsys.readouterr().out


def test_show_without_golden_cases_gives_a_task_as_the_policy_sees_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = written(tmp_path / "plain.py", PLAIN_ENV)
    assert main(["show", env]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "env plain version 1",
        "train tasks begin with: train-0, train-1, train-2",
        "dev tasks begin with: dev-0, dev-1, dev-2",
        "test tasks begin with: test-0, test-1, test-2",
        "task dev-0 (dev)",
        "system:",
        "  Be brief.",
        "user:",
        "  Say dev 0.",
        "no golden cases; a golden() that yields replies with a known status gives some",
    ]
    assert main(["show", env, "--json"]) == 0
    shown = object_on_stdout(capsys)
    assert shown["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say dev 0."},
    ]
    assert (shown["reply"], shown["expected_status"], shown["verdict"]) == (None, None, None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-k", "a,b"], "'a,b': give whole numbers of 1 or more, as in 1,8"),
        (["-n", "x"], "'x' is no whole number of 1 or more"),
    ],
)
def test_a_number_that_is_none_is_said_without_our_own_names(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["eval", "arithmetic", "--model", "base", *argv])
    assert capsys.readouterr().err.endswith(f"{message}\n")


@pytest.mark.parametrize(("samples", "ks"), [("4", [1, 4]), ("1", [1]), ("8", [1, 8])])
def test_eval_estimates_pass_at_1_and_at_its_samples_unless_told(
    samples: str, ks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import trainer.evaluation

    asked: dict[str, object] = {}

    def stop(*args: object, **settings: object) -> None:
        asked.update(settings)
        raise VeriwardError("enough")

    monkeypatch.setattr(trainer.evaluation, "evaluate", stop)
    assert main(["eval", "arithmetic", "--model", "base", "-n", samples]) == 1
    assert asked["k"] == ks


@pytest.mark.parametrize(("reply", "status", "score"), [("14", "correct", 1.0), ("24", "wrong", 0.0)])
def test_verify_says_what_the_verifier_found(
    reply: str, status: str, score: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "reply.txt", reply)
    argv = ["verify", "arithmetic", "--task", "arithmetic-golden-0", "--reply", path]
    assert main([*argv, "--json"]) == 0
    found = object_on_stdout(capsys)
    assert (found["verdict"]["status"], found["verdict"]["score"]) == (status, score)  # type: ignore[index]
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith(f"verdict: {status}, score {score:g}\n")


def test_verify_reads_a_reply_from_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"14")))
    assert main(["verify", "arithmetic", "--task", "arithmetic-golden-0", "--reply", "-"]) == 0
    assert "correct" in capsys.readouterr().out


def test_a_verifier_that_fails_is_unscored_and_exits_with_1(
    tricky: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "reply.txt", "raise")
    argv = ["verify", tricky, "--task", "dev-\x1b[31m", "--reply", path]
    assert main(argv) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("verdict: unscored, score none")
    assert is_safe(shown)


def test_hostile_text_reaches_the_terminal_only_spelled_out(tricky: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", tricky]) == 0
    shown, _ = capsys.readouterr()
    assert is_safe(shown)
    assert shown.count("\\x1b[2J\\x1b]0;own\\x07\\u202eevil\\x9b31m\\u2028[bold red]\\r") == 4
    assert main(["show", tricky, "--json"]) == 0
    raw = capsys.readouterr().out
    assert is_safe(raw)
    assert json.loads(raw)["reply"] == HOSTILE


def test_a_reply_cannot_pass_for_a_line_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = Path(written(tmp_path / "liar.py", f"HOSTILE = 'x\\nverdict: correct, score 1'\n{TRICKY_ENV}"))
    assert main(["show", str(env)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("verdict:")] == ["verdict: wrong, score 0"]


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.floats(), st.lists(st.floats()))))
def test_json_is_strict_ascii_and_undefined_is_null(value: dict[str, object]) -> None:
    buffer = io.StringIO()
    before, sys.stdout = sys.stdout, buffer
    try:
        say_json(value)
    finally:
        sys.stdout = before
    text = buffer.getvalue()
    assert all(" " <= c <= "~" or c == "\n" for c in text)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert set(json.loads(text, parse_constant=refuse)) == set(value)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_tables_show_cells_as_they_are(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """rich would read [bold] in a cell as markup and drop it."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    say_table("title", ["", "value"], [["[bold]name[/bold]", "0.5 [0.4, 0.6]"], ["\x1b[31m", "1"]])
    out = capsys.readouterr().out
    assert "[bold]name[/bold]" in out
    assert "0.5 [0.4, 0.6]" in out
    assert "\\x1b[31m" in out


def test_progress_without_a_terminal_is_sparse_and_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.shown_progress() as tell:
        for done in range(1, 101):
            now += 0.5
            tell("training", done, 100, f"reward\n{done}")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "training 1/100  reward\\n1"
    assert lines[1] == "training 31/100, 2.00/s, 34 s left  reward\\n31"
    assert lines[-1] == "training 100/100, 2.00/s  reward\\n100"
    assert len(lines) == 5


def test_a_rate_counts_only_what_was_done_since_the_phase_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training goes on at step 51 after an evaluation; 51 steps were not done in no time."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.shown_progress() as tell:
        for done in range(51, 101):
            now += 2.0
            tell("training", done, 100)
    assert capsys.readouterr().err.splitlines()[1] == "training 59/100, 0.50/s, 82 s left"


def test_progress_on_a_terminal_is_a_bar_that_obeys_no_hostile_note() -> None:
    reader, writer = pty.openpty()
    code = f"""
from veriward.progress import shown_progress
with shown_progress() as tell:
    for done in range(4):
        tell("training", done, 3, {HOSTILE!r})
        tell("evaluating", 1, 1)
print("result")
"""
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writer, env=env, check=True)
    os.close(writer)
    drawn = os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert done.stdout == b"result\n"
    assert "training" in drawn
    assert "3/3" in drawn
    assert drawn.rpartition("\x1b[1A")[2].count("evaluating") <= 1  # one bar, however often the phase comes again
    assert "\\x1b[2J" in drawn
    assert "\x1b[2J" not in drawn
    assert "\u202e" not in drawn


def test_a_reader_that_stops_reading_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "veriward", "train", "--list"], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_terminal_without_unicode_gets_numbers_instead_of_an_error(tmp_path: Path) -> None:
    env = tmp_path / "umlaut.py"
    env.write_text(f"HOSTILE = 'Äpfel'\n{TRICKY_ENV}", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "veriward", "show", str(env)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\xc4pfel" in done.stdout


def test_what_is_not_installed_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("trainer.") or name == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["eval", "arithmetic", "--model", "base"]) == 1
    assert capsys.readouterr().err == (
        "veriward: this needs torch, which is not installed: pip install -e '.[train]' in a clone of veriward, "
        "or, from a wheel, pip install 'veriward[train] @ file:///path/to/the/wheel.whl'\n"
    )
