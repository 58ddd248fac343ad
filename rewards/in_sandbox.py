"""What runs inside sandbox jobs: values as tagged JSON, the candidate's caller, the checker's runner.

A job gets this file's text, so it needs the standard library only and may hold no secret: a
candidate can read and patch all of it, which changes nothing outside its own job. Tagged JSON:
every JSON object is a tag `{"~": type, "v": ...}`; null, booleans, strings, ordinary ints, finite
floats and lists are themselves.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 200_000


class NotPlain(ValueError):
    """A value that is not made of plain types, or is too deep or too large."""


def encode(value: Any) -> Any:
    """`value` as tagged JSON; a subclass of a plain type counts as that type. Raises NotPlain."""
    return _encoded(value, MAX_DEPTH, [MAX_NODES])


def decode(tree: Any) -> Any:
    """The value of a tagged JSON tree. Raises NotPlain for a tree that `encode` never makes."""
    if isinstance(tree, list):
        return [decode(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind, content = tree.get("~"), tree.get("v")
    try:
        if kind == "dict":
            return {decode(key): decode(value) for key, value in content}  # type: ignore[union-attr]
        if kind in ("tuple", "set", "frozenset"):
            return getattr(builtins, kind)(decode(item) for item in content)  # type: ignore[union-attr]
        if kind == "int":
            return int(content, 16)  # type: ignore[arg-type]
        if kind == "float":
            return float(content)  # type: ignore[arg-type]
        if kind == "complex":
            return complex(*(decode(part) for part in content))  # type: ignore[union-attr]
        if kind == "bytes":
            return bytes.fromhex(content)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise NotPlain(f"not a tagged value: {error}") from None
    raise NotPlain(f"unknown tag {kind!r}")


def _encoded(value: Any, depth: int, nodes: list[int]) -> Any:
    nodes[0] -= 1
    if depth < 0 or nodes[0] < 0:
        raise NotPlain(f"a value deeper than {MAX_DEPTH} or of more than {MAX_NODES} parts")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value) if int.bit_length(value) < 1024 else {"~": "int", "v": hex(value)}
    if isinstance(value, float):
        number = float.__float__(value)
        return number if number - number == 0 else {"~": "float", "v": float.__repr__(number)}
    if isinstance(value, complex):
        return {"~": "complex", "v": [_encoded(part, depth - 1, nodes) for part in (value.real, value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        nodes[0] -= len(value) // 8
        return {"~": "bytes", "v": bytes(value).hex()}
    if isinstance(value, list):
        return [_encoded(item, depth - 1, nodes) for item in value]
    for plain in (tuple, set, frozenset):
        if isinstance(value, plain):
            return {"~": plain.__name__, "v": [_encoded(item, depth - 1, nodes) for item in value]}
    if isinstance(value, dict):
        pairs = ([_encoded(part, depth - 1, nodes) for part in pair] for pair in dict.items(value))
        return {"~": "dict", "v": list(pairs)}
    raise NotPlain(f"a value of type {type(value).__name__}")


def serve_candidate() -> None:
    """Load the program named by the first line, then answer one call per line.

    Lines in: `{"code"}`, then `{"id", "function", "args", "kwargs"}`. Lines out: `{"loaded": true}`
    or `{"raised"}`, then `{"id"}` with one of `value`, `raised` (type, text), `not_plain` (and `is_true`).
    """
    lines, answers = _private_channel()
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        exec(compile(json.loads(next(lines))["code"], "solution.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        _send(answers, {"raised": [type(error).__name__, _text(error)]})
        return
    _send(answers, {"loaded": True})
    for line in lines:
        call = json.loads(line)
        try:
            function = _function(module, call["function"])
            args, kwargs = decode(call["args"]), decode(call["kwargs"])
            answer = _answer(function(*args, **kwargs))
        except BaseException as error:
            answer = {"raised": [type(error).__name__, _text(error)]}
        _send(answers, {"id": call["id"], **answer})


def _answer(value: Any) -> dict[str, Any]:
    try:
        return {"value": encode(value)}
    except NotPlain as error:
        return {"not_plain": str(error), "is_true": bool(value)}


class NotPlainValue:
    """Stands in the checker for a value that cannot cross (a `re.Match`): true or false, equal to nothing.
    A candidate gains nothing by it, since it could have returned True or False."""

    def __init__(self, is_true: bool) -> None:
        self._is_true = is_true

    def __bool__(self) -> bool:
        return self._is_true


def serve_checker() -> None:
    """Run a test suite against proxies whose calls the parent relays to the candidate's own job.

    Line in: `{"nonce", "setup", "tests", "names", "candidate"}`. Lines out: `{"ready": true}` once
    the setup ran, `{"function", "args", "kwargs"}` for each call (answered by one line in), and
    last `{"passed": nonce}` or `{"failed": [type, text]}`.
    """
    lines, answers = _private_channel()
    job = json.loads(next(lines))

    def proxy(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            _send(answers, {"function": name, "args": encode(args), "kwargs": encode(kwargs)})
            answer = json.loads(next(lines))
            if "value" in answer:
                return decode(answer["value"])
            if "raised" in answer:
                raise _exception(*answer["raised"])
            return NotPlainValue(answer.get("is_true") is True)

        return call

    space: dict[str, Any] = {"__name__": "checker"}
    try:
        exec(compile(job["setup"], "setup.py", "exec", dont_inherit=True, optimize=0), space)
    except BaseException as error:
        _send(answers, {"setup_raised": [type(error).__name__, _text(error)]})
        return
    space.update({name: proxy(name) for name in job["names"]})
    _send(answers, {"ready": True})
    try:
        exec(compile(job["tests"], "tests.py", "exec", dont_inherit=True, optimize=0), space)
        if job["candidate"]:
            space["check"](space[job["candidate"]])
    except BaseException as error:
        _send(answers, {"failed": [type(error).__name__, _text(error)]})
        return
    _send(answers, {"passed": job["nonce"]})


def serve_judge() -> None:
    """Run a checker program `check(input, output, reference) -> bool` on each line's three values."""
    lines, answers = _private_channel()
    space: dict[str, Any] = {"__name__": "checker"}
    exec(compile(json.loads(next(lines))["code"], "checker.py", "exec", dont_inherit=True, optimize=0), space)
    _send(answers, {"ready": True})
    for line in lines:
        try:
            answer = {"accepts": bool(space["check"](*decode(json.loads(line)["args"])))}
        except Exception as error:
            answer = {"raised": [type(error).__name__, _text(error)]}  # type: ignore[dict-item]
        _send(answers, answer)


def _private_channel() -> tuple[Any, Any]:
    """Standard input and output moved away, so that neither prints nor reads of the program touch them."""
    lines, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    return iter(os.fdopen(lines, "rb").readline, b""), os.fdopen(answers, "wb")


def _send(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _function(module: types.ModuleType, name: str) -> Any:
    """A function of the program, or a method of its `Solution` class (LeetCode's form)."""
    if not hasattr(module, name) and hasattr(module, "Solution"):
        return getattr(module.Solution(), name)
    return getattr(module, name)


def _exception(kind: str, text: str) -> BaseException:
    known = getattr(builtins, kind, None)
    # A StopIteration would end the test's own loop over `map(candidate, inputs)` with nothing asserted.
    ends_loops = known in (StopIteration, StopAsyncIteration)
    if isinstance(known, type) and issubclass(known, Exception) and not ends_loops:
        try:
            return known(text)
        except TypeError:  # UnicodeDecodeError and its like want more than a text
            return RuntimeError(f"{kind}: {text}")
    return RuntimeError(f"{kind}: {text}")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:
        return "an exception that cannot be printed"
