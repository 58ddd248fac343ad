"""The embedded model before it has learnt anything: its tokenizer and its random weights.

Small enough to ship and to train on one core, and an ordinary causal-LM directory once saved:
AutoTokenizer and AutoModelForCausalLM load it, and any code that applies a chat template can use it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

END_OF_TEXT, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MAX_POSITION = 512
VOCABULARY = 384  # at most; the merges run out before

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

# Pieces that no merge crosses. Digits and signs stay single, so that a number is spelt one way
# wherever it stands; the fixed parts of a function are whole, which keeps replies short.
_PIECES = r"def f\(x\):|    x = |    return x| [+\-*%] | ?[A-Za-z_]+|[0-9]|[^A-Za-z0-9_]"


def build_tokenizer(texts: Iterable[str]) -> Any:
    """A byte-level BPE tokenizer with few merges, learnt from `texts`, and a ChatML template.

    Any text can be spelt. `<think>` and `</think>` are single tokens but not special ones: decoders
    that skip special tokens would drop them, and with them the answer's place (seen with trl 1.16).
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    learner = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT, START_OF_TURN, END_OF_TURN],
        show_progress=False,
    )
    bpe.train_from_iterator(texts, learner)
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_POSITION,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Any, seed: int) -> Any:
    """A Qwen3 model of 0.83 million parameters with random weights.

    initializer_range is 0.06: with transformers' 0.02 a model this narrow takes twice the steps.
    """
    end_of_turn, end_of_text = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        tie_word_embeddings=True,
        initializer_range=0.06,
        max_position_embeddings=MAX_POSITION,
        bos_token_id=None,
        eos_token_id=end_of_turn,
        pad_token_id=end_of_text,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[end_of_turn, end_of_text], pad_token_id=end_of_text, max_new_tokens=128
    )
    return model


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write both to a folder that also transformers 4, and so other engines, can load."""
    disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    # transformers 5 names its own base class, which transformers 4 does not know.
    settings = json.loads(path.read_text("utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
