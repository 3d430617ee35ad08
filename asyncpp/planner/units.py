"""The model in the units that a split moves between stages: embedding, layers, and last norm with head.

What a unit saves for its backward is listed tensor by tensor as asyncpp/model does it, and tests/planner counts the
same on the modules. D is hidden_size, K kv_size, F ffn_size, S the sequence length, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asyncpp.model.config import LlamaConfig, MoEConfig
from asyncpp.model.counts import active_elements
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.parameters import ParameterInfo, Role
from asyncpp.planner.config import PlanConfig, Precision

LOGITS_TOKENS = 512  # CHUNK_TOKENS of asyncpp/model/cross_entropy.py, which imports torch
INDEX_BYTES = 8  # torch's int64: tokens, and places of a mixture's rows


@dataclass(frozen=True)
class Unit:
    """Times and bytes are of one micro-batch.

    copied: parameters of another unit that this one reads too: the embedding, where the head is tied to it.
    saved_bytes: from its forward to its backward. working_bytes: the most that its backward has beside that and
    the gradient of its output; where a layer is recomputed first, that as well. forward_working_bytes: the most that
    its forward has beside what it saves, where that is more than a hidden state.
    """

    name: str
    parameters: tuple[ParameterInfo, ...]
    forward_s: float
    backward_s: float
    saved_bytes: float
    copied: tuple[ParameterInfo, ...] = ()
    working_bytes: float = 0.0
    forward_working_bytes: float = 0.0

    @property
    def num_elements(self) -> int:
        return sum(info.num_elements for info in self.parameters)


def units(config: PlanConfig) -> list[Unit]:
    """Every unit, first to last. Matrix products take their FLOPs at the stated share of the peak; what the embedding
    and the head's backward do instead takes its bytes at the speed of the memory."""
    infos = parameter_infos(config.model)
    layers = [
        _layer(config, layer, [info for info in infos if info.name.startswith(f"layers.{layer}.")])
        for layer in range(config.model.num_layers)
    ]
    outside = [info for info in infos if not info.name.startswith("layers.")]
    return [_embedding(config, outside[0]), *layers, _head(config, outside)]


def _embedding(config: PlanConfig, table: ParameterInfo) -> Unit:
    tokens, element = config.micro_batch_tokens, config.precision.compute
    rows_bytes = tokens * config.model.hidden_size * element
    speed = config.hardware.memory_bytes_per_s
    return Unit(
        "embedding",
        (table,),
        forward_s=2.0 * rows_bytes / speed,  # read rows, write them
        backward_s=(2.0 * rows_bytes + table.num_elements * element) / speed,  # add them to zeros of the whole table
        saved_bytes=tokens * INDEX_BYTES,
    )


def _layer(config: PlanConfig, layer: int, infos: Sequence[ParameterInfo]) -> Unit:
    model, tokens = config.model, config.micro_batch_tokens
    matrices = sum(active_elements(model, info) for info in infos if info.role is Role.MATRIX)
    flops = tokens * (2.0 * matrices + 4.0 * model.hidden_size * config.data.sequence_length)
    forward_s = flops / (config.options.mfu * config.peak_flops_per_s)
    saved = tokens * layer_bytes_per_token(config) + layer_bytes_per_micro_batch(model, config.precision)
    if config.casts:
        cast = [info for info in infos if info.role is Role.MATRIX and not info.name.endswith("router.weight")]
        saved += config.precision.operand * sum(info.num_elements for info in cast)
    working = _layer_working_bytes(config)
    if not config.pipeline.recompute:
        return Unit(f"layers.{layer}", tuple(infos), forward_s, 2.0 * forward_s, saved, working_bytes=working)
    inputs = tokens * model.hidden_size * config.precision.compute
    return Unit(f"layers.{layer}", tuple(infos), forward_s, 3.0 * forward_s, inputs, working_bytes=saved + working)


def _head(config: PlanConfig, outside: Sequence[ParameterInfo]) -> Unit:
    """asyncpp/model/cross_entropy.py makes the gradients of its input and its weight in the forward, and keeps those:
    so all products are there, and a copy of the weight's size is saved for each micro-batch."""
    model, precision, tokens = config.model, config.precision, config.micro_batch_tokens
    weight = model.vocab_size * model.hidden_size
    kept = (weight + tokens * model.hidden_size) * precision.compute
    return Unit(
        "head",
        tuple(info for info in outside if info.role is not Role.EMBEDDING),
        forward_s=6.0 * tokens * weight / (config.options.mfu * config.peak_flops_per_s),
        backward_s=2.0 * kept / config.hardware.memory_bytes_per_s,  # both are multiplied by a number
        saved_bytes=kept + tokens * _norm_bytes(config),
        copied=tuple(info for info in outside if info.name in tied_aliases(model).values()),
        working_bytes=kept,
        forward_working_bytes=_logits_bytes(config),
    )


def _logits_bytes(config: PlanConfig) -> float:
    """What the head has in its forward beside what it keeps: one chunk's logits and their product with the weight and,
    in mixed precision, the logits and their gradient in bf16, and the sum of the head's gradient in fp32; of the weight
    a copy, where products make one."""
    precision, model = config.precision, config.model
    chunk = min(LOGITS_TOKENS, config.micro_batch_tokens)
    logits = chunk * model.vocab_size
    weight = model.vocab_size * model.hidden_size
    products = chunk * model.hidden_size * precision.operand
    if config.casts:
        return logits * (precision.accumulate + precision.operand) + products + 2 * weight * precision.operand
    if precision.compute == precision.accumulate:
        return logits * precision.accumulate + products
    return (
        logits * (precision.accumulate + precision.compute)
        + products
        + weight * (precision.accumulate + precision.compute)
    )


def _layer_working_bytes(config: PlanConfig) -> float:
    """Of the backward of down(silu(gate) * up), which comes first: the gradients of the product and of one of its
    factors, or of what the gates scale in a mixture, and that of the down matrix."""
    model, element = config.model, config.precision.operand
    if isinstance(model, MoEConfig):
        rows = config.micro_batch_tokens * model.top_k
        return (2 * rows * model.ffn_size + model.num_experts * model.ffn_size * model.hidden_size) * element
    return (2 * config.micro_batch_tokens + model.hidden_size) * model.ffn_size * element


def layer_bytes_per_token(config: PlanConfig) -> float:
    """What a layer saves of each token. Attention: its input, q, k, v, their result and its log-sum-exp; no scores
    (flash attention)."""
    model, precision = config.model, config.precision
    inputs = 3 if config.casts else 1  # one for q, k and v each
    attention = ((2 + inputs) * model.hidden_size + 2 * model.kv_size) * precision.operand
    attention += model.num_heads * precision.accumulate
    if isinstance(model, MoEConfig):
        feed_forward = _mixture_bytes(config, model)
    else:
        feed_forward = _swiglu_bytes(config, model.ffn_size)
    return 2 * _norm_bytes(config) + attention + feed_forward


def layer_bytes_per_micro_batch(model: LlamaConfig, precision: Precision) -> float:
    """What a layer saves beside that: a mixture's router in fp32, where it is not stored so."""
    if isinstance(model, MoEConfig) and precision.compute < precision.accumulate:
        return model.num_experts * model.hidden_size * precision.accumulate
    return 0.0


def _norm_bytes(config: PlanConfig) -> float:
    """Of a token: the norm's input and its statistic. Without a fused kernel torch also saves the normalised input, and
    both in the statistic's precision."""
    width, precision = config.model.hidden_size, config.precision
    if config.hardware.fused_norms:
        return width * precision.compute + precision.accumulate
    return (2 * width + 1) * precision.accumulate


def _swiglu_bytes(config: PlanConfig, ffn_size: int) -> float:
    """Of a token: input, gate, its silu, up, and their product."""
    inputs = 2 if config.casts else 1  # one for gate and up each
    return (inputs * config.model.hidden_size + 4 * ffn_size) * config.precision.operand


def _mixture_bytes(config: PlanConfig, model: MoEConfig) -> float:
    """Of a token: router (with both auxiliary losses), the places of its top_k rows, and what their experts save."""
    operand, accumulate = config.precision.operand, config.precision.accumulate
    inputs = 2 if config.casts else 1  # one for gate and up each
    router = (model.hidden_size + 2 * model.num_experts + 1 + model.top_k) * accumulate
    # its input, logits, softmax, log-sum-exp, gates; and once a sequence, how often each expert was chosen
    router += model.num_experts * accumulate / config.data.sequence_length
    row = 3 * INDEX_BYTES + operand  # expert, place, place back; gate
    row += (
        inputs * model.hidden_size + 5 * model.ffn_size
    ) * operand  # input; gate, its silu, up, the product, and that gated
    shared = _swiglu_bytes(config, model.shared_ffn_size) if model.shared_ffn_size else 0.0
    if model.shared_ffn_size and operand == accumulate:
        shared -= model.hidden_size * operand  # the router's input is its input
    return router + model.top_k * row + shared
