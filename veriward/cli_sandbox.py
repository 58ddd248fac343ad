"""`veriward sandbox`: check this machine, run one file, serve others, measure."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.errors import ConfigError, VeriwardError
from veriward.arguments import backend_name, limit, whole_number
from veriward.output import note, say, say_json, say_table

if TYPE_CHECKING:
    from sandbox.backend import Backend
    from sandbox.models import Execution

_LANGUAGE_OF = {
    ".py": "python",
    ".c": "c",
    **dict.fromkeys((".cc", ".cpp", ".cxx"), "cpp"),
    **dict.fromkeys((".sh", ".bash"), "bash"),
    **dict.fromkeys((".js", ".cjs", ".mjs"), "javascript"),
}
_LANGUAGES = ("python", "c", "cpp", "bash", "javascript")
_TOKEN_VARIABLE = "VERIWARD_SANDBOX_TOKEN"


def add_verbs(verbs: Any) -> None:
    sandbox = verbs.add_parser("sandbox", help="check, run, serve or measure the sandbox", description=__doc__)
    what = sandbox.add_subparsers(title="what to do", metavar="WHAT", required=True)

    check = what.add_parser("check", help="what this machine can guarantee", description=_check.__doc__)
    check.add_argument("--image", help="the Docker image to look at")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(verb=_check)

    run = what.add_parser("run", help="run one file, confined", description=_run.__doc__)
    run.add_argument("file", metavar="FILE", help="the program, or - for stdin")
    run.add_argument("arguments", nargs="*", metavar="ARG", help="its arguments; after -- where they begin with a dash")
    run.add_argument(
        "--backend", type=backend_name, default="local", metavar="B", help="local (default), docker, or a server's URL"
    )
    run.add_argument("--language", choices=_LANGUAGES, help="default: by the file's suffix, else python")
    run.add_argument("--stdin", type=Path, metavar="FILE", help="its standard input (default: empty)")
    run.add_argument(
        "--wall", type=limit("wall_s", float), metavar="S", help="wall-clock limit in seconds (default 10)"
    )
    run.add_argument("--cpu", type=limit("cpu_s", float), metavar="S", help="CPU limit in seconds (default 10)")
    run.add_argument("--memory", type=limit("memory_mb", int), metavar="MB", help="memory limit (default 512)")
    run.add_argument("--flavour", choices=("slim", "sci"), default="slim", help="sci: with numpy and sympy")
    run.add_argument("--image", help="the Docker image to run in")
    run.add_argument("--token-file", type=Path, metavar="FILE", help=f"a server's token (default: ${_TOKEN_VARIABLE})")
    run.add_argument("--json", action="store_true", help="print the whole result as one JSON object")
    run.set_defaults(verb=_run)

    serve = what.add_parser("serve", help="run programs for others, over HTTP", description=_serve.__doc__)
    serve.add_argument("--port", type=whole_number(0, 65535), default=8080, help="0 takes a free one (default 8080)")
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)")
    access = serve.add_mutually_exclusive_group(required=True)
    access.add_argument("--token-file", type=Path, metavar="FILE", help="holds the token that clients must send")
    access.add_argument("--no-auth", action="store_true", help="admit everybody; on loopback only")
    serve.add_argument(
        "--slots", type=whole_number(1, 4096), metavar="N", help="jobs at a time (default: the usable CPUs)"
    )
    serve.add_argument(
        "--queue", type=whole_number(0, 1_000_000), default=256, metavar="N", help="jobs that may wait (default 256)"
    )
    serve.add_argument("--backend", choices=("local", "docker"), default="local")
    serve.add_argument("--image", help="the Docker image to run in")
    serve.add_argument("--require", default="", metavar="NAME,...", help="refuse to start where one of these is weaker")
    serve.set_defaults(verb=_serve)

    bench = what.add_parser("bench", help="what a job costs on this machine", description=_bench.__doc__)
    bench.add_argument(
        "--jobs", type=whole_number(10, 1_000_000), default=200, metavar="N", help="jobs of each kind (default 200)"
    )
    bench.add_argument("--json", action="store_true", help="print one JSON object")
    bench.set_defaults(verb=_bench)


def _check(args: argparse.Namespace) -> int:
    """Print what each backend enforces here, what is weaker and why, and the languages that are installed.
    Exits with 1 where the local backend can't run programs."""
    found: dict[str, Any] = {"backends": {}, "refused": {}, "languages": _tools(), "sci": _sci()}
    for name in ("local", "docker"):
        try:
            with _backend(name, image=args.image) as backend:
                found["backends"][name] = [item.model_dump() for item in backend.guarantees().items]
        except (VeriwardError, ModuleNotFoundError) as error:
            found["refused"][name] = str(error)
    if args.json:
        say_json(found)
    else:
        for name, items in found["backends"].items():
            say_table(f"{name} backend", ("guarantee", "level", "how"), [tuple(item.values()) for item in items])
        for name, reason in found["refused"].items():
            say(f"{name} backend: not here: {reason}")
        say(
            "languages: "
            + ", ".join(f"{name} ({path or 'not installed'})" for name, path in found["languages"].items())
        )
        say(f"flavours: slim, {'sci (numpy and sympy)' if found['sci'] else 'no sci: numpy or sympy is not installed'}")
    return int("local" not in found["backends"])


def _tools() -> dict[str, str | None]:
    import shutil

    from sandbox.languages import LANGUAGES

    compilers = {name: (spec.compile or spec.run)[0] for name, spec in LANGUAGES.items() if name != "python"}
    return {"python": sys.executable, **{name: shutil.which(tool) for name, tool in compilers.items()}}


def _sci() -> bool:
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("numpy", "sympy"))


def _run(args: argparse.Namespace) -> int:
    """Run one program and print what it printed. Exits as it did: with its code, 128 + its signal, 124 when it
    ran out of time, 1 when another limit ended it or it did not compile. With --json prints the whole result,
    and exits with 0 once the program ran."""
    program = _program(args)
    with _backend(args.backend, image=args.image, token=_token(args.token_file)) as backend:
        execution = backend.run_sync(program)
    if args.json:
        say_json(_shown(execution))
        return int(execution.status in ("unavailable", "not_compiled"))
    if execution.compile is not None:
        _print(2, execution.compile.stderr)
    _print(1, execution.stdout)
    _print(2, execution.stderr)
    return _exit_status(execution)


def _program(args: argparse.Namespace) -> Any:
    from pydantic import ValidationError

    from sandbox.models import Limits, Program

    content = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
    given = {"wall_s": args.wall, "cpu_s": args.cpu, "memory_mb": args.memory}
    try:
        limits = Limits(**{name: value for name, value in given.items() if value is not None})
        if args.wall is not None and args.cpu is None:
            limits = limits.model_copy(update={"cpu_s": max(args.wall, limits.cpu_s)})
        return Program(
            language=args.language or _LANGUAGE_OF.get(Path(args.file).suffix, "python"),
            code=content.decode(),
            argv=tuple(args.arguments),
            stdin=args.stdin.read_bytes() if args.stdin else b"",
            limits=limits,
            mode="fresh",
            flavour=args.flavour,
        )
    except UnicodeDecodeError as error:
        raise ConfigError(f"{args.file}: byte {error.start} is not UTF-8; a program is UTF-8 text") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}") from None


def _exit_status(execution: Execution) -> int:
    if execution.status == "finished":
        return execution.exit_code if execution.exit_code is not None else 128 + (execution.signal or 0)
    if execution.status == "timeout":
        note(f"ended by its {execution.limit} limit after {execution.wall_s:.1f} s")
        return 124
    if execution.status == "killed":
        note(
            f"ended by its {execution.limit} limit"
            if execution.limit
            else f"ended: {execution.error or 'it was stopped'}"
        )
    else:
        note(execution.error)
    return 1


def _print(stream: int, data: bytes) -> None:
    """To a terminal with control characters spelled out, else byte for byte."""
    from trainer.hostile import visible

    target = sys.stdout if stream == 1 else sys.stderr
    if target.isatty():
        target.write(visible(data.decode("utf-8", "backslashreplace")))
    elif hasattr(target, "buffer"):
        target.buffer.write(data)
    else:
        target.write(data.decode("utf-8", "backslashreplace"))
    target.flush()


def _shown(execution: Execution) -> dict[str, Any]:
    """Output as text, where bytes that are no UTF-8 are spelled as `\\xff`."""
    shown = execution.model_dump(exclude={"compile", "files"})
    for name in ("stdout", "stderr"):
        shown[name] = shown[name].decode("utf-8", "backslashreplace")
    return {**shown, "compile": _shown(execution.compile) if execution.compile is not None else None}


def _serve(args: argparse.Namespace) -> int:
    """Serve the sandbox over HTTP until told to stop: /v1/run, sessions, SandboxFusion's /run_code and /submit, and
    /docs. Clients send the token as `Authorization: Bearer TOKEN`, or as the first segment of the path."""
    import logging

    from rewards.fusion import submit_on
    from sandbox.fusion import ping, run_code
    from sandbox.server import make_app
    from sandbox.server_listen import serve

    token = _token(args.token_file) if args.token_file else None  # --no-auth, whatever the environment holds
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    require = tuple(filter(None, args.require.split(",")))
    with _backend(args.backend, image=args.image, slots=args.slots, require=require) as backend:
        backend.guarantees()  # a machine that can't run programs says so now
        slots = args.slots or len(os.sched_getaffinity(0))
        routes = [
            ("POST", "/run_code", run_code),
            ("POST", "/submit", submit_on(backend)),
            ("GET", "/v1/ping", ping),
        ]
        serve(
            make_app(backend, slots=slots, token=token, queue_size=args.queue, extra_routes=routes),
            args.host,
            args.port,
        )
    return 0


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(_TOKEN_VARIABLE) or None
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise ConfigError(f"{file}: others may read this token; `chmod 600 {file}`")
    token = file.read_text(encoding="utf-8", errors="replace").strip()
    if not token:
        raise ConfigError(f"{file}: no token in it; make one with `openssl rand -hex 32 > {file}`")
    return token


def _backend(
    name: str,
    *,
    image: str | None = None,
    token: str | None = None,
    slots: int | None = None,
    require: tuple[str, ...] = (),
) -> Backend:
    if name == "local":
        from sandbox.local import Sandbox

        return Sandbox(slots=slots, require=require)
    if name == "docker":
        from sandbox.docker_backend import DockerSandbox

        return DockerSandbox(image, slots=slots, require=require)
    from sandbox.remote import RemoteSandbox

    return RemoteSandbox(name, token=token)


def _bench(args: argparse.Namespace) -> int:
    """Measure what a job costs here beside the same program unsandboxed, and how many run a second."""
    from sandbox.local import Sandbox
    from sandbox.measure import bare_python, jobs_per_s, local_kinds, measure

    with Sandbox(slots=4) as sandbox:
        figures = measure(
            {"python -I -S, unsandboxed": bare_python(), **local_kinds(sandbox, with_sci=_sci())}, args.jobs
        )
        rates = {n: jobs_per_s(sandbox, n, args.jobs) for n in (1, 2, 4)}
    if args.json:
        say_json({"kinds": {name: figure._asdict() for name, figure in figures.items()}, "jobs_per_s": rates})
        return 0
    rows = [(name, *(f"{value:.2f}" for value in figure)) for name, figure in figures.items()]
    say_table("milliseconds a job", ("kind", "min", "p10", "median", "CPU"), rows)
    for in_flight, rate in rates.items():
        say(f"fast, {in_flight} in flight: {rate:.0f} jobs/s")
    return 0
