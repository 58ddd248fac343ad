"""The environments in docs/envs.md are real ones."""

from __future__ import annotations

import re
from pathlib import Path

from envs.base import Env
from envs.registry import load_env
from envs.splits import check_disjoint, check_golden, check_tasks
from envs.verification import Verifier, build_reply

PAGE = Path(__file__).resolve().parents[2] / "docs" / "envs.md"
REVERSE, SUM = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def loaded(code: str, folder: Path, **options: object) -> Env:
    file = folder / "my_env.py"
    file.write_text(code)
    return load_env(str(file), **options)


def test_the_environment_of_the_page_loads_is_sound_and_judges(tmp_path: Path) -> None:
    env = loaded(REVERSE, tmp_path, words=["ab", "cd", "ef"])
    tasks = check_tasks(env)
    check_disjoint(env, tasks)
    (task,) = tasks["test"]
    with Verifier(env, workers=1) as verifier:
        statuses = [verifier.verdict_sync(task, build_reply(env, text, task.prompt)).status for text in ("fe", "ef")]
    assert statuses == ["correct", "wrong"]


def test_the_longer_environment_of_the_page_is_sound_and_its_golden_cases_get_their_verdicts(tmp_path: Path) -> None:
    env = loaded(SUM, tmp_path)
    tasks = check_tasks(env)
    check_disjoint(env, tasks)
    assert {split: len(found) for split, found in tasks.items()} == {"train": 371, "dev": 47, "test": 47}
    cases = check_golden(env)
    with Verifier(env, workers=1) as verifier:
        found = [
            verifier.verdict_sync(case.task, build_reply(env, case.text, env.messages(case.task))).status
            for case in cases
        ]
    assert found == [case.status for case in cases]
    assert len(cases) == 5


def test_an_author_needs_no_import_but_veriward() -> None:
    for code in (REVERSE, SUM):
        assert set(re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE)) <= {"veriward", "re"}
