"""Tiny random models that the trainer's tests share: real architectures, a real tokenizer, a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

KINDS = ("llama", "qwen2", "qwen3", "gpt2")
VOCABULARY = 260
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Any:
    """One token a byte, then <|pad|>, <|end|>, <|im_start|>, <|im_end|> as 256..259; the named EOS is <|end|>,
    so the token that ends a turn is known from the chat template only."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|pad|>", "<|end|>", "<|im_start|>", "<|im_end|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = _TEMPLATE
    return fast


def tiny_model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A random model whose norms and biases are random too, so that none of them can be forgotten unseen."""
    torch.manual_seed(seed)
    sizes = dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=257,
    )
    model: Any
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=16, tie_word_embeddings=True))
    else:
        config = GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3,
            bos_token_id=None, eos_token_id=257, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        )  # fmt: skip
        model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "ln_" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.to(dtype).eval()


def save_tiny(kind: str, folder: Path, seed: int = 0) -> Path:
    tiny_model(kind, seed).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
