"""Runs the action list of one stage: what each action does to the stage's tensors.

    RECV → mailbox → FORWARD → mailbox → SEND          activations, down the parts
    RECV → mailbox → BACKWARD → mailbox → SEND         gradients, up the parts
    the last BACKWARD of a batch → Settlement → UPDATE

Which weights an action uses is written in the action; the interpreter measures it again from the version that it read.
How a tensor comes from or to another stage is the business of ``links``, how a batch's gradients become a decision
that of ``settle``: so the same interpreter runs in a process of its own or beside the other stages of a test.

A stage has a part of the model for each of its chunks: ``parts[chunk]``, which is number
``parts[chunk].state.number`` in the model. Messages are addressed to parts; everything else here goes by chunk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from asyncpp.model.auxiliary import Auxiliary
from asyncpp.pipeline.clipping import Decision
from asyncpp.pipeline.compute import Compute
from asyncpp.pipeline.part import Part
from asyncpp.pipeline.timers import Timers
from asyncpp.pipeline.update import step
from asyncpp.schedule.action import ACTIVATION, BACKWARD, FORWARD, GRADIENT, RECV, SEND, UPDATE, Action, Payload

_TIMER_OF = {FORWARD: "compute_s", BACKWARD: "compute_s", RECV: "wait_receive_s", SEND: "send_s", UPDATE: "update_s"}


class Links(Protocol):
    """A stage's way to the others. Messages of one payload from one peer come in the order in which they were sent."""

    def send(self, payload: Payload, peer: int, tensor: Tensor) -> None: ...
    def receive(self, payload: Payload, peer: int) -> Tensor: ...


@dataclass
class Batch:
    """A batch of which this stage has begun the backwards, until its update.

    gradients: sums over the micro-batches so far, a list of leaves a chunk. losses: 0-dim, on the last part.
    expert_loads: sums as well, int64 (mixture layers, experts). versions: that were read, by chunk.
    updated: the chunks that have made their update.
    """

    number: int
    gradients: dict[int, list[Tensor]] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    expert_loads: dict[int, Tensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    num_backwards: int = 0
    updated: set[int] = field(default_factory=set)


class Settlement(Protocol):
    """A batch's gradients on their way from the last backward to the update."""

    @property
    def batch(self) -> Batch: ...

    def gradients(self, chunk: int) -> list[Tensor]:
        """Aligned with the weights of the chunk, final. Waits for what is not there yet."""
        ...

    def decision(self, chunk: int) -> Decision:
        """What the norms decide for the chunk. Waits for what is not there yet."""
        ...


@dataclass
class _Saved:
    """A forward that waits for its backward."""

    version: int
    inputs: Tensor
    outputs: Tensor | None
    auxiliary: Auxiliary


class Interpreter:
    """parts: of this stage, by chunk. read: the tokens of (batch, micro-batch), int64 (rows, sequence_length + 1).
    Every stage reads those itself, so nothing about labels and documents is sent.

    settle: takes a batch whose backwards are all done. lr_factor: what lr_schedule multiplies a batch's rates by.
    recompute: keep a forward's input only, and run it again before its backward.
    exchange: completes the weights of a new version by those that other replicas have updated.
    started_s: when the last action began, by time.perf_counter(); an UPDATE begins when its norm is there.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        num_micro_batches: int,
        links: Links,
        read: Callable[[int, int], Tensor],
        settle: Callable[[Batch], Settlement],
        lr_factor: Callable[[int], float],
        compute: Compute,
        recompute: bool,
        timers: Timers,
        exchange: Callable[[Sequence[Tensor], Sequence[int] | None], None],
    ) -> None:
        self.parts = parts
        self._num_micro_batches = num_micro_batches
        self._links = links
        self._read = read
        self._settle = settle
        self._lr_factor = lr_factor
        self._compute = compute
        self._recompute = recompute
        self._timers = timers
        self.started_s = time.perf_counter()
        self._exchange = exchange
        self._saved: dict[tuple[int, int, int], _Saved] = {}
        self._mailbox: dict[tuple[Payload, int, int, int], Tensor] = {}  # for (payload, batch, micro-batch, part)
        self._batches: dict[int, Batch] = {}
        self._settlements: dict[int, Settlement] = {}
        self._do = {
            FORWARD: self._forward,
            BACKWARD: self._backward,
            SEND: self._send,
            RECV: self._receive,
            UPDATE: self._update,
        }

    def run(self, action: Action) -> None:
        """Do ``action``. Raises what the links and the settlement raise."""
        self.started_s = time.perf_counter()
        self._do[action.kind](action)
        self._timers.add(_TIMER_OF[action.kind], time.perf_counter() - self.started_s)

    def _part_of(self, action: Action) -> int:
        """The place in the model of the part that ``action`` is about."""
        return self.parts[action.chunk].state.number

    def _receive(self, action: Action) -> None:
        payload = action.payload
        assert payload is not None
        key = payload, action.batch, action.micro_batch, self._part_of(action)
        self._mailbox[key] = self._links.receive(payload, action.peer)

    def _send(self, action: Action) -> None:
        payload = action.payload
        assert payload is not None
        receiver = self._part_of(action) + (1 if payload is ACTIVATION else -1)
        tensor = self._mailbox.pop((payload, action.batch, action.micro_batch, receiver))
        self._links.send(payload, action.peer, tensor)

    def _forward(self, action: Action) -> None:
        part, number = self.parts[action.chunk], self._part_of(action)
        if part.is_first:
            inputs = self._read(action.batch, action.micro_batch)[:, :-1]
        else:
            inputs = self._mailbox.pop((ACTIVATION, action.batch, action.micro_batch, number)).requires_grad_()
        saved = _Saved(action.version, inputs, None, Auxiliary())
        if self._recompute and not part.is_last:
            with torch.no_grad():
                outputs = self._outputs(part, action, saved, None)
        else:
            outputs = saved.outputs = self._outputs(part, action, saved, saved.auxiliary)
        if not part.is_last:
            self._mailbox[ACTIVATION, action.batch, action.micro_batch, number + 1] = outputs.detach()
        self._saved[action.batch, action.micro_batch, action.chunk] = saved

    def _outputs(self, part: Part, action: Action, saved: _Saved, auxiliary: Auxiliary | None) -> Tensor:
        module = part.modules.at(saved.version)
        reads = self._compute.reads_tokens(part.is_last)
        windows = self._read(action.batch, action.micro_batch) if reads else None
        return self._compute.call_part(module, saved.inputs, windows, is_last=part.is_last, auxiliary=auxiliary)

    def _backward(self, action: Action) -> None:
        part, number = self.parts[action.chunk], self._part_of(action)
        saved = self._saved.pop((action.batch, action.micro_batch, action.chunk))
        outputs = saved.outputs
        if outputs is None:
            outputs = self._outputs(part, action, saved, saved.auxiliary)
        batch = self._batches.setdefault(action.batch, Batch(action.batch))
        roots, root_gradients = self._roots(part, action, outputs, saved.auxiliary, batch)
        leaves: list[Tensor] = [*part.modules.leaves(saved.version)]
        if not part.is_first:
            leaves.append(saved.inputs)
        gradients = list(torch.autograd.grad(roots, leaves, root_gradients))
        if not part.is_first:
            self._mailbox[GRADIENT, action.batch, action.micro_batch, number - 1] = gradients.pop()
        self._add(batch, action.chunk, saved, gradients)
        if batch.num_backwards == self._num_micro_batches * len(self.parts):
            self._settlements[action.batch] = self._settle(self._batches.pop(action.batch))

    def _roots(
        self, part: Part, action: Action, outputs: Tensor, auxiliary: Auxiliary, batch: Batch
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """What is differentiated, and the gradients that come from behind: of the mean over the micro-batches."""
        m = self._num_micro_batches
        if part.is_last:
            loss = outputs / m
            batch.losses.append(loss.detach())
            return [loss if auxiliary.loss is None else loss + auxiliary.loss / m], [None]
        gradient = self._mailbox.pop((GRADIENT, action.batch, action.micro_batch, self._part_of(action)))
        if auxiliary.loss is None:
            return [outputs], [gradient]
        return [outputs, auxiliary.loss / m], [gradient, None]

    def _add(self, batch: Batch, chunk: int, saved: _Saved, gradients: list[Tensor]) -> None:
        """Sum over the micro-batches, in their order."""
        if chunk in batch.gradients:
            torch._foreach_add_(batch.gradients[chunk], gradients)
        else:
            batch.gradients[chunk] = gradients
            batch.versions[chunk] = saved.version
        if batch.versions[chunk] != saved.version:
            raise RuntimeError(
                f"batch {batch.number} reads weight versions {batch.versions[chunk]} and {saved.version}"
            )
        load = saved.auxiliary.expert_load
        if load is not None:
            batch.expert_loads[chunk] = batch.expert_loads[chunk] + load if chunk in batch.expert_loads else load
        batch.num_backwards += 1

    def _update(self, action: Action) -> None:
        state, settlement = self.parts[action.chunk].state, self._settlements[action.batch]
        decision = settlement.decision(action.chunk)
        gradients = settlement.gradients(action.chunk)
        waited_from_s, self.started_s = self.started_s, time.perf_counter()
        self._timers.add("wait_norm_s", self.started_s - waited_from_s)
        read, expected = settlement.batch.versions[action.chunk], state.version_for(action.batch)
        if read != expected:
            raise RuntimeError(
                f"part {state.number} read weight version {read} for batch {action.batch}, not {expected}"
            )
        staleness = state.versions.newest - read
        step(state, gradients, decision, action.batch, staleness, self._lr_factor(action.batch))
        self._exchange(state.versions.current, state.owners)
        settlement.batch.updated.add(action.chunk)
        if len(settlement.batch.updated) == len(self.parts):
            del self._settlements[action.batch]
