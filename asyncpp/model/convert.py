"""Our parameters as the tensors of transformers' models, and back, bit for bit.

A dense model is a LlamaForCausalLM, a mixture a GraniteMoeSharedForCausalLM, in the names that their files use.
Layouts agree (rotary pairs, out x in); some of their tensors are several of ours put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from asyncpp.model.config import LlamaConfig, MoEConfig

_ATTENTION = {
    "input_layernorm.weight": ("attention_norm.weight",),
    "self_attn.q_proj.weight": ("attention.q.weight",),
    "self_attn.k_proj.weight": ("attention.k.weight",),
    "self_attn.v_proj.weight": ("attention.v.weight",),
    "self_attn.o_proj.weight": ("attention.o.weight",),
    "post_attention_layernorm.weight": ("mlp_norm.weight",),
}
_DENSE = {
    "mlp.gate_proj.weight": ("mlp.gate.weight",),
    "mlp.up_proj.weight": ("mlp.up.weight",),
    "mlp.down_proj.weight": ("mlp.down.weight",),
}
_MIXTURE = {
    "block_sparse_moe.router.layer.weight": ("mlp.router.weight",),
    "block_sparse_moe.input_linear.weight": ("mlp.experts.gate.weight", "mlp.experts.up.weight"),
    "block_sparse_moe.output_linear.weight": ("mlp.experts.down.weight",),
}
_SHARED = {
    "shared_mlp.input_linear.weight": ("mlp.shared.gate.weight", "mlp.shared.up.weight"),
    "shared_mlp.output_linear.weight": ("mlp.shared.down.weight",),
}


def hf_names(config: LlamaConfig) -> dict[str, tuple[str, ...]]:
    """Every tensor of the transformers model, and the parameters of ours that it holds, one above the other."""
    layer_names = _ATTENTION | _DENSE
    if isinstance(config, MoEConfig):
        layer_names = _ATTENTION | _MIXTURE | (_SHARED if config.shared_ffn_size else {})
    names: dict[str, tuple[str, ...]] = {"model.embed_tokens.weight": ("embedding.weight",)}
    for layer in range(config.num_layers):
        for theirs, ours in layer_names.items():
            names[f"model.layers.{layer}.{theirs}"] = tuple(f"layers.{layer}.{name}" for name in ours)
    names["model.norm.weight"] = ("norm.weight",)
    if not config.tied_embeddings:
        names["lm_head.weight"] = ("head.weight",)
    return names


def to_hf(config: LlamaConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``weights``, by our names, as the tensors of the transformers model."""
    return {theirs: _joined([weights[name] for name in ours]) for theirs, ours in hf_names(config).items()}


class Location:
    """Where a parameter of ours lies: part number ``part`` of ``num_parts`` in the tensor ``hf_name``."""

    def __init__(self, hf_name: str, part: int, num_parts: int) -> None:
        self.hf_name = hf_name
        self.part = part
        self.num_parts = num_parts

    def read(self, tensor_named: Callable[[str], Tensor]) -> Tensor:
        tensor = tensor_named(self.hf_name)
        return tensor if self.num_parts == 1 else tensor.chunk(self.num_parts, -2)[self.part].contiguous()


def locate(config: LlamaConfig) -> dict[str, Location]:
    """The place of each of our parameters in the transformers model."""
    return {
        name: Location(theirs, part, len(ours))
        for theirs, ours in hf_names(config).items()
        for part, name in enumerate(ours)
    }


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)
