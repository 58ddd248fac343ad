"""The verbs around a run: train, resume, report, export, warmup."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.errors import ConfigError
from veriward.cli_envs import add_env_option, option_parts
from veriward.output import interval_text, say, say_json, say_table

if TYPE_CHECKING:
    from trainer.train import RunSummary


def add_verbs(verbs: Any) -> None:
    train = verbs.add_parser("train", help="train a model on an environment", description=_train.__doc__)
    train.add_argument("source", nargs="?", metavar="CONFIG.toml|PRESET|ENV", help="what to train (see --list)")
    train.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="override one setting"
    )
    add_env_option(train)
    train.add_argument("--out", type=Path, metavar="RUN", help="run folder (default: runs/<name>-<time>)")
    train.add_argument("--dry-run", action="store_true", help="check config and env, print the config, and stop")
    train.add_argument("--list", action="store_true", help="list the presets and environments, and stop")
    _add_json(train)
    train.set_defaults(verb=_train)

    resume = verbs.add_parser("resume", help="go on with an interrupted run", description=_resume.__doc__)
    resume.add_argument("run", type=Path, metavar="RUN")
    resume.add_argument("--steps", type=int, metavar="N", help="steps in all (default: as configured)")
    _add_json(resume)
    resume.set_defaults(verb=_resume)

    report = verbs.add_parser("report", help="write a run's HTML page", description=_report.__doc__)
    report.add_argument("run", type=Path, metavar="RUN")
    _add_json(report)
    report.set_defaults(verb=_report)

    export = verbs.add_parser("export", help="take something out of a run", description="Take something out of a run.")
    things = export.add_subparsers(title="what", metavar="WHAT", required=True)
    model = things.add_parser("model", help="the trained model", description=_export_model.__doc__)
    model.add_argument("run", type=Path, metavar="RUN")
    model.add_argument("path", type=Path, metavar="PATH", help="a new folder")
    _add_json(model)
    model.set_defaults(verb=_export_model)

    warmup = verbs.add_parser("warmup", help="rebuild the embedded base model", description=_warmup.__doc__)
    warmup.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the model goes")
    warmup.add_argument("--seed", type=int, default=0)
    _add_json(warmup)
    warmup.set_defaults(verb=_warmup)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else")


def _train(args: argparse.Namespace) -> int:
    """Train as a TOML config, a preset, or an environment (name, package.module:Class, or path) says; ends with
    the held-out pass@1 and pass@8 before and after, and the path of the run's HTML page."""
    from envs.registry import load_env
    from trainer.config import load_config

    if args.list:
        return _list_sources(args.json)
    if args.source is None:
        raise ConfigError(
            "train what? Give a config file, a preset or an environment; `veriward train --list` has them"
        )
    options = [f"env.options.{name}={text}" for name, text in map(option_parts, args.env_option)]
    config = load_config(args.source, [*args.overrides, *options])
    if args.dry_run:
        load_env(config.env.name, **config.env.options)
        if args.json:
            say_json(config.model_dump(mode="json"))
        else:
            for line in config.to_toml().rstrip("\n").split("\n"):
                say(line)
        return 0

    from trainer.train import train
    from veriward.progress import shown_progress

    with shown_progress() as progress:
        summary = train(config, args.out, progress=progress)
    return _finish(summary, args.json)


def _resume(args: argparse.Namespace) -> int:
    """Go on with an interrupted run from its last checkpoint, with its own config."""
    from trainer.train import resume
    from veriward.progress import shown_progress

    with shown_progress() as progress:
        summary = resume(args.run, steps=args.steps, progress=progress)
    return _finish(summary, args.json)


def _report(args: argparse.Namespace) -> int:
    """Write report.html, one self-contained page with the run's curves and sample rollouts; also of a run that
    is still going."""
    from trainer.report import write_report

    page = write_report(args.run)
    if args.json:
        say_json({"run": str(args.run), "report": str(page)})
    else:
        say(str(page))
    return 0


def _export_model(args: argparse.Namespace) -> int:
    """Write the run's latest weights as a model directory that transformers and vLLM load."""
    from trainer.export import export_model

    export_model(args.run, args.path)
    if args.json:
        say_json({"run": str(args.run), "model": str(args.path)})
    else:
        say(f"model of {args.run} is in {args.path}")
    return 0


def _warmup(args: argparse.Namespace) -> int:
    """Rebuild the embedded base model by supervised tuning on procedural demonstrations."""
    from trainer.warmup import warmup
    from veriward.progress import shown_progress

    with shown_progress() as progress:
        figures = warmup(args.out, seed=args.seed, progress=progress)
    if args.json:
        say_json({"model": str(args.out), **figures})
    else:
        say(f"base model is in {args.out}")
        for name, value in figures.items():
            say(f"  {name}: {value}")
    return 0


def _list_sources(as_json: bool) -> int:
    from envs.registry import env_names
    from trainer.config import preset_names

    presets, envs = preset_names(), env_names()
    if as_json:
        say_json({"presets": presets, "envs": envs})
    else:
        say(f"presets: {', '.join(presets)}")
        say(f"envs:    {', '.join(envs)}")
        say("also a config file (.toml), package.module:Class, or the path of an env's .py file or folder")
    return 0


def _finish(summary: RunSummary, as_json: bool) -> int:
    data = summary.to_json()
    if as_json:
        say_json(data)
        return 0
    before, after = data["before"], data["after"]
    say_table(
        f"{data['env']}, held-out {data['split']} tasks, with 95% intervals",
        ["", "before", "after"],
        [[name, interval_text(before.get(name)), interval_text(after[name])] for name in after],
    )
    for cause, count in data["unscored"].items():
        say(f"unscored: {count} replies ({cause})")
    say(f"report: {summary.report}")
    return 0
