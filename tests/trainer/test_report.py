"""The run's page: complete without network, right figures, harmless whatever a model wrote."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.verdict import Verdict
from sandbox.errors import VeriwardError
from trainer.hostile import visible
from trainer.records import Rollout, Segment
from trainer.report import write_report
from trainer.report_charts import run_charts
from trainer.report_data import SHOWN_ROLLOUTS_PER_STEP, SHOWN_STEPS, read_run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;own\x07\u202eevil\u2028\u200b\"'&amp;"


@dataclass
class Page(HTMLParser):
    """What a browser would see: elements with their attributes, scripts apart from text."""

    html: str
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    scripts: list[tuple[dict[str, str], str]] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag == "script":
            self.scripts.append((self.elements[-1][1], ""))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and self.cdata_elem == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        else:
            self.text += data

    @property
    def charts(self) -> list[dict[str, Any]]:
        return json.loads(next(body for attributes, body in self.scripts if attributes.get("id") == "charts"))


def make_run(home: Path, metrics: list[dict[str, Any]] | None = None, summary: dict[str, Any] | None = None) -> Path:
    run = home / "run"
    (run / "rollouts").mkdir(parents=True)
    (run / "config.toml").write_text('name = "demo"\n[env]\nname = "arithmetic"\n')
    if metrics is not None:
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    if summary is not None:
        (run / "summary.json").write_text(json.dumps(summary))
    return run


def add_rollouts(run: Path, step: int, *texts: str, verdict: Verdict | None = None) -> None:
    rollouts = [
        Rollout(
            "t1", 0, i, [Segment([1, 2])], "stop", text, verdict or Verdict.wrong("found 14"), 0.0, {"outcome": 0.0}
        )
        for i, text in enumerate(texts)
    ]
    prompt = [{"role": "user", "content": "what is 3 + 4?"}]
    lines = [json.dumps({**rollout.to_json(), "prompt": prompt}) for rollout in rollouts]
    (run / "rollouts" / f"step-{step:06d}.jsonl").write_text("\n".join(lines) + "\n")


def training(step: int, **figures: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "wall_s": 1.0, **figures}


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text("utf-8"))


def chart_titled(run: Path, title: str) -> dict[str, Any]:
    chart = next(chart for chart in run_charts(read_run(run)) if chart.title == title)
    return {trace["name"]: trace for trace in chart.data}


def test_the_page_needs_nothing_from_elsewhere_and_may_fetch_nothing(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, [training(1, **{"reward/mean": 0.5})]))
    assert [attributes for _, attributes in page.elements if {"src", "href", "srcset"} & set(attributes)] == []
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert not {"connect-src", "frame-src", "font-src"} & set(rules)
    assert "http" not in policy
    assert "unsafe" not in rules["script-src"]


def test_the_policy_allows_exactly_the_scripts_of_the_page(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, []))
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    executed = [body for attributes, body in page.scripts if attributes.get("type") != "application/json"]
    digests = {base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in executed}
    assert len(executed) == 2
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == digests


def test_the_figures_drawn_are_those_measured(tmp_path: Path) -> None:
    metrics = [training(s, **{"reward/mean": s / 10, "reward/outcome": s / 5, "time/learn_s": 2.0}) for s in (1, 2)]
    run = make_run(tmp_path, metrics)
    rewards = chart_titled(run, "Reward and its parts")
    assert list(rewards) == ["mean", "outcome"]
    assert (rewards["mean"]["x"], rewards["mean"]["y"]) == ([1, 2], [0.1, 0.2])
    assert rewards["outcome"]["y"] == [0.2, 0.4]
    assert chart_titled(run, "Where the time goes")["learn"]["y"] == [2.0, 2.0]
    drawn = {chart["id"]: chart for chart in page_of(run).charts}
    assert [trace["y"] for trace in drawn["chart-1"]["data"]] == [[0.1, 0.2], [0.2, 0.4]]


def test_held_out_figures_carry_their_intervals(tmp_path: Path) -> None:
    line = {"kind": "eval", "step": 0, "split": "test", "pass@1": 0.4, "pass@1/low": 0.35, "pass@1/high": 0.5}
    trace = chart_titled(make_run(tmp_path, [line]), "Held-out accuracy")["test pass@1"]
    assert trace["y"] == [0.4]
    assert trace["error_y"]["array"] == [pytest.approx(0.1)]
    assert trace["error_y"]["arrayminus"] == [pytest.approx(0.05)]


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), "many"])
def test_what_is_not_a_finite_number_is_a_gap_and_never_a_zero(tmp_path: Path, missing: Any) -> None:
    metrics = [training(1, **{"policy/entropy": 0.5}), training(2, **{"policy/entropy": missing}), training(3)]
    run = make_run(tmp_path, metrics)
    assert chart_titled(run, "Policy entropy")["entropy"]["y"] == [0.5, None, None]
    assert "NaN" not in json.dumps(page_of(run).charts)


@pytest.mark.parametrize("steps", [4, 5])
def test_a_run_that_stopped_for_want_of_a_signal_says_so(tmp_path: Path, steps: int) -> None:
    learnt = training(1, **{"groups/zero_signal_share": 0.5, "optimizer/loss": 0.1})
    quiet = [training(2 + number, **{"groups/zero_signal_share": 1.0}) for number in range(steps)]
    notes = read_run(make_run(tmp_path, [learnt, *quiet])).notes
    assert ("Stopped: no group gave a signal for 5 steps." in notes) == (steps == 5)


def test_a_cause_that_does_not_occur_in_a_step_was_dropped_zero_times(tmp_path: Path) -> None:
    run = make_run(tmp_path, [training(1, **{"discards/zero signal": 8}), training(2)])
    assert chart_titled(run, "Discarded rollouts")["zero signal"]["y"] == [8.0, 0.0]


def test_a_step_written_twice_counts_as_written_last(tmp_path: Path) -> None:
    """A run resumed from step 1 repeats step 2."""
    figures = [(1, 0.1), (2, 0.2), (3, 0.9), (2, 0.25)]
    run = make_run(tmp_path, [training(step, **{"reward/mean": value}) for step, value in figures])
    mean = chart_titled(run, "Reward and its parts")["mean"]
    assert (mean["x"], mean["y"]) == ([1, 2, 3], [0.1, 0.25, 0.9])


def test_an_unfinished_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, [training(1, **{"reward/mean": 0.5})])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 2, "rew')
    page = page_of(run)
    assert "no summary yet" in page.text
    assert "1 line could not be read" in page.text
    assert "no held-out figures yet" in page.text
    assert chart_titled(run, "Reward and its parts")["mean"]["y"] == [0.5]


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path))
    assert page.charts == []
    assert "metrics.jsonl is missing" in page.text
    assert "no figures in this run" in page.text


def test_before_and_after_stand_with_interval_and_change(tmp_path: Path) -> None:
    summary = {
        "env": "arithmetic",
        "before": {"pass@1": {"value": 0.43, "low": 0.4, "high": 0.46}, "pass@8": {"value": None}},
        "after": {"pass@1": {"value": 0.89, "low": 0.86, "high": 0.92}, "pass@8": {"value": 0.96}},
    }
    text = page_of(make_run(tmp_path, [], summary)).text
    assert "0.430 [0.400, 0.460]" in text
    assert "0.890 [0.860, 0.920]" in text
    assert "+0.460" in text
    assert text.count("undefined") == 2  # pass@8 before, and so its change


@pytest.mark.parametrize("summary", ["", "[1, 2]", "{", '{"before": 3, "after": {"pass@1": "x"}, "versions": []}'])
def test_a_strange_summary_does_not_stop_the_page(tmp_path: Path, summary: str) -> None:
    run = make_run(tmp_path, [])
    (run / "summary.json").write_text(summary)
    assert "Before and after" in page_of(run).text


def test_hostile_text_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    metrics = [training(1, **{f"reward/{HOSTILE}": 1.0, f"discards/{HOSTILE}": 2})]
    run = make_run(tmp_path, metrics, {"env": HOSTILE, "versions": {HOSTILE: HOSTILE}, "commit": HOSTILE})
    (run / "config.toml").write_text(f"# {HOSTILE}")
    add_rollouts(run, 1, HOSTILE, verdict=Verdict.wrong(HOSTILE))
    page = page_of(run)
    assert len(page.scripts) == 3
    assert "img" not in {tag for tag, _ in page.elements}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "<script>alert(1)</script>" in page.text
    assert "\\x1b]0;own\\x07\\u202eevil\\u2028\\u200b" in page.text
    raw = page.html.replace(page.scripts[1][1], "")  # all but plotly
    assert not set("\x1b\x07\u202e\u2028\u200b") & set(raw)
    names = [trace["name"] for chart in page.charts for trace in chart["data"]]
    assert all("<" not in name for name in names)


@given(st.text())
def test_no_model_text_can_end_its_element(text: str) -> None:
    """Property: whatever the reply, the browser finds the same elements, and the reply's visible form as text."""
    from trainer.report import _text

    page = Page(f"<pre>{_text(text)}</pre>")
    assert [tag for tag, _ in page.elements] == ["pre"]
    assert page.text == visible(text, limit=1500)


@given(st.text(alphabet=st.characters(blacklist_categories=())))
def test_visible_text_holds_nothing_a_terminal_obeys(text: str) -> None:
    shown = visible(text, one_line=True)
    assert all(character.isprintable() or character.isspace() for character in shown)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in shown)
    assert "\u2028" not in shown
    shown.encode("utf-8")


def test_plain_text_is_shown_as_it_is() -> None:
    assert visible("3 + 4 = 7\n\tÄpfel, 林檎 \\frac{1}{2}") == "3 + 4 = 7\n\tÄpfel, 林檎 \\frac{1}{2}"
    assert visible("a\nb\x85\u200f\U000e0041", one_line=True) == "a\\nb\\x85\\u200f\\U000e0041"
    assert visible("12345", limit=3) == "123 [... 2 more characters]"


def test_a_long_reply_is_cut_and_says_by_how_much(tmp_path: Path) -> None:
    run = make_run(tmp_path, [])
    add_rollouts(run, 1, "z" * 100_000)
    assert "z [... 98500 more characters]" in page_of(run).text


def test_sample_rollouts_are_few_spread_over_the_run_and_as_different_as_they_come(tmp_path: Path) -> None:
    run = make_run(tmp_path, [])
    for step in range(1, 101):
        add_rollouts(run, step, *["same"] * 30)
    with (run / "rollouts" / "step-000100.jsonl").open("a") as file:
        rare = Rollout("t1", 0, 31, [Segment([1])], "stop", "rare", Verdict.correct(), 1.0)
        file.write(json.dumps(rare.to_json()) + "\n{broken\n")
    rollouts = read_run(run).rollouts
    steps = [row["step"] for row in rollouts]
    assert len(rollouts) == SHOWN_STEPS * SHOWN_ROLLOUTS_PER_STEP
    assert (min(steps), max(steps), len(set(steps))) == (1, 100, SHOWN_STEPS)
    assert "rare" in [row["text"] for row in rollouts]


def test_a_rollout_shows_prompt_reply_verdict_reward_and_step(tmp_path: Path) -> None:
    run = make_run(tmp_path, [])
    add_rollouts(run, 10, "Answer: 14")
    text = page_of(run).text
    for expected in ("10", "t1", "user: what is 3 + 4?", "Answer: 14", "wrong", "found 14", "outcome 0"):
        assert expected in text


@pytest.mark.parametrize("line", ['{"verdict": 3, "text": 5, "prompt": 7, "reward_parts": [1], "reward": "x"}', "{}"])
def test_a_strange_rollout_does_not_stop_the_page(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path, [])
    (run / "rollouts" / "step-000003.jsonl").write_text(line + "\n[]\n\xff\n")
    assert "none" in page_of(run).text


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(VeriwardError, match=folder) as refusal:
        write_report(tmp_path / folder)
    assert "\n" not in str(refusal.value)


def test_a_page_that_cannot_be_written_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, [])
    old = write_report(run).read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VeriwardError, match="No space left"):
        write_report(run)
    assert (run / "report.html").read_bytes() == old
    assert [path.name for path in run.iterdir() if path.name.startswith(".report")] == []


def test_the_page_is_written_without_torch(tmp_path: Path) -> None:
    run = make_run(tmp_path, [])
    code = f"""
import sys
from pathlib import Path
from trainer.report import write_report
write_report(Path({str(run)!r}))
print(*[name for name in ("torch", "transformers", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
