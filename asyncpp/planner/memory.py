"""Bytes of a stage by kind, and what they assume.

Weights: the newest version, and in mixed precision its fp32 copy. A version that older batches still read is a whole
further copy in the dtype of the passes. A stage with a tied head but without the embedding has a copy of it, with
state of its own, and both update it alike (as in Megatron-LM).
Gradients: one sum a batch that is not yet applied (peak_gradients: two in 2BW, where the next batch runs while the
norm of the last one is still being summed).
Saved activations: what autograd saves, and, where another stage follows, the output, which the backward starts from.
Buffers: messages, and what a backward needs beside the other kinds (its own gradients before they are added, and
working memory, less what it has freed so far) or, if that is more, what an update needs while less is saved.
Replicas average a batch's gradients in one flat copy, between its last backward and its update: beside the next batch's
passes where these do not wait for the update (2BW), otherwise by itself, while less is saved.
Where the replicas share out the updates (pipeline.shard_optimizer), state and an update's workspace are those of the
parameters of one replica, whole matrices each; all else is the same on every replica. The new weights go to the other
replicas in flat copies, too, which are smaller than that of the gradients.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass

from asyncpp.parameters import ParameterInfo
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.units import Unit

GROUP_ELEMENTS = 2**25  # MAX_ELEMENTS_ON_ACCELERATORS of asyncpp/optim/groups.py, likewise


@dataclass(frozen=True)
class Held:
    """What a part of the model has at once, at most.

    weight_versions: the newest included. gradient_sums: batches whose gradient is not applied yet.
    gradients_in_backward: the same with the gradient that a backward makes to be added to a sum, where it is.
    micro_batches: between their forward and their backward, in micro-batches of the whole part.
    micro_batches_at_update: those of them that an update finds; none in a schedule that flushes.
    """

    weight_versions: int
    gradient_sums: int
    gradients_in_backward: int
    micro_batches: float
    micro_batches_at_update: float

    @property
    def overlaps_batches(self) -> bool:
        """The next batch's backwards begin before a batch's update."""
        return self.gradient_sums > 1


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


def unit_memory(
    config: PlanConfig, unit: Unit, held: Held, with_embedding: bool, updated: Container[str] | None = None
) -> Memory:
    """What a unit adds to its stage. with_embedding: the stage has the embedding, too, so a tied head shares it.

    updated: names of the parameters that the replica updates; None for all.
    """
    precision = config.precision
    own = held_parameters(unit, with_embedding)
    num_elements = _num_elements(own)
    mine = _of_names(own, updated)
    rules = config.optimizer.rules()
    state = sum(rules[info.role].state_copies(info.shape) * info.num_elements for info in mine)
    return Memory(
        weights=num_elements * (precision.compute + precision.master),
        weight_versions=num_elements * (held.weight_versions - 1) * precision.compute,
        gradients=num_differentiated(unit) * held.gradient_sums * precision.accumulate,
        optimizer_state=state * precision.accumulate,
        correction_state=_num_elements(mine) * config.correction.state_copies * precision.accumulate,
        saved_activations=held.micro_batches * unit.saved_bytes,
    )


def held_parameters(unit: Unit, with_embedding: bool) -> tuple[ParameterInfo, ...]:
    """Those of which the unit's stage has weights and state, in canonical order: a tied head's copy comes first."""
    return unit.parameters if with_embedding else (*unit.copied, *unit.parameters)


def _of_names(parameters: Sequence[ParameterInfo], names: Container[str] | None) -> Sequence[ParameterInfo]:
    return parameters if names is None else [info for info in parameters if info.name in names]


def num_differentiated(unit: Unit) -> int:
    """Elements of a unit's gradient: a parameter that two units share has a leaf in each."""
    return _num_elements((*unit.parameters, *unit.copied))


def pass_bytes(config: PlanConfig, owned: Sequence[Unit], more_gradients: int) -> float:
    """The most that a pass through ``owned`` has beside sums of gradients and all that is saved.

    Of the backward, from the last unit to the first: gradients take the place of what was saved, and the gradient of
    the unit's output goes along. more_gradients: beside the sums; 0 where a backward makes the first of its batch,
    which become the sum.
    """
    gradients = [num_differentiated(unit) * config.precision.compute for unit in owned]
    hidden = message_bytes(config)
    beside = hidden + (more_gradients - 1) * sum(gradients)
    most = max(unit.forward_working_bytes for unit in owned) + max(0, more_gradients - 1) * sum(gradients)
    for unit, gradient in zip(reversed(owned), reversed(gradients), strict=True):
        most = max(most, beside + unit.working_bytes)
        beside += gradient - unit.saved_bytes
        most = max(most, beside)
    return most


def update_bytes(config: PlanConfig, owned: Sequence[Unit], updated: Container[str] | None = None) -> float:
    """The most that the optimizer needs for a group of parameters while it computes its update (optim/groups.py).

    updated: names of the parameters that the replica updates; None for all.
    """
    rules = config.optimizer.rules()
    needs_update = config.correction.state_copies > 0.0  # u itself, for a rule of its own for the weights
    groups: dict[object, list[ParameterInfo]] = {}
    for info in _of_names([info for unit in owned for info in unit.parameters], updated):
        rule = rules[info.role]
        groups.setdefault((id(rule), info.shape if rule.same_shape else None), []).append(info)
    most = 0.0
    for members in groups.values():
        largest = max(members, key=lambda info: info.num_elements)
        size = min(_num_elements(members), max(GROUP_ELEMENTS, largest.num_elements))
        copies = rules[largest.role].workspace_copies(largest.shape, needs_update)
        most = max(most, size * copies * config.precision.accumulate)
    return most


def averaging_bytes(config: PlanConfig, owned: Sequence[Unit], with_embedding: bool) -> float:
    """The flat copy of a stage's gradients in which replicas average them (Mesh.average)."""
    if config.pipeline.data_parallel == 1:
        return 0.0
    held = (info for unit in owned for info in held_parameters(unit, with_embedding))
    return sum(info.num_elements for info in held) * config.precision.accumulate


def constant_bytes(config: PlanConfig, num_neighbours: int, wraps_around: bool) -> float:
    """What a stage has all the time: rotary tables, the messages that it awaits from and has sent to its neighbours
    (as many as a channel holds), and the one that all are shaped like.

    wraps_around: the stage is the first or last of several chunks, and holds what comes early from the other end.
    """
    rotary = 2 * config.data.sequence_length * config.model.head_dim * config.precision.compute
    if config.pipeline.is_simulated:
        return rotary
    depth = config.one_batch.buffer_size
    num_messages = 1 + 2 * depth * num_neighbours + (depth if wraps_around else 0)
    return rotary + num_messages * message_bytes(config)


def outputs_bytes(config: PlanConfig, micro_batches: float) -> float:
    """The outputs of saved micro-batches, of which those on their way to the next stage are messages already."""
    if config.pipeline.is_simulated or config.pipeline.recompute:
        return 0.0
    on_their_way = config.one_batch.buffer_size
    return max(0.0, micro_batches - on_their_way) * message_bytes(config)


def message_bytes(config: PlanConfig) -> float:
    """An activation or its gradient: hidden states of a micro-batch."""
    return config.micro_batch_tokens * config.model.hidden_size * config.precision.compute


def _num_elements(parameters: Sequence[ParameterInfo]) -> int:
    return sum(info.num_elements for info in parameters)
