"""From a name to an Env class: built in, installed, `package.module:Class`, or a path.

Every failure is one VeriwardError line that says what to do. A file is loaded under a module name
made from its path and content, so a worker process finds the same module, and an edited file is
never mistaken for the one loaded before.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from envs.base import Env
from sandbox.errors import VeriwardError

ENTRY_POINT_GROUP = "veriward.envs"
BUILTIN = {"arithmetic": "envs.arithmetic:Arithmetic", "program": "envs.program:ProgramEnv"}


def env_names() -> list[str]:
    """The names of all built-in and installed envs, sorted; nothing is imported."""
    installed = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    return sorted({*BUILTIN, *installed.names})


def find_env_class(name: str) -> tuple[type[Env], str]:
    """The class that `name` means, and the name under which another process finds it too."""
    if is_path(name):
        path, _, class_name = name.rpartition(":")
        if not path or not class_name.isidentifier():
            path, class_name = name, ""
        place = _existing(path)
        found = _class_in_file(place, class_name)
        return found, f"{place}:{class_name}" if class_name else str(place)
    if ":" in name:
        return _class_at(name, name), name
    if name in BUILTIN:
        return _class_at(BUILTIN[name], name), name
    return _class_at(_installed(name), name), name


def is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.endswith(".py") or ".py:" in name or name in (".", "..")


def _installed(name: str) -> str:
    """The `module:Class` an installed distribution declares for `name`."""
    found = {entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=name)}
    if len(found) > 1:
        raise VeriwardError(f"env {name}: declared by several distributions as {', '.join(sorted(found))}; name one")
    if found:
        return found.pop()
    if Path(name).exists():
        raise VeriwardError(f"env {name} is not installed; for the folder of that name write ./{name}")
    near = difflib.get_close_matches(name, env_names(), n=1)
    hint = f"did you mean {near[0]}" if near else f"is it one of {', '.join(env_names())}"
    raise VeriwardError(f"env {name} is not installed; {hint}? Or give package.module:Class, or a path: ./my_env.py")


def _class_at(target: str, name: str) -> type[Env]:
    module_name, _, class_name = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise VeriwardError(
                f"env {name}: no module {error.name}; install its package, or give the path of its file"
            ) from error
        raise _import_failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error
    try:
        for part in class_name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise VeriwardError(f"env {name}: {error}; name a class that the module defines") from error
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise VeriwardError(f"env {name}: {target} is {found!r:.80}, not a subclass of veriward.Env")
    return found


def _class_in_file(place: Path, class_name: str) -> type[Env]:
    module = _load_file(place)
    inside = [
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, Env)
        and f"{found.__module__}.".startswith(f"{module.__name__}.")
    ]
    by_name = {found.__name__: found for found in inside}
    if class_name:
        if class_name not in by_name:
            raise VeriwardError(f"env {place}: defines no Env called {class_name}; it defines {_listed(by_name)}")
        return by_name[class_name]
    if len(by_name) != 1:
        remedy = "name one, as in file.py:Class" if by_name else "define one subclass of veriward.Env"
        raise VeriwardError(f"env {place}: exactly one Env must be defined there, found {_listed(by_name)}; {remedy}")
    return next(iter(by_name.values()))


def _load_file(place: Path) -> ModuleType:
    file = _main_file(place)
    is_package = file.name == "__init__.py"
    try:
        content = b"\0".join(part.read_bytes() for part in (sorted(file.parent.glob("*.py")) if is_package else [file]))
    except OSError as error:
        raise VeriwardError(f"env {place}: cannot read {file}: {error.strerror}; check the path") from error
    digest = hashlib.blake2b(os.fsencode(file), digest_size=8)
    digest.update(content)
    module_name = f"veriward_env_{digest.hexdigest()}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    folder = [str(file.parent)] if is_package else None
    spec = importlib.util.spec_from_file_location(module_name, file, submodule_search_locations=folder)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # Registered first: dataclasses, pickle and relative imports look their module up by name.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        for loaded in [loaded for loaded in sys.modules if f"{loaded}.".startswith(f"{module_name}.")]:
            del sys.modules[loaded]
        raise _import_failed(str(place), error) from error
    return module


def _existing(path: str) -> Path:
    try:
        place = Path(path).expanduser().resolve()
        exists = place.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user's home, not a file name at all
        raise VeriwardError(f"env {path[:80]!r}: not a possible path ({error}); check it") from error
    if not exists:
        raise VeriwardError(f"env {place}: no such file or folder; check the path")
    return place


def _main_file(place: Path) -> Path:
    """The file itself; of a folder its `__init__.py` (then a package), else `env.py`, else its only .py file."""
    if not place.is_dir():
        if place.suffix != ".py":
            raise VeriwardError(f"env {place}: not a .py file or a folder; check the path")
        return place
    for candidate in (place / "__init__.py", place / "env.py"):
        if candidate.is_file():
            return candidate
    files = sorted(place.glob("*.py"))
    if len(files) != 1:
        raise VeriwardError(f"env {place}: {len(files)} .py files and no __init__.py or env.py; name the file to load")
    return files[0]


def _import_failed(name: str, error: BaseException) -> VeriwardError:
    return VeriwardError(f"env {name}: importing it raised {described(error)}; correct it and try again")


def described(error: BaseException) -> str:
    """An author's exception in one line: its type, message and the innermost place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}:{error.lineno})"
        return f"{type(error).__name__}: {error.msg}{place}"
    return " ".join(f"{type(error).__name__}: {error}{place}".split())


def _listed(found: dict[str, type[Env]]) -> str:
    return ", ".join(sorted(found)) or "none"
