"""Configs: what is accepted, what is refused, and that a refusal says what would be right."""

from __future__ import annotations

import pytest

from sandbox.errors import ConfigError
from trainer.config import load_config, preset_names


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_survives_a_round_trip_through_its_own_toml(name, tmp_path):
    config = load_config(name)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert load_config(str(path)) == config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("steps=0", ["steps = 0", "greater than or equal to 1"]),
        ("optimizer.lr=fast", ["optimizer.lr = 'fast'", "valid number"]),
        ("optimizer.learning_rate=1e-4", ["optimizer.learning_rate", "unknown key", "lr"]),
        ("polcy.model=base", ["polcy", "unknown key", "policy"]),
        ("groups.group_size=1", ["groups.group_size = 1", "set 2 or more"]),
        ("evaluation.k=[1, 64]", ["pass@64", "evaluation.samples = 8"]),
        ("policy.temperature=0", ["policy.temperature = 0", "greater than 0"]),
        ("steps=2.5", ["steps = 2.5", "integer"]),
        ("name=../evil", ["name = '../evil'"]),
        ('optimizer.lr="1e-3"', ["optimizer.lr = '1e-3'", "valid number"]),
        ("optimizer.lr=inf", ["optimizer.lr = inf", "finite"]),
        ("optimizer.betas=[0.9]", ["optimizer.betas"]),
        ("optimizer=3", ["optimizer = 3", "a table; set its keys, e.g. optimizer.lr=..."]),
        ("stesp=3", ["stesp = 3", "did you mean steps?"]),
        ("algorithm.aggregation=fixed_length", ["algorithm: fixed_length_tokens = None", "set it exactly when"]),
        ("seed=1\nsteps=4", ["seed = '1"]),
    ],
)
def test_a_refusal_names_the_key_the_value_and_what_would_be_right(override, words):
    with pytest.raises(ConfigError) as refused:
        load_config("arithmetic", [override])
    message = str(refused.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_an_override_is_read_as_toml_and_else_as_text():
    config = load_config("arithmetic", ["optimizer.lr=1e-5", "policy.model=./some/dir", "env.options.seed=3"])
    assert config.optimizer.lr == 1e-5
    assert config.policy.model == "./some/dir"
    assert config.env.options == {"seed": 3}


def test_an_override_without_a_value_or_into_a_value_is_refused():
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        load_config("arithmetic", ["steps"])
    with pytest.raises(ConfigError, match="steps is a value"):
        load_config("arithmetic", ["steps.more=1"])


def test_a_missing_file_names_the_presets(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file; presets are arithmetic"):
        load_config(str(tmp_path / "absent.toml"))


@pytest.mark.parametrize("content", [b"steps = ", b"\xff\xfe", b"[env\nname=1"])
def test_a_broken_file_is_one_line(content, tmp_path):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not valid TOML") as refused:
        load_config(str(path))
    assert "\n" not in str(refused.value)


def test_an_environment_alone_is_a_config():
    config = load_config("./my_env.py")
    assert (config.name, config.env.name) == ("my_env", "./my_env.py")
    assert load_config("package.module:MyEnv").name == "MyEnv"
    assert load_config("./über env.py").name == "ber-env"


def test_a_reward_by_which_a_wrong_reply_can_earn_as_much_as_a_right_one_is_refused():
    with pytest.raises(ConfigError, match="rewards"):
        load_config("arithmetic", ["rewards.correct=0.5", "rewards.wrong=0.5"])
