"""A run's page: one HTML file that needs nothing else, no network and no server.

Every string a model made is hostile here: unseen characters are spelled out, it is cut, then
escaped. The page's own policy allows exactly its two scripts (by hash) and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandbox.errors import VeriwardError
from trainer.hostile import visible
from trainer.report_charts import Chart, run_charts
from trainer.report_data import Row, RunRecord, number, read_run, verdict_of
from trainer.run_folder import replace_text

SHOWN_CHARACTERS = 1500
_ROLLOUT_COLUMNS = {"step": 4, "task": 9, "prompt": 26, "reply": 33, "verdict": 16, "reward": 12}  # per cent

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #2d3748; background: #f4f6f9; margin: 0 auto; max-width: 1240px;
  padding: 24px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 19px; margin: 32px 0 10px; } h3 { font-size: 15px; margin: 0; }
.card { background: #fff; border: 1px solid #e2e8f0; border-radius: 8px; padding: 14px 16px; overflow-x: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 16px; }
.quiet { color: #5a6779; font-size: 13px; margin: 0 0 6px; } .note { color: #975a16; margin: 4px 0; }
.empty { color: #5a6779; padding: 60px 0; text-align: center; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-size: 13px; color: #5a6779; }
th, td { padding: 6px 10px; border-bottom: 1px solid #edf0f4; vertical-align: top; }
tr:last-child td { border-bottom: 0; } td.figure { font-variant-numeric: tabular-nums; white-space: nowrap; }
.facts { width: auto; } .rollouts { table-layout: fixed; min-width: 1040px; font-size: 13px; }
pre { margin: 0; font: 12px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 180px; overflow-y: auto; }
details pre { max-height: none; } summary { cursor: pointer; font-weight: 600; }
.status { border-radius: 10px; padding: 1px 9px; background: #edf0f4; white-space: nowrap; }
.correct { background: #d5f0df; color: #1c5c38; } .partial { background: #fdf0cd; color: #744210; }
.wrong, .unparsed, .crashed, .timeout { background: #fbdedb; color: #822727; }
.tampered { background: #822727; color: #fff; }
"""
_SCRIPT = """
for (const chart of JSON.parse(document.getElementById("charts").textContent))
  Plotly.newPlot(chart.id, chart.data, chart.layout, {responsive: true, displayModeBar: false});
"""


def write_report(run: Path) -> Path:
    """Write `report.html` into the run folder and return its path; the old page stays until the new one is whole.

    The run may be unfinished. Raises VeriwardError when the folder is no run, or cannot be read or written.
    """
    from plotly.offline import get_plotlyjs

    page = _page(read_run(run), get_plotlyjs().replace("\r\n", "\n"))
    path = run / "report.html"
    try:
        replace_text(path, page)
    except OSError as error:
        raise VeriwardError(
            f"{path}: cannot be written ({error.strerror}); free some space or check its rights"
        ) from None
    return path


def _page(record: RunRecord, plotly_script: str) -> str:
    charts = run_charts(record)
    policy = (
        f"default-src 'none'; script-src {_hash(plotly_script)} {_hash(_SCRIPT)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = _text(f"{record.summary.get('env') or record.run.resolve().name}: training run", limit=120)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p class="quiet">{_text(record.run.resolve().name)}{_facts_line(record.summary)}</p>
{"".join(f'<p class="note">{_text(note)}</p>' for note in record.notes)}
<h2>Before and after</h2>
{_before_after(record.summary)}
<h2>Curves</h2>
<div class="charts">
{"".join(_chart_card(index, chart) for index, chart in enumerate(charts))}
</div>
<h2>Sample rollouts</h2>
{_rollouts(record.rollouts)}
<h2>How it was made</h2>
{_provenance(record.summary)}
<div class="card"><details><summary>config.toml</summary>
<pre>{_text(record.config_text, limit=50_000)}</pre></details></div>
<script type="application/json" id="charts">{_chart_json(charts)}</script>
<script>{plotly_script}</script>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _text(value: object, limit: int = SHOWN_CHARACTERS) -> str:
    return html.escape(visible(str(value), limit=limit))


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _chart_json(charts: Sequence[Chart]) -> str:
    drawn = [
        {"id": f"chart-{index}", "data": chart.data, "layout": chart.layout}
        for index, chart in enumerate(charts)
        if chart.data
    ]
    text = json.dumps(drawn, allow_nan=False)  # ASCII, so U+2028 and U+2029 are escaped too
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _chart_card(index: int, chart: Chart) -> str:
    body = f'<div id="chart-{index}"></div>' if chart.data else '<div class="empty">no figures in this run</div>'
    return (
        f'<div class="card"><h3>{_text(chart.title)}</h3><p class="quiet">{_text(chart.explanation)}</p>{body}</div>\n'
    )


def _facts_line(summary: Row) -> str:
    facts = [
        f"env version {summary['env_version']}" if summary.get("env_version") is not None else "",
        f"seed {summary['seed']}" if summary.get("seed") is not None else "",
        f"{summary['steps']} steps" if summary.get("steps") is not None else "",
        *(
            f"{number(summary[key]):,.0f} {unit}"
            for key, unit in (("wall_s", "s wall time"), ("cpu_s", "s CPU time"))
            if number(summary.get(key)) is not None
        ),
    ]
    return "".join(f" · {_text(fact, limit=80)}" for fact in facts if fact)


def _before_after(summary: Row) -> str:
    before, after = _mapping(summary.get("before")), _mapping(summary.get("after"))
    measures = [key for key in (*before, *after) if key.startswith("pass@") or key == "greedy"]
    if not measures:
        return '<div class="card empty">no held-out figures yet</div>'
    rows = [
        [_text(measure), _estimate(before.get(measure)), _estimate(after.get(measure)), _gain(before, after, measure)]
        for measure in dict.fromkeys(measures)
    ]
    split = _text(summary.get("split", "test"), limit=40)
    return (
        f'<div class="card"><p class="quiet">Held-out {split} tasks, with 95% intervals over tasks.</p>'
        f"{_table(['', 'before', 'after', 'change'], rows, 'facts')}</div>"
    )


def _estimate(estimate: Any) -> str:
    value, low, high = (number(_mapping(estimate).get(key)) for key in ("value", "low", "high"))
    if value is None:
        return "undefined" if estimate is not None else "not measured"
    return f"{value:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else "")


def _gain(before: Mapping[str, Any], after: Mapping[str, Any], measure: str) -> str:
    old, new = (number(_mapping(side.get(measure)).get("value")) for side in (before, after))
    return "undefined" if old is None or new is None else f"{new - old:+.3f}"


def _rollouts(rollouts: Sequence[Row]) -> str:
    if not rollouts:
        return '<div class="card empty">no rollouts kept in this run</div>'
    head = "".join(f'<th style="width: {width}%">{name}</th>' for name, width in _ROLLOUT_COLUMNS.items())
    return (
        f'<div class="card"><table class="rollouts"><tr>{head}</tr>{"".join(map(_rollout_row, rollouts))}</table></div>'
    )


def _rollout_row(row: Row) -> str:
    verdict = verdict_of(row)
    status = str(verdict.get("status") or "none")
    kind = status if status.isalpha() and status.isascii() else "none"
    cells = [
        f'<td class="figure">{row["step"]}</td>',
        f"<td><pre>{_text(row.get('task_id', ''), limit=200)}</pre></td>",
        f"<td><pre>{_text(_prompt_text(row.get('prompt')))}</pre></td>",
        f"<td><pre>{_text(row.get('text') or '')}</pre></td>",
        f'<td><span class="status {kind}">{_text(status, limit=40)}</span>'
        f"<pre>{_text(verdict.get('detail') or '', limit=500)}</pre></td>",
        f'<td class="figure">{_figure(row.get("reward"))}<br>{_parts(row.get("reward_parts"))}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _prompt_text(prompt: Any) -> str:
    if not isinstance(prompt, list):
        return str(prompt or "")
    messages = [message for message in prompt if isinstance(message, dict)]
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)


def _parts(parts: Any) -> str:
    items = list(_mapping(parts).items())[:12]
    return "<br>".join(f'<span class="quiet">{_text(name, limit=40)} {_figure(value)}</span>' for name, value in items)


def _figure(value: Any) -> str:
    found = number(value)
    return "undefined" if found is None else f"{found:.4g}"


def _provenance(summary: Row) -> str:
    facts = {key: summary[key] for key in ("data_hash", "model_hash", "commit") if summary.get(key) is not None}
    rows = [
        [_text(name), _text(value, limit=200)] for name, value in {**facts, **_mapping(summary.get("versions"))}.items()
    ]
    return f'<div class="card">{_table(["what", "which"], rows, "facts")}</div>' if rows else ""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], kind: str) -> str:
    """Cells are HTML already."""
    body = "".join("<tr>" + "".join(f'<td class="figure">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    return f'<table class="{kind}"><tr>{"".join(f"<th>{cell}</th>" for cell in head)}</tr>{body}</table>'


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
