"""A stage of the pipeline in a process of its own, over torch.distributed.

Every rank walks the schedule's list for its stage, which is made an action at a time. Ranks meet in the messages
between neighbours and in the reports on a batch (settlement.py), never at a barrier. Rank 0 keeps the books.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from asyncpp.pipeline.clipping import Norms
from asyncpp.pipeline.evaluation import Evaluation
from asyncpp.pipeline.interpreter import Interpreter
from asyncpp.pipeline.mesh import Mesh, PeerLost, Position
from asyncpp.pipeline.p2p import PeerLinks
from asyncpp.pipeline.part import Part, PartState
from asyncpp.pipeline.record import BatchRecord
from asyncpp.pipeline.segments import Segment
from asyncpp.pipeline.settlement import Settler
from asyncpp.schedule.action import NONE, UPDATE, Action
from asyncpp.schedule.builders import stage_actions


class Watcher(Protocol):
    """Is told of every action, before and after it. Times are of time.perf_counter(); an UPDATE starts when it need
    not wait for the norm any more."""

    def begin(self, action: Action) -> None: ...
    def end(self, action: Action, start_s: float, end_s: float) -> None: ...


class ActionFailed(RuntimeError):
    """An action that could not be done: where, which, and why."""

    def __init__(self, position: Position, action: Action, cause: Exception) -> None:
        reason = str(cause) if isinstance(cause, PeerLost) else f"{type(cause).__name__}: {cause}"
        super().__init__(f"{position} in {spell(action)}: {reason}")
        self.cause = cause


def spell(action: Action) -> str:
    """``B3.1 (backward of batch 3, micro-batch 1)``."""
    micro_batch = f", micro-batch {action.micro_batch}" if action.micro_batch != NONE else ""
    return f"{action} ({action.kind.name.lower()} of batch {action.batch}{micro_batch})"


class Runtime:
    """What the training loop drives, on every rank alike.

    num_tensors: parameters of the whole model, each a tensor.
    """

    def __init__(
        self,
        mesh: Mesh,
        segments: Sequence[Segment],
        interpreter: Interpreter,
        links: PeerLinks,
        settler: Settler,
        evaluation: Evaluation,
        watchers: Sequence[Watcher],
        lr_factor: Callable[[int], float],
        num_tensors: int,
    ) -> None:
        self._mesh = mesh
        self._segments = segments
        self._interpreter = interpreter
        self._links = links
        self._settler = settler
        self._evaluation = evaluation
        self._watchers = watchers
        self._lr_factor = lr_factor
        self._num_tensors = num_tensors

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of the model that this rank has."""
        return self._interpreter.parts

    @property
    def states(self) -> Sequence[PartState]:
        """Of the parts of the model that this rank has."""
        return [part.state for part in self.parts]

    def train(self) -> Iterator[BatchRecord | None]:
        """Run every batch, and yield when this stage has made its update: the record on rank 0, None elsewhere.

        A rank that has come so far holds the same newest version as every other that has.
        Raises ActionFailed, also for a staleness that is not the schedule's.
        """
        num_updated = 0
        for schedule, shape in self._segments:
            for action in stage_actions(schedule, shape, self._mesh.position.stage):
                self._run(action)
                num_updated += action.kind is UPDATE
                if action.kind is UPDATE and num_updated % shape.num_chunks == 0:
                    yield self._record(action.batch) if self._mesh.position.rank == 0 else None
        self._links.finish()
        self._settler.close()

    def last_norms(self, num_updates: int) -> Norms:
        """Of all parameters' gradients in the last of ``num_updates`` batches, where the next one is clipped by them.

        Waits for that batch's report.
        """
        norms = self._settler.whole_norms(num_updates - 1) if self._settler.clipping.asks_for_last else None
        return norms or {}

    def stops_after(self, num_updates: int) -> bool:
        """Whether all ranks stop after so many updates, because one of them was asked to; the same answer on all.

        It is read from a report that is there without waiting: of this batch, if its update has waited for it, or of
        one so long ago that no rank lags behind it.
        """
        lag = 0 if self._settler.clipping.waits_for_all else self._mesh.position.num_stages + 1
        return self._settler.asked_to_stop(num_updates - 1 - lag)

    def validation_losses(self) -> dict[str, float]:
        """On every rank, after the same number of updates; see Evaluation.losses."""
        return self._evaluation.losses()

    def measurements(self) -> dict[str, float]:
        """Numbers of elements, counted from the tensors of all ranks, on every rank: see Simulator.measurements.

        A weight that several ranks hold counts once, and of its state the mean over those.
        """
        counts = torch.stack(self._mesh.gather(_count_elements(self.states, self._num_tensors), self._mesh.control))
        sizes = counts[:, 0].amax(0)
        copies, optimizer, correction = counts[:, 1:].sum(0)
        size = int(sizes.sum().item())
        return {
            "num_parameters": size,
            "optimizer_state_copies": (optimizer / copies).sum().item() / size,
            "correction_state_copies": (correction / copies).sum().item() / size,
        }

    def _run(self, action: Action) -> None:
        for watcher in self._watchers:
            watcher.begin(action)
        try:
            self._interpreter.run(action)
        except Exception as error:
            raise ActionFailed(self._mesh.position, action, error) from error
        end_s = time.perf_counter()
        for watcher in self._watchers:
            watcher.end(action, self._interpreter.started_s, end_s)

    def _record(self, batch: int) -> BatchRecord:
        report = self._settler.report(batch)
        return report.record(self._settler.clipping, self._settler.whole_norms(batch - 1), self._lr_factor(batch))


def _count_elements(states: Sequence[PartState], num_tensors: int) -> Tensor:
    """float64 (4, num_tensors), on the CPU: of every weight in ``states``, by its canonical position, the number of
    elements, how many copies there are, and the elements of all those copies' optimizer and correction state."""
    counts = torch.zeros(4, num_tensors, dtype=torch.float64)
    sizes, copies, optimizer, correction = counts
    for state in states:
        for index, weight in zip(state.indices, state.versions.current, strict=True):
            sizes[index] = weight.numel()
            copies[index] += 1
        updated = state.own(state.indices)
        for group in state.optimizer.groups:
            for tensors in group.rule.state.values():
                for place, tensor in zip(group.indices, tensors, strict=True):
                    optimizer[updated[place]] += tensor.numel()
        for tensors in state.correction.state.values():
            for index, tensor in zip(updated, tensors, strict=True):
                correction[index] += tensor.numel()
    return counts
