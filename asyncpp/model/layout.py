"""The parameters of a model, from its config alone: names, roles, shapes, in canonical order. No torch here."""

from __future__ import annotations

from asyncpp.model.config import LlamaConfig, MoEConfig
from asyncpp.parameters import ParameterInfo, Role


def parameter_infos(config: LlamaConfig) -> list[ParameterInfo]:
    """Every parameter once, first layer to last. A tied head is the embedding, and not listed again.

    Matrices are out x in; those of a layer's experts are stacked, experts x out x in. The order is the one in
    which checkpoints, optimizers and the global gradient norm go through the parameters, whatever the split.
    """
    width = config.hidden_size
    infos = [ParameterInfo("embedding.weight", Role.EMBEDDING, (config.vocab_size, width))]
    for layer in range(config.num_layers):
        infos += _layer_infos(config, f"layers.{layer}")
    infos.append(ParameterInfo("norm.weight", Role.NORM, (width,)))
    if not config.tied_embeddings:
        infos.append(ParameterInfo("head.weight", Role.HEAD, (config.vocab_size, width)))
    return infos


def tied_aliases(config: LlamaConfig) -> dict[str, str]:
    """Names of modules' parameters that hold another parameter's values: alias to canonical name."""
    return {"head.weight": "embedding.weight"} if config.tied_embeddings else {}


def _layer_infos(config: LlamaConfig, prefix: str) -> list[ParameterInfo]:
    width, kv_size = config.hidden_size, config.kv_size
    return [
        ParameterInfo(f"{prefix}.attention_norm.weight", Role.NORM, (width,)),
        ParameterInfo(f"{prefix}.attention.q.weight", Role.MATRIX, (width, width)),
        ParameterInfo(f"{prefix}.attention.k.weight", Role.MATRIX, (kv_size, width)),
        ParameterInfo(f"{prefix}.attention.v.weight", Role.MATRIX, (kv_size, width)),
        ParameterInfo(f"{prefix}.attention.o.weight", Role.MATRIX, (width, width)),
        ParameterInfo(f"{prefix}.mlp_norm.weight", Role.NORM, (width,)),
        *_feed_forward_infos(config, f"{prefix}.mlp"),
    ]


def _feed_forward_infos(config: LlamaConfig, prefix: str) -> list[ParameterInfo]:
    width = config.hidden_size
    if not isinstance(config, MoEConfig):
        return _swiglu_infos(prefix, (), width, config.ffn_size)
    infos = [ParameterInfo(f"{prefix}.router.weight", Role.MATRIX, (config.num_experts, width))]
    infos += _swiglu_infos(f"{prefix}.experts", (config.num_experts,), width, config.ffn_size)
    if config.shared_ffn_size:
        infos += _swiglu_infos(f"{prefix}.shared", (), width, config.shared_ffn_size)
    return infos


def _swiglu_infos(prefix: str, stack: tuple[int, ...], width: int, ffn_size: int) -> list[ParameterInfo]:
    """``stack``: leading dimensions, for the experts of a layer, whose matrices are stacked."""
    return [
        ParameterInfo(f"{prefix}.gate.weight", Role.MATRIX, (*stack, ffn_size, width)),
        ParameterInfo(f"{prefix}.up.weight", Role.MATRIX, (*stack, ffn_size, width)),
        ParameterInfo(f"{prefix}.down.weight", Role.MATRIX, (*stack, width, ffn_size)),
    ]
