"""The verbs around an environment: envs, show, verify, eval."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.errors import ConfigError, VeriwardError
from veriward.output import interval_text, say, say_block, say_json, say_table

if TYPE_CHECKING:
    from envs.base import Env, Split, Task
    from rewards.verdict import Verdict

REPLY_BYTES = 4 << 20
SHOWN_IDS = 3


def add_verbs(verbs: Any) -> None:
    envs = verbs.add_parser("envs", help="list the installed environments", description=_envs.__doc__)
    _add_json(envs)
    envs.set_defaults(verb=_envs)

    show = verbs.add_parser(
        "show", help="a task of an environment, some ids, a golden reply and its verdict", description=_show.__doc__
    )
    add_env(show)
    show.set_defaults(verb=_show)

    verify = verbs.add_parser("verify", help="verify one reply to one task", description=_verify.__doc__)
    add_env(verify)
    verify.add_argument("--task", required=True, metavar="ID")
    verify.add_argument("--reply", required=True, metavar="FILE", help="a UTF-8 text file, or - for stdin")
    verify.set_defaults(verb=_verify)

    evaluate = verbs.add_parser("eval", help="measure a model's pass@k", description=_eval.__doc__)
    add_env(evaluate)
    evaluate.add_argument("--model", required=True, metavar="PATH", help="a causal-LM directory, or an embedded model")
    evaluate.add_argument("-n", "--samples", type=_positive, default=8, help="replies sampled a task (default 8)")
    evaluate.add_argument("-k", type=_positives, metavar="1,8", help="the k of pass@k (default: 1 and -n)")
    evaluate.add_argument("--split", choices=("train", "dev", "test"), default="test")
    evaluate.add_argument("--limit", type=_positive, metavar="N", help="only the first N tasks")
    evaluate.add_argument("--temperature", type=float, default=1.0)
    evaluate.add_argument("--max-tokens", type=_positive, default=64, metavar="N", help="longest reply (default 64)")
    evaluate.add_argument("--seed", type=int, default=0)
    evaluate.add_argument("--out", type=Path, metavar="DIR", help="keep the results and every reply here")
    evaluate.set_defaults(verb=_eval)


def add_env(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("env", metavar="ENV", help="an installed env, package.module:Class, or a path")
    add_env_option(parser)
    _add_json(parser)


def add_env_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--env-option", action="append", default=[], metavar="KEY=VALUE", help="an option of the env")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else")


def _envs(args: argparse.Namespace) -> int:
    """List the installed environments."""
    from envs.registry import list_envs

    rows = list_envs()
    if args.json:
        say_json({"envs": [row.to_json() for row in rows]})
        return 0
    say_table(
        "environments",
        ["name", "version", "train", "dev", "test"],
        [
            [row.name, row.version, *(str(row.sizes.get(split, "")) for split in ("train", "dev", "test"))]
            for row in rows
        ],
    )
    for row in rows:
        if row.error:
            say(row.error)
    return 0


def _show(args: argparse.Namespace) -> int:
    """Show a task of an environment as the policy sees it, a golden reply (one whose verdict is known) with the
    verdict it gets, if there is one, and the first task ids of each split."""
    from envs.splits import check_golden, check_tasks

    env = load(args)
    goldens = check_golden(env)
    firsts = check_tasks(env, at_most=SHOWN_IDS)
    ids = {split: [task.id for task in tasks] for split, tasks in firsts.items()}
    golden = goldens[0] if goldens else None
    task = golden.task if golden else firsts["dev"][0]
    verdict = _judge(env, task, golden.text) if golden else None
    messages = env.messages(task)
    if args.json:
        say_json(
            {"env": env.name, "env_version": env.version, "task": task.to_json(), "messages": messages, "ids": ids}
            | {"reply": golden and golden.text, "expected_status": golden and golden.status}
            | {"verdict": verdict and verdict.to_json()}
        )
        return 0
    say(f"env {env.name} version {env.version}")
    for split, first in ids.items():
        say(f"{split} tasks begin with: {', '.join(first)}")
    say(f"task {task.id} ({task.split})")
    for message in messages:
        say_block(f"{message['role']}:", str(message["content"]))
    if golden and verdict:
        say_block(f"golden reply ({golden.why or 'must be ' + golden.status}):", golden.text)
        _say_verdict(verdict)
    else:
        say("no golden cases; a golden() that yields replies with a known status gives some")
    return 0


def _verify(args: argparse.Namespace) -> int:
    """Verify the reply in a file against a task; the exit code is 1 when the verifier itself failed (unscored)."""
    text = _read_reply(args.reply)
    env = load(args)
    task = _find_task(env, args.task, args.env)
    verdict = _judge(env, task, text)
    if args.json:
        say_json({"env": env.name, "env_version": env.version, "task": task.id, "verdict": verdict.to_json()})
    else:
        _say_verdict(verdict)
    return int(verdict.status == "unscored")


def _eval(args: argparse.Namespace) -> int:
    """Sample replies to an environment's tasks and estimate pass@k without bias, with 95% intervals over tasks; the
    exit code is 1 when no reply could be scored."""
    from trainer.evaluation import evaluate
    from veriward.progress import shown_progress

    with shown_progress() as progress:
        result = evaluate(
            args.env,
            args.model,
            samples=args.samples,
            k=args.k or sorted({1, args.samples}),
            split=args.split,
            limit=args.limit,
            temperature=args.temperature,
            max_tokens=args.max_tokens,
            seed=args.seed,
            env_options=_options(args),
            out=args.out,
            progress=progress,
        )
    data = result.to_json()
    code = int(all(found.tasks == 0 for found in result.estimates().values()))
    if args.json:
        say_json(data)
        return code
    say_table(
        f"{result.env}, {args.split} tasks, {args.samples} samples each, with 95% intervals",
        ["", "value", "tasks"],
        [[name, interval_text(data[name]), str(found.tasks)] for name, found in result.estimates().items()],
    )
    for cause, count in result.unscored.items():
        say(f"unscored: {count} replies ({result.unscored_examples.get(cause, cause)})")
    return code


def load(args: argparse.Namespace) -> Env:
    from envs.registry import load_env

    return load_env(args.env, **_options(args))


def _judge(env: Env, task: Task, text: str) -> Verdict:
    from envs.verification import Verifier, build_reply

    with Verifier(env, workers=1) as verifier:
        return verifier.verdict_sync(task, build_reply(env, text, env.messages(task)))


def _find_task(env: Env, task_id: str, name: str) -> Task:
    """Golden cases and small splits first: a train split may be long. `name` is what the user calls the env."""
    from envs.splits import check_golden, check_tasks

    splits: tuple[Split, ...] = ("dev", "test", "train")
    found = next((golden.task for golden in check_golden(env) if golden.task.id == task_id), None)
    for split in splits:
        found = found or next((task for task in check_tasks(env, [split])[split] if task.id == task_id), None)
        if found:
            return found
    raise VeriwardError(f"env {env.name} has no task {task_id!r}; `veriward show {name}` lists some ids of each split")


def _read_reply(name: str) -> str:
    """A reply of at most 4 MiB of UTF-8."""
    data = sys.stdin.buffer.read(REPLY_BYTES + 1) if name == "-" else _read_bytes(Path(name))
    if len(data) > REPLY_BYTES:
        raise VeriwardError(f"--reply {name}: longer than {REPLY_BYTES >> 20} MiB; that is no reply of a model")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise VeriwardError(
            f"--reply {name}: not UTF-8 text (byte {error.start}); give the reply as plain text"
        ) from None


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(REPLY_BYTES + 1)
    except OSError as error:
        raise VeriwardError(f"--reply {path}: {error.strerror}; give a readable file, or - for stdin") from None


def _say_verdict(verdict: Verdict) -> None:
    say(f"verdict: {verdict.status}, score {'none' if verdict.score is None else f'{verdict.score:g}'}")
    for name, value in verdict.parts.items():
        say(f"  {name}: {value:g}")
    if verdict.detail:
        say_block("detail:", verdict.detail)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The options as TOML says their values; what is no TOML value is text."""
    from trainer.config import toml_value

    return {name: toml_value(value) for name, value in map(option_parts, args.env_option)}


def option_parts(text: str) -> tuple[str, str]:
    """Name and value of `digits=3`, both as written. Raises ConfigError when it is not so written."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier():
        raise ConfigError(f"--env-option {text}: write it as key=value, for example digits=3")
    return name, value


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def _positives(text: str) -> tuple[int, ...]:
    try:
        return tuple(_positive(part) for part in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers of 1 or more, as in 1,8") from None
