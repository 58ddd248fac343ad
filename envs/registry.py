"""`load_env` makes an env from a name and options; `list_envs` says what there is.

Options are the typed keywords of the env's `__init__`, checked before it is called. The env
remembers the spec it was loaded from, which is what records keep and workers load again.
"""

from __future__ import annotations

import difflib
import inspect
import json
import typing
from collections.abc import Iterable, Mapping, Sized
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from envs.base import SPLITS, Env, EnvSpec
from envs.loading import described, env_names, find_env_class
from sandbox.errors import ConfigError, VeriwardError

__all__ = ["EnvRow", "env_names", "list_envs", "load_env"]


def load_env(name: str, /, **options: Any) -> Env:
    """The env that `name` means, made with `options`.

    name  a built-in or installed env (entry-point group `veriward.envs`), `package.module:Class`,
          or the path of a .py file or folder that defines exactly one Env.

    Raises ConfigError for an unknown or wrongly typed option, VeriwardError for anything else that
    keeps the env from being made.
    """
    env_class, lasting_name = find_env_class(name)
    _check_class(env_class, name)
    checked = _checked_options(env_class, name, options)
    try:
        env = env_class(**checked)
    except VeriwardError:
        raise
    except (Exception, SystemExit) as error:
        raise VeriwardError(f"env {name}: its __init__ raised {described(error)}; check its options") from error
    env.spec = EnvSpec(lasting_name, options)
    return env


@dataclass(frozen=True)
class EnvRow:
    """One line of the list: sizes by split, or the error that keeps the env from being used."""

    name: str
    version: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_envs() -> list[EnvRow]:
    """Every built-in and installed env, with its default options; a broken one is a row with its error."""
    return [_row(name) for name in env_names()]


def _row(name: str) -> EnvRow:
    try:
        env = load_env(name)
        return EnvRow(name, env.version, {split: _size(env.tasks(split)) for split in SPLITS})
    except VeriwardError as error:
        return EnvRow(name, error=str(error))
    except (Exception, SystemExit) as error:
        return EnvRow(name, error=f"env {name}: its tasks raised {described(error)}")


def _size(tasks: Iterable[Any]) -> int:
    return len(tasks) if isinstance(tasks, Sized) else sum(1 for _ in tasks)


def _check_class(env_class: type[Env], name: str) -> None:
    version = getattr(env_class, "version", None)
    if version is not None and not isinstance(version, str):
        raise VeriwardError(
            f"env {name}: class {env_class.__name__} has version = {version!r:.40}, which must be text; "
            f'write version = "{version!s:.40}"'
        )
    if not version:
        raise VeriwardError(f'env {name}: class {env_class.__name__} has no version; add version = "1" to it')
    for method in ("tasks", "verify"):
        if getattr(env_class, method) is getattr(Env, method):
            raise VeriwardError(f"env {name}: class {env_class.__name__} does not define {method}; define it")


def _checked_options(env_class: type[Env], name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as `__init__` wants them: checked in pydantic's strict mode through JSON, as they
    come from TOML, so that a list may be a tuple and a string a Path, but never "3" an int."""
    parameters, takes_any = _parameters(env_class)
    for key in options:
        if key not in parameters and not takes_any:
            near = difflib.get_close_matches(key, parameters, n=1)
            hint = f"did you mean {near[0]}? Its" if near else "its"
            listed = ", ".join(map(_option_text, parameters.values())) or "none"
            raise ConfigError(f"env {name}: option {key} = {options[key]!r} is unknown; {hint} options: {listed}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigError(f"env {name}: option {key} is required; give {_option_text(parameter)}")
    try:
        hints = typing.get_type_hints(env_class.__init__, include_extras=True) if options else {}
    except NameError as error:
        raise VeriwardError(
            f"env {name}: an option's type is unknown at run time ({error}); import it there"
        ) from error
    except (SyntaxError, TypeError) as error:
        raise VeriwardError(f"env {name}: an option's type is no type ({error}); correct it") from error
    return {
        key: _checked_option(name, key, value, hints.get(key, Any), parameters.get(key))
        for key, value in options.items()
    }


def _option_text(parameter: inspect.Parameter) -> str:
    """`words: tuple[str, ...] = ["a", "b"]`: the type as the author wrote it, the default as a config would."""
    annotation = parameter.annotation
    kind = "" if annotation is parameter.empty else f": {_type_text(annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_value_text(parameter.default)}"
    return f"{parameter.name}{kind}{default}"


def _type_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _value_text(value: Any) -> str:
    try:
        return json.dumps(value, default=str, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)


def _checked_option(name: str, key: str, value: Any, wanted: Any, parameter: inspect.Parameter | None) -> Any:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env {name}: option {key} = {value!r:.80} is no plain JSON value ({error})") from error
    try:
        adapter = TypeAdapter(wanted)
    except PydanticUserError as error:
        wish = inspect.formatannotation(wanted)
        raise VeriwardError(
            f"env {name}: option {key} has a type no JSON value can have, {wish}; use a plain one"
        ) from error
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        wish = inspect.formatannotation(wanted)
        if parameter and isinstance(parameter.default, (tuple, list)):
            wish += f", written like {_value_text(parameter.default)}"
        said = error.errors()[0]["msg"]
        raise ConfigError(
            f"env {name}: option {key} = {value!r:.80}: {said[:1].lower()}{said[1:]}; give {wish}"
        ) from error


def _parameters(env_class: type[Env]) -> tuple[dict[str, inspect.Parameter], bool]:
    if env_class.__init__ is object.__init__:
        return {}, False
    parameters = list(inspect.signature(env_class.__init__).parameters.values())[1:]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter for parameter in parameters if parameter.kind in named}, takes_any
