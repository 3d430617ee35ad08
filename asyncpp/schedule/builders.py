"""The schedules of the literature. Each is a generator of one stage's FORWARD, BACKWARD and UPDATE in order.

In the pictures a column is a slot of time, digits are micro-batches, ' marks a backward, | an update; P = 4 stages
(2 where said) and a backward as long as a forward. ``build`` adds SEND and RECV and makes lists of them. A new
schedule is a new generator, turned into lists by ``connect``; asyncpp.schedule.validate says what is wrong with it.

All of them run the backwards of a batch in the order of its micro-batches, so that the sum of gradients has one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from asyncpp.errors import ConfigError, require
from asyncpp.schedule.action import (
    ACTIVATION,
    BACKWARD,
    FORWARD,
    GRADIENT,
    Action,
    Kind,
    Schedule,
    Shape,
    recv,
    send,
    update,
)


def gpipe(shape: Shape, stage: int) -> Iterator[Action]:
    """All forwards of a batch, then all backwards, then the update (Huang et al., arXiv 1811.06965).

    0 1 2 . . 0'1'2'|       P = 2, m = 3. The paper runs the backwards last in, first out: as long,
    . 0 1 2 0'1'2'|         and another order of the sum.
    """
    for batch in shape.batches:
        forwards = passes(FORWARD, shape, batch, version=batch)
        backwards = passes(BACKWARD, shape, batch, version=batch)
        yield from alternate(forwards, backwards, warm_up=shape.num_micro_batches)
        yield update(batch, batch + 1)


def one_f_one_b(shape: Shape, stage: int) -> Iterator[Action]:
    """One forward, one backward, and a flush before the update (PipeDream-Flush, arXiv 2006.09503, section 3.2).

    0 1 2 3 . . . 0'. 1'. 2'. 3'|       The bubble of GPipe, and at most P - stage micro-batches saved.
    . 0 1 2 . . 0'3 1'. 2'. 3'|
    . . 0 1 . 0'2 1'3 2'. 3'|
    . . . 0 0'1 1'2 2'3 3'|
    """
    for batch in shape.batches:
        forwards = passes(FORWARD, shape, batch, version=batch)
        backwards = passes(BACKWARD, shape, batch, version=batch)
        yield from alternate(forwards, backwards, warm_up=shape.num_stages - 1 - stage)
        yield update(batch, batch + 1)


def interleaved(shape: Shape, stage: int) -> Iterator[Action]:
    """1F1B over several chunks of the model on every stage (Narayanan et al., arXiv 2104.04473, section 2.2).

        0 1 0 1 . 0'. 1'0'1'|     P = m = 2, two chunks: the second 0 and 1 are chunk 1's forwards, the first 0' and
        . 0 1 0 0'1 1'0'1'|       1' its backwards. A slot is half as long as with one chunk, and so is the bubble.

    Micro-batches take turns in rounds of P. Where P does not divide m, which the paper asks for, the rounds are larger:
    with smaller ones the first stage would wait for an activation that has not come round.
    """
    rounds = _rounds(shape.num_micro_batches, shape.num_stages)
    chunks = range(shape.num_chunks)
    warm_up = 2 * (shape.num_stages - 1 - stage) + (shape.num_chunks - 1) * len(rounds[0])
    for batch in shape.batches:
        forwards = (Action(FORWARD, batch, m, chunk, batch) for turn in rounds for chunk in chunks for m in turn)
        backwards = (
            Action(BACKWARD, batch, m, chunk, batch) for turn in rounds for chunk in reversed(chunks) for m in turn
        )
        yield from alternate(forwards, backwards, warm_up)
        for chunk in chunks:
            yield update(batch, batch + 1, chunk)


def two_bw(shape: Shape, stage: int) -> Iterator[Action]:
    """1F1B that never flushes: batch t runs on version max(t - 1, 0) (PipeDream-2BW, arXiv 2006.09503, section 3.1).

        0 1 2 3 . . . 0'4 1'5 2'6 3'7|4'8 5'9 6'     m = 4: 0..3 are batch 0 and 4..7 batch 1, both on version 0;
        . 0 1 2 . . 0'3 1'4 2'5 3'6 4'7|5'8 6'9      8.. are batch 2 on version 1, which | has made.
        . . 0 1 . 0'2 1'3 2'4 3'5 4'6 5'7|6'8 7'
        . . . 0 0'1 1'2 2'3 3'4 4'5 5'6 6'7|7'8

    The update of batch t stands after the last forward of batch t + 1. There it comes after the first stage's last
    backward of batch t by way of the data itself, so the gradient norm of all stages has had at least a forward's
    time to be summed, and version t + 1 is there for batch t + 2. It asks for m >= P.
    """
    return _no_flush(shape, warm_up=shape.num_stages - 1 - stage)


def _no_flush(shape: Shape, warm_up: int) -> Iterator[Action]:
    final, last = shape.batches[-1], shape.num_micro_batches - 1
    forwards = chain.from_iterable(passes(FORWARD, shape, t, version=max(t - 1, 0)) for t in shape.batches)
    backwards = chain.from_iterable(passes(BACKWARD, shape, t, version=max(t - 1, 0)) for t in shape.batches)
    for action in alternate(forwards, backwards, warm_up):
        yield action
        if action.micro_batch == last:
            if action.kind is FORWARD and action.batch > shape.first_batch:
                yield update(action.batch - 1, action.batch)
            elif action.kind is BACKWARD and action.batch == final:
                yield update(final, final + 1)


def pipedream(shape: Shape, stage: int) -> Iterator[Action]:
    """An update after every backward, old weights stashed (PipeDream, Narayanan et al., SOSP 2019, arXiv 1806.03377).

    0 1 2 3 . . . 0'|4 1'|5 2'|6     A batch is one micro-batch. Stage s runs batch t on version
    . 0 1 2 . . 0'|3 1'|4 2'|5 3'|   max(t - (P - 1 - s), 0), forward and backward, and keeps P - s versions.
    . . 0 1 . 0'|2 1'|3 2'|4 3'|5
    . . . 0 0'|1 1'|2 2'|3 3'|4      (| takes no time here.)
    """
    delay = shape.num_stages - 1 - stage
    forwards = chain.from_iterable(passes(FORWARD, shape, t, version=max(t - delay, 0)) for t in shape.batches)
    backwards = chain.from_iterable(passes(BACKWARD, shape, t, version=max(t - delay, 0)) for t in shape.batches)
    for action in alternate(forwards, backwards, warm_up=delay):
        yield action
        if action.kind is BACKWARD:
            yield update(action.batch, action.batch + 1)


def wpipe(shape: Shape, stage: int) -> Iterator[Action]:
    """Two groups of layers, the first a batch ahead of the second (WPipe, Yang et al., ICLR 2022).

        0 1 0 1 . 0'2 1'3|0'2 1'3|2'4 3'5     P = m = 2. Group 0 (chunk 0) holds the first half of the model, group 1
        . 0 1 0 0'1 1'2 0'3|1'2 2'3|3'4 2'5   the second: forwards 0 1 of group 0, 0 1 of group 1, 2 3 of group 0,
                                              2 3 of group 1, ...; backwards 0' 1' of group 1, 0' 1' of group 0, ...

    The paper's rule, as its abstract has it: in the first group the forwards of the next batch come before the
    backwards of this one, in the second the order is kept, and the groups update by turns. So group 0 runs batch t on
    version max(t - 1, 0) and keeps two versions, group 1 runs it on version t and keeps one: half of 2BW's delayed
    gradients and half of its spare weights. The order of single micro-batches is ours: 1F1B over the stream of
    forwards F1(t) F0(t+1) and that of backwards B1(t) B0(t), which leaves no bubble for m >= P. A group's update
    stands, as in 2BW, after the last forward before the group needs it; the norm for clipping can only be its own.
    """
    first, final, last = shape.first_batch, shape.batches[-1], shape.num_micro_batches - 1

    def passes_of(kind: Kind, batch: int, group: int) -> list[Action]:
        return passes(kind, shape, batch, version=batch if group == 1 else max(batch - 1, 0), chunk=group)

    ahead = [(first, 0), *chain.from_iterable(((t, 1), (t + 1, 0)) for t in shape.batches)][:-1]
    forwards = chain.from_iterable(passes_of(FORWARD, batch, group) for batch, group in ahead)
    backwards = chain.from_iterable(passes_of(BACKWARD, batch, group) for batch in shape.batches for group in (1, 0))
    warm_up = shape.num_micro_batches + shape.num_stages - 1 - stage
    for action in alternate(forwards, backwards, warm_up):
        yield action
        if action.micro_batch == last:
            if action.kind is FORWARD and action.batch > first:
                yield update(action.batch - 1, action.batch, chunk=1 - action.chunk)
            elif action.kind is BACKWARD and action.batch == final:
                yield update(final, final + 1, action.chunk)


def passes(kind: Kind, shape: Shape, batch: int, version: int, chunk: int = 0) -> list[Action]:
    """A batch's forwards, or its backwards, in the order of its micro-batches."""
    return [Action(kind, batch, m, chunk, version) for m in range(shape.num_micro_batches)]


def alternate(forwards: Iterable[Action], backwards: Iterable[Action], warm_up: int) -> Iterator[Action]:
    """``warm_up`` forwards, then a forward and a backward by turns, then the backwards that are left."""
    remaining = iter(forwards)
    for _, action in zip(range(warm_up), remaining, strict=False):
        yield action
    for action in backwards:
        following = next(remaining, None)
        if following is not None:
            yield following
        yield action


def _rounds(num_micro_batches: int, num_stages: int) -> list[range]:
    """Micro-batches in rounds of at least ``num_stages``, as even as they come, the larger ones first."""
    count = max(1, num_micro_batches // num_stages)
    size, larger = divmod(num_micro_batches, count)
    starts = [turn * size + min(turn, larger) for turn in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def connect(shape: Shape, stage: int, actions: Iterable[Action]) -> Iterator[Action]:
    """Add the RECV before, and the SEND after, every FORWARD and BACKWARD whose neighbour is on another stage."""
    if shape.num_stages == 1:  # the following part is here as well
        yield from actions
        return
    before, after = (stage - 1) % shape.num_stages, (stage + 1) % shape.num_stages
    last_part = shape.num_parts - 1
    for action in actions:
        kind, batch, micro_batch, chunk = action[:4]
        part = shape.part(stage, chunk)
        if kind is FORWARD:
            if part > 0:
                yield recv(ACTIVATION, batch, micro_batch, before, chunk)
            yield action
            if part < last_part:
                yield send(ACTIVATION, batch, micro_batch, after, chunk)
        elif kind is BACKWARD:
            if part < last_part:
                yield recv(GRADIENT, batch, micro_batch, after, chunk)
            yield action
            if part > 0:
                yield send(GRADIENT, batch, micro_batch, before, chunk)
        else:
            yield action


@dataclass(frozen=True)
class Builder:
    """A generator and what it asks of its shape.

    chunks: parts on a stage by default. full_batches: m >= P. one_micro_batch: a batch is one micro-batch.
    buffer_size: messages that a channel must hold so that no SEND waits for want of room: one on its way and one that
    has come, or more where activations for the next chunk come early.
    runs_in_processes: every stage runs all backwards of a batch, of all its chunks, before any UPDATE of it, as
    asyncpp.pipeline.interpreter needs, which settles a stage's batch as a whole. Others can be planned and drawn.
    """

    actions: Callable[[Shape, int], Iterator[Action]]
    chunks: int = 1
    any_chunks: bool = False
    full_batches: bool = False
    one_micro_batch: bool = False
    buffer_size: Callable[[Shape], int] = lambda shape: 2
    runs_in_processes: bool = True

    def chunks_of(self, num_chunks: int | None) -> int:
        """``num_chunks``, or this schedule's own number for None."""
        return self.chunks if num_chunks is None else num_chunks

    def unmet(self, shape: Shape) -> ConfigError | None:
        """What is wrong with ``shape`` for this builder."""
        chunks, m = shape.num_chunks, shape.num_micro_batches
        if self.any_chunks and chunks < 2:
            return ConfigError("num_chunks", chunks, "expected 2 or more; with one chunk it is one_f_one_b")
        if not self.any_chunks and chunks != self.chunks:
            return ConfigError("num_chunks", chunks, f"this schedule has {self.chunks}")
        if self.full_batches and m < shape.num_stages:
            accepted = f"expected at least num_stages={shape.num_stages}, or an update comes too late for its batch"
            return ConfigError("num_micro_batches", m, accepted)
        if self.one_micro_batch and m != 1:
            return ConfigError("num_micro_batches", m, "expected 1: every micro-batch has its own update")
        return None


BUILDERS = {
    "gpipe": Builder(gpipe),
    "one_f_one_b": Builder(one_f_one_b),
    "interleaved": Builder(interleaved, chunks=2, any_chunks=True, buffer_size=lambda shape: max(2, shape.num_stages)),
    "two_bw": Builder(two_bw, full_batches=True),
    "pipedream": Builder(pipedream, one_micro_batch=True),
    "wpipe": Builder(
        wpipe,
        chunks=2,
        full_batches=True,
        buffer_size=lambda shape: max(2, shape.num_micro_batches),
        runs_in_processes=False,
    ),
}
ALIASES = {"1f1b": "one_f_one_b", "2bw": "two_bw"}


def canonical_name(name: str) -> str:
    """The builder's name that ``name`` or its alias stands for. Raises ConfigError."""
    known = ALIASES.get(name, name)
    require(known in BUILDERS, "schedule", name, f"expected one of {', '.join((*BUILDERS, *ALIASES))}")
    return known


def stage_actions(name: str, shape: Shape, stage: int) -> Iterator[Action]:
    """One stage's list, an action at a time: what a process needs of a schedule too long to keep."""
    return connect(shape, stage, BUILDERS[name].actions(shape, stage))


def build(
    name: str,
    num_stages: int,
    num_micro_batches: int,
    num_batches: int,
    num_chunks: int | None = None,
    first_batch: int = 0,
) -> Schedule:
    """The schedule called ``name``. Raises ConfigError for a shape that it cannot have.

    num_chunks: of ``interleaved``; None takes the builder's own number. first_batch: where a resumed run starts.
    A batch is what one update is made of, so ``pipedream`` comes out with num_micro_batches * num_batches batches of
    one micro-batch each.
    """
    name = canonical_name(name)
    builder = BUILDERS[name]
    shape = Shape(
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_batches=num_batches,
        num_chunks=builder.chunks_of(num_chunks),
        first_batch=first_batch,
    )
    if builder.one_micro_batch:
        shape = replace(shape, num_micro_batches=1, num_batches=num_batches * num_micro_batches)
    unmet = builder.unmet(shape)
    if unmet:
        raise unmet
    return assemble(name, shape, builder.actions, builder.buffer_size(shape))


def assemble(
    name: str, shape: Shape, actions: Callable[[Shape, int], Iterator[Action]], buffer_size: int = 2
) -> Schedule:
    """The schedule of any generator of FORWARD, BACKWARD and UPDATE: the way to try one of your own."""
    stages = tuple(tuple(connect(shape, stage, actions(shape, stage))) for stage in range(shape.num_stages))
    return Schedule(**vars(shape), name=name, stages=stages, buffer_size=buffer_size)
