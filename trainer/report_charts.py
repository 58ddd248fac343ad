"""The charts of a run's page, as plain plotly figures (dicts), so that plotly itself is not needed here.

A value that is missing or not finite is a gap in its line, never a zero.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.hostile import visible
from trainer.report_data import Row, RunRecord, number

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#718096", "#b7791f", "#00798c")
_STATUS_COLOURS = {
    "correct": "#2f855a",
    "partial": "#b7791f",
    "wrong": "#c05621",
    "unparsed": "#805ad5",
    "timeout": "#2b6cb0",
    "crashed": "#b83280",
    "tampered": "#822727",
    "unscored": "#718096",
}
_GRID = "#e8ecf1"


@dataclass(frozen=True)
class Chart:
    """`data` and `layout` are plotly's; no data means that the run has no such figures (yet)."""

    title: str
    explanation: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


@dataclass(frozen=True)
class _Lines:
    """A chart of metrics by training step: keys to legend names, one y axis with its unit."""

    title: str
    unit: str
    explanation: str
    keys: dict[str, str]
    style: str = "lines"  # or "stacked"
    is_share: bool = False


_BY_STEP = (
    _Lines("Reply length", "tokens", "Mean sampled tokens of a reply.", {"completion/length_mean": "mean length"}),
    _Lines(
        "Truncated replies",
        "share of replies",
        "Replies that reached the token limit before they ended.",
        {"completion/truncated_share": "truncated"},
        is_share=True,
    ),
    _Lines(
        "Groups without a signal",
        "share of groups",
        "Groups whose replies are all right or all wrong: nothing to learn from.",
        {"groups/zero_signal_share": "zero signal"},
        is_share=True,
    ),
    _Lines(
        "Policy entropy", "nats a token", "Near zero the policy has stopped exploring.", {"policy/entropy": "entropy"}
    ),
    _Lines(
        "Clipped tokens",
        "share of tokens",
        "Tokens whose ratio left the clip range, so that they gave no gradient.",
        {"policy/clip_share": "clipped"},
        is_share=True,
    ),
    _Lines(
        "Trainer and sampler mismatch",
        "KL, nats a token",
        "k3 estimate between the learner's and the sampler's log-probs; should stay near zero.",
        {"policy/mismatch_k3_mean": "mean", "policy/mismatch_k3_max": "max"},
    ),
    _Lines(
        "Gradient norm",
        "norm before clipping",
        "Size of each optimiser step's gradient.",
        {"optimizer/grad_norm": "norm"},
    ),
    _Lines(
        "Throughput",
        "tokens/s",
        "Sampled tokens by wall time of the whole step.",
        {"throughput/tokens_per_s": "tokens/s"},
    ),
    _Lines(
        "Where the time goes",
        "seconds a step",
        "Wall seconds of each part of a step.",
        {"time/sample_s": "sample", "time/verify_s": "verify", "time/learn_s": "learn"},
        style="stacked",
    ),
)


def run_charts(record: RunRecord) -> list[Chart]:
    by_step = [_by_step(lines, record.train) for lines in _BY_STEP]
    return [_held_out(record.evals), _rewards(record.train), _verdicts(record.train), *by_step, _discards(record.train)]


def _held_out(evals: Sequence[Row]) -> Chart:
    """pass@k and greedy accuracy by split, each with its 95 % interval."""
    data: list[dict[str, Any]] = []
    colours: dict[str, str] = {}
    for split in sorted({str(row.get("split")) for row in evals}):
        rows = [row for row in evals if str(row.get("split")) == split]
        measures = sorted({key for row in rows for key in row if _is_measure(key)}, key=_measure_order)
        for measure in measures:
            colour = colours.setdefault(measure, COLOURS[len(colours) % len(COLOURS)])
            trace = _trace(f"{split} {measure}", rows, measure, colour)
            trace["mode"] = "lines+markers"
            trace["line"]["dash"] = "solid" if split == "test" else "dot"
            trace["error_y"] = _interval(rows, measure, colour)
            data.append(trace)
    explanation = "Share of tasks solved, with 95% intervals over tasks; test is only ever reported."
    return _chart(
        "Held-out accuracy", "share of tasks", explanation, [t for t in data if _has_values(t)], is_share=True
    )


def _is_measure(key: str) -> bool:
    return "/" not in key and (key.startswith("pass@") or key == "greedy")


def _measure_order(measure: str) -> tuple[bool, int, str]:
    digits = measure.partition("@")[2]
    return measure == "greedy", int(digits) if digits.isdecimal() else 0, measure


def _interval(rows: Sequence[Row], measure: str, colour: str) -> dict[str, Any]:
    above, below = [], []
    for row in rows:
        value, low, high = (number(row.get(measure + suffix)) for suffix in ("", "/low", "/high"))
        above.append(None if value is None or high is None else max(high - value, 0.0))
        below.append(None if value is None or low is None else max(value - low, 0.0))
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "color": colour,
        "thickness": 1,
        "width": 4,
    }


def _rewards(train: Sequence[Row]) -> Chart:
    keys = sorted(
        {key for row in train for key in row if key.startswith("reward/")}, key=lambda k: (k != "reward/mean", k)
    )
    data = [
        _trace(key.removeprefix("reward/"), train, key, COLOURS[i % len(COLOURS)], width=2.5 if i == 0 else 1.5)
        for i, key in enumerate(keys)
    ]
    explanation = "Mean reward of the sampled replies, and every part it is composed of."
    return _chart("Reward and its parts", "reward", explanation, [t for t in data if _has_values(t)])


def _verdicts(train: Sequence[Row]) -> Chart:
    data = _one_trace_each("verdict/", train, {})
    for trace in data:
        trace["stackgroup"] = "all"
        trace["name"] = trace["name"].removesuffix("_share")
        trace["line"]["color"] = _STATUS_COLOURS.get(trace["name"], COLOURS[0])
    explanation = "What the verifier found, over all sampled replies; unscored is the verifier's own failure."
    return _chart("Verdicts", "share of replies", explanation, data, is_share=True)


def _discards(train: Sequence[Row]) -> Chart:
    data = _one_trace_each("discards/", train, {"type": "bar"})
    for trace in data:
        trace["marker"] = {"color": trace.pop("line")["color"]}
        del trace["mode"]
    explanation = "Rollouts that were sampled and not trained, by cause."
    chart = _chart("Discarded rollouts", "rollouts a step", explanation, data)
    chart.layout["barmode"] = "stack"
    return chart


def _one_trace_each(prefix: str, train: Sequence[Row], more: dict[str, Any]) -> list[dict[str, Any]]:
    """A trace of every metric whose name starts so; absent in a step means none in that step."""
    keys = sorted({key for row in train for key in row if key.startswith(prefix)})
    rows = [{**dict.fromkeys(keys, 0), **row} for row in train]
    return [
        _trace(key.removeprefix(prefix), rows, key, COLOURS[index % len(COLOURS)]) | more
        for index, key in enumerate(keys)
    ]


def _by_step(lines: _Lines, train: Sequence[Row]) -> Chart:
    data = [_trace(name, train, key, COLOURS[i]) for i, (key, name) in enumerate(lines.keys.items())]
    if lines.style == "stacked":
        for trace in data:
            trace["stackgroup"] = "all"
    return _chart(
        lines.title, lines.unit, lines.explanation, [t for t in data if _has_values(t)], is_share=lines.is_share
    )


def _trace(name: str, rows: Sequence[Row], key: str, colour: str, width: float = 2) -> dict[str, Any]:
    # plotly reads names as its own small HTML, so they are escaped for it
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(rows) == 1 else "lines",
        "name": html.escape(visible(name, limit=60, one_line=True)),
        "x": [row["step"] for row in rows],
        "y": [number(row.get(key)) for row in rows],
        "line": {"color": colour, "width": width},
    }


def _has_values(trace: dict[str, Any]) -> bool:
    return any(value is not None for value in trace["y"])


def _chart(title: str, unit: str, explanation: str, data: list[dict[str, Any]], *, is_share: bool = False) -> Chart:
    axis = {"gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": "#a0aec0", "automargin": True}
    axis |= {"exponentformat": "power", "separatethousands": True}
    y_axis: dict[str, Any] = {**axis, "title": {"text": unit}, "rangemode": "tozero"}
    if is_share:
        y_axis |= {"tickformat": ".0%" if _peak(data) > 0.05 else ".1%"}
    layout = {
        "height": 300,
        "margin": {"l": 62, "r": 16, "t": 8, "b": 44},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#2d3748"},
        "xaxis": {**axis, "title": {"text": "training step"}},
        "yaxis": y_axis,
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "x unified",
    }
    return Chart(title, explanation, data, layout)


def _peak(data: Sequence[dict[str, Any]]) -> float:
    return max((value for trace in data for value in trace["y"] if value is not None), default=0.0)
