"""The Llama family's decoder layer, written for few and large operations.

Llama, Qwen2 and Qwen3 differ only in a bias and a norm. Weights are taken from the transformers
model and rearranged by differentiable operations, so the same layer serves the sampler (fused once
for each published version) and the learner (fused inside each forward, gradients flow to the model).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_FAMILY = {"llama", "qwen2", "qwen3"}
_STATIC_ROPE = {"default", "linear", "llama3", "yarn"}


class Shape(NamedTuple):
    """Sizes of one layer: attention heads, key/value heads, width of a head, norm epsilon."""

    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float


class Layer(NamedTuple):
    """One layer's weights, fused.

    qkv      [(heads + 2 kv_heads) * head_dim, hidden]: the input norm's weight multiplied in, the two
             halves of every q and k head interleaved, so that RoPE is one complex multiplication.
    qk_norm  [heads + kv_heads, head_dim] or None: Qwen3's q and k norms.
    The attention scale is multiplied into q, by `qk_norm` where there is one, else by `qkv`.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    gate_up: Tensor
    down: Tensor


def is_llama_family(model: Any) -> bool:
    """Whether this module computes what the model computes; every other model takes the generic path."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in _FAMILY
        and config.hidden_act == "silu"
        and not getattr(config, "mlp_bias", False)
        and not getattr(config, "attention_dropout", 0)
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and rope.get("rope_type", "default") in _STATIC_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


def shape_of(model: Any) -> Shape:
    attention = model.model.layers[0].self_attn
    config = model.config
    return Shape(config.num_attention_heads, config.num_key_value_heads, attention.head_dim, config.rms_norm_eps)


def fuse_layers(model: Any) -> list[Layer]:
    shape = shape_of(model)
    return [_fuse(layer, shape) for layer in model.model.layers]


def _fuse(layer: Any, shape: Shape) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    scale = attention.scaling
    has_norm = getattr(attention, "q_norm", None) is not None
    q_scale = 1.0 if has_norm else scale
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    qkv = torch.cat([_interleave(q.weight, shape) * q_scale, _interleave(k.weight, shape), v.weight])
    bias = None
    if q.bias is not None:
        bias = torch.cat([_interleave(q.bias, shape) * q_scale, _interleave(k.bias, shape), v.bias])
    qk_norm = None
    if has_norm:
        q_norm = (_interleave(attention.q_norm.weight, shape) * scale).expand(shape.heads, -1)
        qk_norm = torch.cat([q_norm, _interleave(attention.k_norm.weight, shape).expand(shape.kv_heads, -1)])
    return Layer(
        qkv=qkv * layer.input_layernorm.weight,
        qkv_bias=bias,
        qk_norm=qk_norm,
        output=attention.o_proj.weight,
        output_bias=attention.o_proj.bias,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * layer.post_attention_layernorm.weight,
        down=mlp.down_proj.weight,
    )


def _interleave(weight: Tensor, shape: Shape) -> Tensor:
    """Rows (0, 1, ..., d-1) of each head reordered to (0, d/2, 1, d/2+1, ...): RoPE's pairs side by side."""
    halves = weight.view(-1, 2, shape.head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def rotations(model: Any, positions: Tensor) -> Tensor:
    """RoPE's rotations as unit complex numbers, [*positions, 1, head_dim / 2], from the model's own module."""
    probe = model.model.embed_tokens.weight
    cos, sin = model.model.rotary_emb(probe, positions.reshape(1, -1))
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half], sin[0, :, :half]).view(*positions.shape, 1, half)


class _UnitRms(torch.autograd.Function):
    """x / rms(x) over the last dimension, [..., width]; y in the backward is the output:
    dx = (g - y * mean(g * y)) / rms(x). One saved tensor instead of autograd's chain of six operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, epsilon: float) -> Tensor:
        inverse = _inverse_rms(x, epsilon)
        y = x * inverse
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        y, inverse = ctx.saved_tensors
        mean = (grad * y).mean(-1, keepdim=True)
        return torch.addcmul(grad, y, mean, value=-1).mul_(inverse), None


class _SwiGlu(torch.autograd.Function):
    """silu(gate) * up for gate_up [tokens, 2 * width]; the backward writes both halves in one buffer."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _swiglu(gate_up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (grad,) = grads
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        grad_gate, grad_up = result.chunk(2, dim=-1)
        torch.mul(F.silu(gate), grad, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return result


def _inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()


def _swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def unit_rms(x: Tensor, epsilon: float) -> Tensor:
    if not torch.is_grad_enabled():  # while sampling, a Function's overhead would cost as much as its work
        return x * _inverse_rms(x, epsilon)
    result: Tensor = _UnitRms.apply(x, epsilon)
    return result


def swiglu(gate_up: Tensor) -> Tensor:
    result: Tensor = _SwiGlu.apply(gate_up) if torch.is_grad_enabled() else _swiglu(gate_up)
    return result


def project_qkv(x: Tensor, layer: Layer, shape: Shape, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normed, scaled and rotated q [tokens, heads, head_dim], k and plain v [tokens, kv_heads, head_dim]."""
    heads, kv_heads, head_dim, epsilon = shape
    qkv = F.linear(unit_rms(x, epsilon), layer.qkv, layer.qkv_bias).view(-1, heads + 2 * kv_heads, head_dim)
    qk, v = qkv.split([heads + kv_heads, kv_heads], dim=1)  # its backward is one cat; slices would each fill zeros
    if layer.qk_norm is not None:
        qk = unit_rms(qk, epsilon) * layer.qk_norm
    pairs = torch.view_as_complex(qk.unflatten(-1, (-1, 2))) * rotation
    qk = torch.view_as_real(pairs).flatten(-2)
    q, k = qk.split([heads, kv_heads], dim=1)
    return q, k, v


def close_layer(x: Tensor, attended: Tensor, layer: Layer, epsilon: float) -> Tensor:
    """The rest of the layer after attention, with both residuals; x and attended are [tokens, ...]."""
    x = torch.addmm(x, attended, layer.output.t())
    if layer.output_bias is not None:
        x = x + layer.output_bias
    gated = swiglu(F.linear(unit_rms(x, epsilon), layer.gate_up))
    return torch.addmm(x, gated, layer.down.t())


def vocabulary_logits(model: Any, x: Tensor) -> Tensor:
    """Final norm and head: [tokens, hidden] -> [tokens, vocabulary]."""
    normed = unit_rms(x, model.config.rms_norm_eps) * model.model.norm.weight
    return F.linear(normed, model.lm_head.weight, model.lm_head.bias)
