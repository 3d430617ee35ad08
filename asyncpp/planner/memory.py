"""Bytes of a stage by kind, and what they assume.

Weights: the newest version, and in mixed precision its fp32 copy. A version that older batches still read is a whole
further copy in the dtype of the passes. A stage with a tied head but without the embedding has a copy of it, with
state of its own, and both update it alike (as in Megatron-LM).
Gradients: one sum a batch that is not yet applied (peak_gradients: two in 2BW, where the next batch runs while the
norm of the last one is still being summed).
Buffers: messages, and what passes need beside the other kinds (a micro-batch's own gradient before it is added; a
layer's working memory, or logits) or, if that is more, what an update needs while less is saved.
Nothing is sharded between replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from asyncpp.parameters import ParameterInfo
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.units import Unit

LOGITS_TOKENS = 512  # CHUNK_TOKENS of asyncpp/model/cross_entropy.py, which imports torch
GROUP_ELEMENTS = 2**25  # MAX_ELEMENTS_ON_ACCELERATORS of asyncpp/optim/groups.py, likewise
WORKSPACE_COPIES = 4  # of a group of parameters, while its update is computed: about the most that a rule documents
MESSAGES = 2  # in a channel between neighbours: one on its way, and one that has come


@dataclass(frozen=True)
class Held:
    """What a part of the model has at once, at most.

    weight_versions: the newest included. gradient_sums: batches whose gradient is not applied yet.
    micro_batches: between their forward and their backward, in micro-batches of the whole part.
    micro_batches_at_update: those of them that an update finds; none in a schedule that flushes.
    """

    weight_versions: int
    gradient_sums: int
    micro_batches: float
    micro_batches_at_update: float


@dataclass(frozen=True)
class Memory:
    """Bytes by kind. Memories add up."""

    weights: float = 0.0
    weight_versions: float = 0.0
    gradients: float = 0.0
    optimizer_state: float = 0.0
    correction_state: float = 0.0
    saved_activations: float = 0.0
    buffers: float = 0.0

    def __add__(self, other: Memory) -> Memory:
        theirs = asdict(other)
        return Memory(**{kind: value + theirs[kind] for kind, value in asdict(self).items()})

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


def unit_memory(config: PlanConfig, unit: Unit, held: Held, with_embedding: bool) -> Memory:
    """What a unit adds to its stage. with_embedding: the stage has the embedding, too, so a tied head shares it."""
    precision = config.precision
    own = unit.parameters if with_embedding else (*unit.parameters, *unit.copied)
    num_elements = _num_elements(own)
    rules = config.optimizer.rules()
    state = sum(rules[info.role].state_copies(info.shape) * info.num_elements for info in own)
    return Memory(
        weights=num_elements * (precision.compute + precision.master),
        weight_versions=num_elements * (held.weight_versions - 1) * precision.compute,
        gradients=num_differentiated(unit) * held.gradient_sums * precision.accumulate,
        optimizer_state=state * precision.accumulate,
        correction_state=num_elements * config.correction.state_copies * precision.accumulate,
        saved_activations=held.micro_batches * unit.saved_bytes,
    )


def num_differentiated(unit: Unit) -> int:
    """Elements of a unit's gradient: a parameter that two units share has a leaf in each."""
    return _num_elements((*unit.parameters, *unit.copied))


def pass_bytes(config: PlanConfig, owned: Sequence[Unit]) -> float:
    """What a stage needs during a forward or backward: the largest layer's working memory or a chunk of logits."""
    working = max((unit.working_bytes for unit in owned), default=0.0)
    return max(working, _logits_bytes(config) if any(unit.name == "head" for unit in owned) else 0.0)


def micro_batch_gradient_bytes(config: PlanConfig, owned: Sequence[Unit]) -> float:
    """A micro-batch's own gradient, before it is added to the batch's sum. The only one of its batch is the sum."""
    is_added = config.num_micro_batches_of_update > 1
    return sum(map(num_differentiated, owned)) * config.precision.compute if is_added else 0.0


def update_bytes(config: PlanConfig, owned: Sequence[Unit]) -> float:
    """What the optimizer needs, group of parameters by group, while it computes an update."""
    parameters = [info for unit in owned for info in unit.parameters]
    largest = max((info.num_elements for info in parameters), default=0)
    group = min(_num_elements(parameters), max(GROUP_ELEMENTS, largest))
    return WORKSPACE_COPIES * group * config.precision.accumulate


def constant_bytes(config: PlanConfig, num_neighbours: int, wraps_around: bool) -> float:
    """What a stage has all the time: rotary tables, and the messages of every channel to and from a neighbour.

    wraps_around: the stage is the first or last of several chunks, and holds what comes early from the other end.
    """
    rotary = 2 * config.data.sequence_length * config.model.head_dim * config.precision.compute
    num_messages = 4 * num_neighbours * MESSAGES  # both payloads, in and out
    if wraps_around:
        num_messages += config.one_batch.buffer_size
    return rotary + num_messages * message_bytes(config)


def message_bytes(config: PlanConfig) -> float:
    """An activation or its gradient: hidden states of a micro-batch."""
    return config.micro_batch_tokens * config.model.hidden_size * config.precision.compute


def _logits_bytes(config: PlanConfig) -> float:
    """One chunk's logits and, in mixed precision, their product and gradient in bf16, and the sum of the head's
    gradient over chunks in fp32."""
    precision, model = config.precision, config.model
    logits = min(LOGITS_TOKENS, config.micro_batch_tokens) * model.vocab_size
    if precision.compute == precision.accumulate:
        return logits * precision.accumulate
    return logits * (precision.accumulate + precision.compute) + (
        model.vocab_size * model.hidden_size * (precision.accumulate + precision.compute)
    )


def _num_elements(parameters: Sequence[ParameterInfo]) -> int:
    return sum(info.num_elements for info in parameters)
