"""What a schedule is made of: actions, and one list of them for each stage.

Version v of a weight is its value after v updates. Every action says which version it is about, so that whoever walks
a list (simulator, process runtime, timeline) needs no rule of its own.

A stage is one process of the pipeline. It holds ``num_chunks`` parts of the model: chunk c of stage s is part
c * num_stages + s, and activations go from part to part in that order. One chunk is the usual case: part = stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from asyncpp.errors import check_count, check_not_negative

NONE = -1  # in a field that an action has no use for


class Kind(StrEnum):
    """What an action does; the value is its letter in the text form."""

    FORWARD = "F"  # run a micro-batch through a part, on ``version``; the output waits to be sent or used
    BACKWARD = "B"  # the gradient of that, on ``version``; the part's own gradient is summed over the batch
    SEND = "S"  # give what FORWARD or BACKWARD made to ``peer``; returns at once unless the channel is full
    RECV = "R"  # wait for what the next FORWARD or BACKWARD of this micro-batch needs, from ``peer``
    UPDATE = "U"  # apply the gradient of ``batch`` to the newest version; makes ``version``


class Payload(StrEnum):
    """What is sent: an activation to the following part, or a gradient to the one before."""

    ACTIVATION = "A"
    GRADIENT = "G"


FORWARD, BACKWARD, SEND, RECV, UPDATE = Kind
ACTIVATION, GRADIENT = Payload


class Action(NamedTuple):
    """One step of a stage. Build it with the functions below, which leave out the fields that a kind does not have.

    batch: the update that the action works for, from zero. micro_batch: within the batch, from zero.
    chunk: the part of the model on this stage. version: weights read (FORWARD, BACKWARD) or made (UPDATE).
    peer: the other stage of a SEND or RECV.
    """

    kind: Kind
    batch: int
    micro_batch: int = NONE
    chunk: int = 0
    version: int = NONE
    payload: Payload | None = None
    peer: int = NONE

    def __str__(self) -> str:
        """The text form, which asyncpp.schedule.text reads: ``F2.0@1 B2.0:1@1 SA2.0>1 RG2.0<1 U2@3``."""
        kind, batch, micro_batch, chunk, version, payload, peer = self
        text = f"{kind}{payload or ''}{batch}"
        text += f".{micro_batch}" if micro_batch != NONE else ""
        text += f":{chunk}" if chunk else ""
        text += f"@{version}" if version != NONE else ""
        return text + (f"{'<' if kind is RECV else '>'}{peer}" if peer != NONE else "")


def forward(batch: int, micro_batch: int, version: int, chunk: int = 0) -> Action:
    return Action(FORWARD, batch, micro_batch, chunk, version)


def backward(batch: int, micro_batch: int, version: int, chunk: int = 0) -> Action:
    return Action(BACKWARD, batch, micro_batch, chunk, version)


def send(payload: Payload, batch: int, micro_batch: int, peer: int, chunk: int = 0) -> Action:
    return Action(SEND, batch, micro_batch, chunk, NONE, payload, peer)


def recv(payload: Payload, batch: int, micro_batch: int, peer: int, chunk: int = 0) -> Action:
    return Action(RECV, batch, micro_batch, chunk, NONE, payload, peer)


def update(batch: int, version: int, chunk: int = 0) -> Action:
    return Action(UPDATE, batch, NONE, chunk, version)


def num_filling_batches(num_stages: int, num_micro_batches: int) -> int:
    """Batches that do not find the pipeline full: until as many micro-batches as stages have begun."""
    return -(-num_stages // num_micro_batches)


def num_batches_until_steady(num_stages: int, num_micro_batches: int) -> int:
    """Batches after which a schedule repeats itself: those that fill the pipeline, and two more."""
    return num_filling_batches(num_stages, num_micro_batches) + 2


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How much a schedule has to do. Raises ConfigError for numbers that mean nothing.

    num_stages: P. num_micro_batches: m, of one batch. num_batches: batches, which is updates, in the lists.
    num_chunks: parts of the model on a stage. first_batch: a resumed run starts here; the newest version is then
    ``first_batch``, and the older ones that a delayed schedule still reads come from the checkpoint.
    """

    num_stages: int
    num_micro_batches: int
    num_batches: int
    num_chunks: int = 1
    first_batch: int = 0

    def __post_init__(self) -> None:
        for name in ("num_stages", "num_micro_batches", "num_batches", "num_chunks"):
            check_count(name, getattr(self, name))
        check_not_negative("first_batch", self.first_batch)

    @property
    def batches(self) -> range:
        return range(self.first_batch, self.first_batch + self.num_batches)

    @property
    def num_parts(self) -> int:
        return self.num_stages * self.num_chunks

    def part(self, stage: int, chunk: int) -> int:
        """The place in the model of a stage's chunk, from zero."""
        return chunk * self.num_stages + stage

    def item(self, action: Action) -> int:
        """The number of the action's micro-batch, counted through the batches of this schedule from zero."""
        return (action.batch - self.first_batch) * self.num_micro_batches + action.micro_batch


@dataclass(frozen=True, kw_only=True)
class Schedule(Shape):
    """A list of actions for every stage.

    name: of the builder. A list under a builder's name is that builder's list, and validate holds it to that; a list
    of your own has another name.
    buffer_size: messages that a channel (sender, receiver, payload) may hold before its next SEND waits.
    mixed_versions: a backward may read another version than its forward did (PipeMare); otherwise that is refused.
    """

    name: str
    stages: Sequence[Sequence[Action]]
    buffer_size: int = 2
    mixed_versions: bool = False

    @property
    def num_actions(self) -> int:
        return sum(len(actions) for actions in self.stages)
