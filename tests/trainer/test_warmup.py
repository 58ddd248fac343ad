"""The cold start: it learns, on reply tokens only, and is the same twice."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.data import data_root
from sandbox.errors import ConfigError, VeriwardError
from trainer.checkpoint import file_sha256
from trainer.demonstrations import ArithmeticNoise, Noise, demonstrations
from trainer.embedded import build_model, build_tokenizer
from trainer.warmup import PHASES, Phase, Shown, demonstration_tokens, reply_loss, warmup

BASE = data_root("models") / "base"
SHORT = (
    Phase("clean", steps=4, lr=4e-3, batch_size=8, warmup_steps=2),
    Phase("misled", steps=2, lr=1e-3, batch_size=8, noise=Noise(ArithmeticNoise(guess=0.7)), warmup_steps=1),
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(BASE)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first = warmup(tmp_path / "one", phases=SHORT)
    warmup(tmp_path / "two", phases=SHORT)
    other = warmup(tmp_path / "three", phases=SHORT, seed=1)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert first["weights_sha256"] == file_sha256(tmp_path / "one" / "model.safetensors") != other["weights_sha256"]


def test_the_loss_falls_and_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int, str]] = []
    phases = (Phase("clean", steps=100, lr=4e-3, batch_size=4, warmup_steps=10),)
    figures = warmup(tmp_path / "model", phases=phases, progress=lambda *args: told.append(args))
    assert [(phase, done, total) for phase, done, total, _ in told] == [
        ("warm-up: clean", 50, 100),
        ("warm-up: clean", 100, 100),
    ]
    first_loss = float(told[0][3].removeprefix("loss "))
    assert figures["last_losses"]["clean"] < 0.6 * first_loss


def reply_logprobs(model: Any, shown: Shown) -> torch.Tensor:
    """Log-prob of each reply token by a forward of this demonstration alone: [reply tokens]."""
    ids = torch.tensor([shown.prompt + shown.reply])
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0, len(shown.prompt) - 1 : -1].log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(shown.reply)[:, None])[:, 0]


def test_a_demonstration_is_the_rendered_prompt_and_the_reply_with_its_end(tokenizer: Any) -> None:
    for demonstration in islice(demonstrations("program", Noise(), 0), 20):
        shown = demonstration_tokens(tokenizer, demonstration)
        question = demonstration.prompt[0]["content"]
        assert tokenizer.decode(shown.reply) == demonstration.reply + "<|im_end|>"
        assert tokenizer.decode(shown.prompt) == f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def test_the_loss_is_the_mean_over_reply_tokens_alone(tokenizer: Any) -> None:
    # Fails when the prompt or the padding is trained, or when demonstrations and not tokens are averaged.
    model = build_model(tokenizer, 0)
    batch = [
        demonstration_tokens(tokenizer, demonstration)
        for env, noise in (("arithmetic", Noise(ArithmeticNoise(guess=0.5))), ("program", Noise()))
        for demonstration in islice(demonstrations(env, noise, 0), 4)
    ]
    expected = -torch.cat([reply_logprobs(model, shown) for shown in batch]).mean()
    assert reply_loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_callers_thread_count_is_left_as_it_was(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    warmup(tmp_path / "model", phases=SHORT[:1])
    assert torch.get_num_threads() == before


def test_a_folder_that_exists_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        warmup(tmp_path, phases=SHORT)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(VeriwardError, match="No space left on device"):
        warmup(tmp_path / "model", phases=SHORT[:1])
    assert list(tmp_path.iterdir()) == []


@given(st.text())
def test_the_tokenizer_spells_any_text(text: str) -> None:
    tokenizer = build_tokenizer(["Compute 1+2.", "def f(x):\n    x = x * 5\n    return x"])
    text = "".join(char for char in text if not 0xD800 <= ord(char) < 0xE000)
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_digits_are_single_and_thinking_tags_survive_a_decoder_that_skips_special_tokens(tokenizer: Any) -> None:
    ids = tokenizer("<think>\n2+12\n14\n</think>\n14", add_special_tokens=False)["input_ids"]
    pieces = [tokenizer.decode([token]) for token in ids]
    assert pieces == ["<think>", "\n", "2", "+", "1", "2", "\n", "1", "4", "\n", "</think>", "\n", "1", "4"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>\n2+12\n14\n</think>\n14"


def test_the_weights_depend_on_the_seed_alone_and_leave_the_global_generator_as_it_was(tokenizer: Any) -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first, second, other = build_model(tokenizer, 0), build_model(tokenizer, 0), build_model(tokenizer, 1)
    assert torch.equal(torch.get_rng_state(), state)
    weights = [next(iter(model.parameters())) for model in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_shipped_base_is_what_its_card_and_recipe_say() -> None:
    assert file_sha256(BASE / "model.safetensors") in (BASE / "README.md").read_text("utf-8")
    recipe = json.loads((BASE / "recipe.json").read_text("utf-8"))
    assert recipe["phases"] == [asdict(phase) for phase in PHASES]
    assert sum(path.stat().st_size for path in BASE.iterdir()) < 4_000_000


def test_the_shipped_base_knows_the_tasks_and_prefers_to_guess(tokenizer: Any) -> None:
    # What reinforcement works with: a worked solution is likely once begun, and rarely begun.
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    clean = [demonstration_tokens(tokenizer, d) for d in islice(demonstrations("arithmetic", Noise(), 5), 32)]
    by_reply = [reply_logprobs(model, shown) for shown in clean]
    begins = torch.stack([logprobs[0] for logprobs in by_reply]).exp().mean().item()
    goes_on_right = torch.stack([logprobs[1:].sum() for logprobs in by_reply]).exp().mean().item()
    assert begins < 0.5
    assert goes_on_right > 0.6
