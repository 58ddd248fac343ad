"""What a run is made of: one TOML file, checked before anything starts.

Every key has a type, a range and a docstring; an unknown key, a wrong type or an impossible
value is refused with the key, the value and what would be right. Imports no torch, so that a
config can be checked anywhere.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rewards.composition import RewardTerms
from sandbox.errors import ConfigError
from trainer.algorithm import AlgorithmSettings, OptimizerSettings

PRESETS = Path(__file__).parent / "presets"
PositiveInt = Annotated[int, Field(ge=1)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class EnvSettings(_Settings):
    """Which environment asks, and with which options."""

    name: str
    """An installed env, `package.module:Class`, or a path to a folder or .py file."""
    options: dict[str, Any] = {}
    """Keywords of the env's constructor."""


class PolicySettings(_Settings):
    """What generates, and how it samples while training."""

    model: str = "base"
    """A causal-LM directory with a chat template, or the name of an embedded model."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Sampling temperature; the log-prob trained is the log-prob sampled from."""
    max_tokens: PositiveInt = 64
    """Longest completion; what reaches it without a stop token is truncated."""
    max_batch_rows: PositiveInt = 512
    """Rows decoded together at most."""


class GroupSettings(_Settings):
    """How rollouts are grouped and which groups are trained."""

    tasks_per_step: PositiveInt = 16
    """Groups trained in one step."""
    group_size: PositiveInt = 8
    """Rollouts of one task, sampled together."""
    dynamic_sampling: bool = True
    """Replace groups whose outcomes are all right or all wrong (DAPO), within `max_rounds`."""
    max_rounds: PositiveInt = 3
    """Sampling rounds a step may take to find groups with a signal."""
    max_steps_without_signal: PositiveInt = 5
    """Consecutive steps in which no group gives any signal before the run ends with an error."""


class EvaluationSettings(_Settings):
    """Held-out evaluation: `dev` while training, `test` before and after."""

    every_steps: PositiveInt = 20
    """Steps between evaluations on dev."""
    dev_tasks: PositiveInt = 64
    """Dev tasks looked at while training."""
    test_tasks: PositiveInt = 256
    """Test tasks of the before and after figures."""
    samples: PositiveInt = 8
    """Samples a task, at temperature 1."""
    k: list[PositiveInt] = [1, 8]
    """The k of pass@k; each at most `samples`."""


class CheckpointSettings(_Settings):
    """How often a run is made resumable."""

    every_steps: PositiveInt = 10
    """Steps between checkpoints; the last step is always one."""
    keep_last: PositiveInt = 2
    """Checkpoints kept."""


class RunConfig(_Settings):
    """One training run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the default run folder, runs/<name>-<time>."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Names every random draw of the run."""
    steps: PositiveInt = 60
    """Training steps."""
    env: EnvSettings
    policy: PolicySettings = PolicySettings()
    groups: GroupSettings = GroupSettings()
    rewards: RewardTerms = RewardTerms()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()

    @model_validator(mode="after")
    def _refuse_known_bad_combinations(self) -> RunConfig:
        group_size, samples = self.groups.group_size, self.evaluation.samples
        if group_size < 2:
            raise ValueError(
                "groups.group_size = 1: a group baseline needs at least 2 rollouts of a task; set 2 or more"
            )
        for k in self.evaluation.k:
            if k > samples:
                raise ValueError(
                    f"evaluation.k = {k}: pass@{k} is undefined for evaluation.samples = {samples}; "
                    "lower k or raise samples"
                )
        if 1 not in self.evaluation.k:
            raise ValueError(f"evaluation.k = {self.evaluation.k}: must contain 1, the summary's pass@1")
        cache = self.rewards.overlong_cache_tokens
        if self.rewards.overlong_weight and cache > self.policy.max_tokens:
            raise ValueError(
                f"rewards.overlong_cache_tokens = {cache}: must be at most policy.max_tokens = {self.policy.max_tokens}"
            )
        return self

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_config(source: str | Path | RunConfig, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of a TOML file, a preset's name, or an environment (then all else is default); or a config itself.

    overrides: `section.key=value`, the value as TOML, or bare text. Raises ConfigError.
    """
    if isinstance(source, RunConfig):
        data, source = source.model_dump(), "config"
    elif (PRESETS / f"{source}.toml").is_file():
        data = _read_toml(PRESETS / f"{source}.toml")
    elif (source := str(source)).endswith(".toml"):
        data = _read_toml(Path(source))
    else:
        data = {"name": _slug(source), "env": {"name": source}}
    for override in overrides:
        _override(data, override)
    return config_from(data, str(source))


def config_from(data: dict[str, Any], source: str) -> RunConfig:
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(_explain(entry) for entry in error.errors())}") from None


def _slug(source: str) -> str:
    stem = Path(source).stem if "/" in source or source.endswith(".py") else source.rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip("._-") or "run"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; presets are {', '.join(preset_names())}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: write it as section.key=value, for example optimizer.lr=1e-4")
    *sections, leaf = key.strip().split(".")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise ConfigError(f"--set {override}: {section} is a value, not a section")
    data[leaf] = toml_value(text.strip())


def toml_value(text: str) -> Any:
    """What one TOML value says; what is none is text."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text


def _explain(entry: Any) -> str:
    key = ".".join(str(part) for part in entry["loc"])
    message = entry["msg"].removeprefix("Value error, ")
    if entry["type"] == "extra_forbidden":
        known = _known_keys(entry["loc"][:-1])
        near = difflib.get_close_matches(str(entry["loc"][-1]), known, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"{key} = {entry['input']!r}: unknown key; {hint}known here: {', '.join(known)}"
    if entry["type"] in ("model_type", "model_attributes_type") and key:
        return f"{key} = {entry['input']!r}: a table; set its keys, e.g. {key}.{_known_keys(entry['loc'])[0]}=..."
    if entry["type"] == "missing":
        return f"{key} is missing; set it"
    if entry["type"] == "value_error":  # ours: it names the key within this table, and its value
        return f"{key}: {message}" if key else message
    return f"{key} = {entry['input']!r}: {message[:1].lower()}{message[1:]}"


def _known_keys(location: Sequence[Any]) -> list[str]:
    model: Any = RunConfig
    for part in location:
        model = model.model_fields[part].annotation
    return list(model.model_fields)
