"""Load a causal language model from a folder, and render chat messages to its tokens.

Any transformers causal-LM directory with a chat template works; nothing is fetched from elsewhere.
Every way the folder can be wrong is one readable error before any work starts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity, set_verbosity_error

from envs.data import data_root
from sandbox.errors import ConfigError, VeriwardError

_PROBE = "veriward"
# A folder's own code is never run, nor asked about: transformers would else wait for an answer on stdin.
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to sample from or to train. `stop_ids`: any of these ends a reply."""

    path: Path
    model: Any
    tokenizer: Any
    stop_ids: tuple[int, ...]
    device: torch.device


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first accelerator, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f'device = "{name}" is no torch device; use "auto", "cpu" or "cuda"') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f'device = "{name}": this torch sees no GPU; use "auto" or "cpu"')
    return device


def resolve_model(name: str) -> Path:
    """A model folder by its path, or an embedded model by its name. Raises VeriwardError for neither."""
    embedded = data_root("models") / name
    for path in (Path(name), embedded):
        if (path / "config.json").is_file():
            return path
    if (Path(name) / "config.toml").is_file():
        raise VeriwardError(
            f"{name}: a run folder, not a model; `veriward export model {shlex.quote(name)} PATH` takes its model out"
        )
    known = ", ".join(sorted(path.name for path in data_root("models").iterdir() if path.is_dir()))
    raise VeriwardError(
        f"no model at {name}: give a folder with config.json, weights and tokenizer, or one of: {known}"
    )


def load_model(path: str | Path, device: str = "auto", dtype: torch.dtype = torch.float32) -> LoadedModel:
    """The model, tokenizer and stop tokens of a local folder, in eval mode, weights in `dtype`.

    Raises VeriwardError when the folder is missing, holds no causal LM, lacks weights, or its
    tokenizer has no chat template.
    """
    path = Path(path)
    if not (path / "config.json").is_file():
        raise VeriwardError(f"no model at {path}: give a folder with config.json, weights and tokenizer")
    _check_is_causal_lm(path)
    tokenizer = load_tokenizer(path)
    target = pick_device(device)
    disable_progress_bar()  # a bar for every weight file drowns the run's own
    with _readable(f"the weights at {path} cannot be loaded"):
        model, info = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **_LOCAL
        )
    if info["mismatched_keys"]:
        names = ", ".join(sorted(name for name, *_ in info["mismatched_keys"])[:3])
        raise VeriwardError(f"the weights at {path} have other shapes than its config.json says ({names}, ...)")
    if info["missing_keys"]:
        names = ", ".join(sorted(info["missing_keys"])[:3])
        raise VeriwardError(
            f"the model at {path} lacks weights ({names}, ...): the file is of another model or cut off"
        )
    model.to(target).eval()
    return LoadedModel(path, model, tokenizer, stop_ids(model, tokenizer), target)


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer of a model folder. Raises VeriwardError when there is none or it has no chat template."""
    with _readable(f"no tokenizer at {path}"):
        tokenizer = AutoTokenizer.from_pretrained(path, **_LOCAL)
    if not tokenizer.chat_template:
        raise VeriwardError(f"the tokenizer at {path} has no chat template; add chat_template.jinja beside it")
    return tokenizer


def render_prompt(tokenizer: Any, messages: Sequence[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation, up to and including the header of the reply to come.

    Raises VeriwardError when the chat template refuses the messages or makes nothing of them.
    """
    ids = _templated(tokenizer, messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    if not ids:
        raise VeriwardError("the model's chat template renders a conversation to nothing; mend chat_template.jinja")
    return [int(token) for token in ids]


def _templated(tokenizer: Any, messages: Sequence[dict[str, Any]], **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(list(messages), **options)
    except TemplateError as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise VeriwardError(
            f"the model's chat template fails on a conversation of {roles}: {_one_line(error)}"
        ) from error


def stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a reply, sorted: those of the generation config, the model config and the
    tokenizer, and the one the chat template puts after a reply. Honouring only one of them makes
    finished replies run to the length limit (huggingface/trl#7039)."""
    found: set[int] = set()
    configs = (getattr(model, "generation_config", None), model.config)
    for ids in (*(getattr(config, "eos_token_id", None) for config in configs), tokenizer.eos_token_id):
        found.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    end_of_turn = _end_of_turn_id(tokenizer)
    if end_of_turn is not None:
        found.add(end_of_turn)
    return tuple(sorted(found))


def _end_of_turn_id(tokenizer: Any) -> int | None:
    """The first special token that the chat template writes after an assistant's words, if any."""
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
    rendered = _templated(tokenizer, turns, tokenize=False)
    tail = rendered[rendered.rindex(_PROBE) + len(_PROBE) :] if _PROBE in rendered else ""
    special = set(tokenizer.all_special_ids) | {
        token for token, added in tokenizer.added_tokens_decoder.items() if added.special
    }
    ids = tokenizer(tail, add_special_tokens=False)["input_ids"]
    return next((int(token) for token in ids if token in special), None)


def _check_is_causal_lm(path: Path) -> None:
    with _readable(f"config.json at {path} cannot be read"):
        config = AutoConfig.from_pretrained(path, **_LOCAL)
    known: set[str] = set()
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        known.update([names] if isinstance(names, str) else names)
    architectures = config.architectures or []
    is_causal = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if not is_causal or (architectures and not known.intersection(architectures)):
        named = ", ".join(architectures) or config.model_type
        raise VeriwardError(
            f"the model at {path} ({named}) is not a causal language model; give one that generates text"
        )


@contextmanager
def _readable(failure: str) -> Iterator[None]:
    """Any error of transformers inside is this one line: what a foreign folder makes it raise (KeyError,
    ZeroDivisionError, errors of its own) has no common class. Its tables of a folder's faults are not shown."""
    before = get_verbosity()
    set_verbosity_error()
    try:
        yield
    except Exception as error:
        raise VeriwardError(f"{failure}: {_one_line(error)}") from error
    finally:
        set_verbosity(before)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
