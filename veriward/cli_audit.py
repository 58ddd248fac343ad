"""The verb `audit`: the attack library and the golden cases against an environment's verifier."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from veriward.arguments import whole_number
from veriward.cli_envs import add_env, load
from veriward.output import say, say_json, say_table

if TYPE_CHECKING:
    from envs.audit import Play


def add_verbs(verbs: Any) -> None:
    audit = verbs.add_parser(
        "audit", help="play every known attack against an environment's verifier", description=_audit.__doc__
    )
    add_env(audit)
    audit.add_argument("--tasks", type=whole_number(1, 10_000), default=3, metavar="N", help="dev tasks (default 3)")
    audit.set_defaults(verb=_audit)


def _audit(args: argparse.Namespace) -> int:
    """Play the attack library, the golden cases and golden replies made wrong against an environment's verifier, and
    report false accepts, false rejects, unscored plays and time. Exits with 1 where there is a fault."""
    from envs.audit import audit

    env = load(args)
    plays = audit(env, tasks=args.tasks)
    if args.json:
        say_json(
            {"env": env.name, "env_version": env.version, "totals": _totals(plays)}
            | {"plays": [play.to_json() for play in plays]}
        )
    else:
        _report(plays)
    return int(any(play.fault for play in plays))


def _totals(plays: Sequence[Play]) -> dict[str, int]:
    faults = [play.fault for play in plays]
    return {"plays": len(plays)} | {
        name.replace(" ", "_"): faults.count(name)
        for name in ("false accept", "false reject", "other status", "unscored")
    }


def _report(plays: Sequence[Play]) -> None:
    names = dict.fromkeys((play.kind, play.name if play.kind == "attack" else "") for play in plays)
    rows = []
    for kind, name in names:
        of_it = [play for play in plays if play.kind == kind and name in ("", play.name)]
        counts = _totals(of_it)
        slowest = max(play.seconds for play in of_it)
        rows.append((f"{kind} {name}".strip(), *map(str, counts.values()), f"{slowest:.2f}"))
    say_table("audit", ("played", "times", "paid", "rejected", "other", "unscored", "slowest s"), rows)
    for play in plays:
        if play.fault:
            said = f"{play.verdict.status} {play.verdict.detail}".strip()[:200]
            say(f"{play.fault}: {play.kind} {play.name!r} on task {play.task}: {said} [{play.rule}; {play.source}]")
    totals = _totals(plays)
    faults = sum(totals.values()) - totals["plays"]
    say(f"{faults} of {totals['plays']} plays show a fault of the verifier's" if faults else "no attack is paid")
