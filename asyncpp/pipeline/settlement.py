"""From a batch's gradients on every rank to one decision about its update, beside the computation of the next batch.

    reduce    mean over the replicas, sum of a tied weight's two ends, norm of every parameter
    gather    every rank's report to every rank; a correction of the gradients, which asks for a second round

Each runs in a thread of its own, batch after batch, so collectives have one order on all ranks. A batch's gradients
belong to the reduce thread, then to the gather thread, which may replace them by corrected ones, then to the update.
The update waits for corrected gradients where a correction of gradients is set, and for norms only where its way of
clipping needs them (clipping.py). The two rounds of a correction are those of the simulator's update; only the
simulator has fresh gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpp.pipeline.clipping import Clipping, Decision, Norms
from asyncpp.pipeline.interpreter import Batch
from asyncpp.pipeline.mesh import Mesh
from asyncpp.pipeline.part import Part
from asyncpp.pipeline.report import BatchReport, RankReport, Rows
from asyncpp.pipeline.timers import Timers
from asyncpp.pipeline.update import correct, parameter_norms


@dataclass
class _Reduced:
    """By chunk: gradients aligned with the chunk's weights, and the norms of those."""

    gradients: list[list[Tensor]]
    norms: list[dict[int, float]]


class Settler:
    """tied_index: canonical position of the weight that the first and the last part both hold, if there is one.

    stop: asked at every batch whether this rank is to stop. last_norms: of the batch before the first one here, by its
    number, where this run goes on from a checkpoint.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        mesh: Mesh,
        rows: Rows,
        clipping: Clipping,
        timers: Timers,
        tied_index: int | None,
        stop: Callable[[], bool],
        last_norms: dict[int, Norms],
    ) -> None:
        self._parts = parts
        self._mesh = mesh
        self._rows = rows
        self.clipping = clipping
        self._timers = timers
        self._tied_index = tied_index
        self._stop = stop
        self._last_norms = last_norms
        self._reducing = ThreadPoolExecutor(1, "reduce")
        self._gathering = ThreadPoolExecutor(1, "gather")
        self._reports: dict[int, Future[BatchReport]] = {}

    def __call__(self, batch: Batch) -> SettlementOfBatch:
        reduced = self._reducing.submit(self._reduce, batch)
        self._reports[batch.number] = self._gathering.submit(self._gather, batch, reduced)
        # No rank asks for an older one: updates lag behind backwards by a batch, stops by as many as there are stages.
        self._reports.pop(batch.number - self._mesh.position.num_stages - 3, None)
        return SettlementOfBatch(batch, reduced, self)

    def report(self, batch: int) -> BatchReport:
        """What all ranks told of ``batch``, or of one before it that is not forgotten yet. Waits."""
        return self._reports[batch].result()

    def whole_norms(self, batch: int) -> Norms | None:
        """Of all parameters; None for a batch before the first. Waits."""
        return self.report(batch).norms() if batch in self._reports else self._last_norms.get(batch)

    def asked_to_stop(self, batch: int) -> bool:
        """Whether a rank said so in its report on ``batch``; False for a batch before the first. Waits."""
        return batch in self._reports and self.report(batch).stop

    def decide(self, batch: int, own: Norms) -> Decision:
        return self.clipping.decide(batch, own, self.whole_norms)

    def wait_corrected(self, batch: int) -> None:
        """Until the gradients are final."""
        if any(part.state.correction.corrects_gradients for part in self._parts):
            self.report(batch)

    def close(self) -> None:
        """End the threads, when every batch's report is there."""
        self._reducing.shutdown()
        self._gathering.shutdown()

    @torch.no_grad()
    def _reduce(self, batch: Batch) -> _Reduced:
        by_chunk = [part.modules.by_position(batch.gradients[chunk]) for chunk, part in enumerate(self._parts)]
        batch.gradients.clear()
        self._mesh.average([gradient for gradients in by_chunk for gradient in gradients])
        self._sum_tied(by_chunk)
        return _Reduced(by_chunk, self._norms(by_chunk))

    def _sum_tied(self, by_chunk: list[list[Tensor]]) -> None:
        """Give both copies of a tied weight the sum of their gradients, the first part's plus the last one's."""
        held = [
            (gradients, part.state.indices.index(self._tied_index))
            for part, gradients in zip(self._parts, by_chunk, strict=True)
            if self._tied_index in part.state.indices
        ]
        if self._mesh.position.num_stages > 1:
            for gradients, place in held:
                gradients[place] = self._mesh.both_ends(gradients[place])
        elif len(held) == 2:  # the ends of the model are chunks of one stage
            (first, i), (last, j) = held
            first[i] = first[i] + last[j]
            last[j] = first[i].clone()

    def _norms(self, by_chunk: list[list[Tensor]]) -> list[dict[int, float]]:
        return [parameter_norms(part.state, owned) for part, owned in zip(self._parts, by_chunk, strict=True)]

    @torch.no_grad()
    def _gather(self, batch: Batch, future: Future[_Reduced]) -> BatchReport:
        reduced = future.result()
        timers = self._timers.take()
        report = self._exchange(batch, reduced.norms, timers)
        if any(part.state.correction.corrects_gradients for part in self._parts):
            whole = {batch.number: report.norms(), batch.number - 1: self.whole_norms(batch.number - 1)}
            for chunk, part in enumerate(self._parts):
                if not self.clipping.decide(batch.number, reduced.norms[chunk], whole.get).skipped:
                    reduced.gradients[chunk] = correct(part.state, reduced.gradients[chunk], batch.versions[chunk])
            reduced.norms = self._norms(reduced.gradients)
            report = self._exchange(batch, reduced.norms, timers)
        return report

    def _exchange(self, batch: Batch, norms: list[dict[int, float]], timers: list[float]) -> BatchReport:
        chunks = range(len(self._parts))
        loads = [
            batch.expert_loads[chunk].flatten().tolist() if chunk in batch.expert_loads else [] for chunk in chunks
        ]
        own = RankReport(
            stop=self._stop(),
            loss=sum(loss.item() for loss in batch.losses),
            staleness=[float(batch.number - batch.versions[chunk]) for chunk in chunks],
            timers=timers,
            norms=norms,
            loads=loads,
        )
        rows = self._mesh.gather(self._rows.pack(own), self._mesh.reports)
        by_rank = [self._rows.unpack(rank, row) for rank, row in enumerate(rows)]
        return BatchReport(batch.number, by_rank, self._mesh.position, self._rows.num_experts)


@dataclass
class SettlementOfBatch:
    """An asyncpp.pipeline.interpreter.Settlement."""

    batch: Batch
    reduced: Future[_Reduced]
    settler: Settler

    def gradients(self, chunk: int) -> list[Tensor]:
        self.settler.wait_corrected(self.batch.number)
        return self.reduced.result().gradients[chunk]

    def decision(self, chunk: int) -> Decision:
        self.settler.wait_corrected(self.batch.number)
        return self.settler.decide(self.batch.number, self.reduced.result().norms[chunk])
