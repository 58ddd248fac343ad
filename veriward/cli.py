"""The `veriward` command: parses, calls the rooms, and turns what people can fix into one line.

Nothing heavy is imported before a verb needs it. Exit codes: 0 done, 1 an error that is said in
one line, 2 wrong usage, 130 interrupted. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import veriward
from sandbox.errors import VeriwardError
from veriward import cli_audit, cli_cases, cli_envs, cli_runs, cli_sandbox
from veriward.extras import advice_for
from veriward.output import note


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character gets its number
            stream.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(argv)
    try:
        code = int(args.verb(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except KeyboardInterrupt as interrupt:  # a run that was stopped says how to go on
        note(str(interrupt) or "interrupted")
        return 130
    except VeriwardError as error:
        note(str(error))
    except ModuleNotFoundError as error:
        advice = advice_for(error)
        if advice is None:
            raise
        note(advice)
    except OSError as error:
        note(f"{error.filename or 'input or output'}: {error.strerror or error}")
    return 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="veriward",
        description="Verifiable-reward environments with sandboxed verifiers, and the trainer that learns from them.",
        epilog="`veriward VERB --help` says more. Start with: veriward envs; veriward train --list",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and where it is installed")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    cli_runs.add_verbs(verbs)
    cli_envs.add_verbs(verbs)
    cli_audit.add_verbs(verbs)
    cli_cases.add_verbs(verbs)
    cli_sandbox.add_verbs(verbs)
    return parser


class _Version(argparse.Action):
    """Looked up only when asked: reading a distribution's metadata costs as much as all else here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("veriward")
        except PackageNotFoundError:
            found = "(not installed)"
        print(f"veriward {found} {os.path.dirname(os.path.realpath(veriward.__file__))}")
        parser.exit(0)
