"""The environment in docs/envs.md is a real one."""

from __future__ import annotations

import re
from pathlib import Path

from envs.registry import load_env
from envs.splits import check_disjoint, check_tasks
from envs.verification import Verifier, build_reply

PAGE = Path(__file__).resolve().parents[2] / "docs" / "envs.md"


def test_the_environment_of_the_page_loads_is_sound_and_judges(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    file = tmp_path / "reverse.py"
    file.write_text(found[1])
    env = load_env(str(file), words=["ab", "cd", "ef"])
    tasks = check_tasks(env)
    check_disjoint(env, tasks)
    (task,) = tasks["test"]
    with Verifier(env, workers=1) as verifier:
        statuses = [verifier.verdict_sync(task, build_reply(env, text, task.prompt)).status for text in ("fe", "ef")]
    assert statuses == ["correct", "wrong"]
