"""What every rank tells every other of a batch, as one row of fp64 numbers, and what the rows say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from asyncpp.model.auxiliary import load_metrics
from asyncpp.pipeline.clipping import Clipping, Norms
from asyncpp.pipeline.mesh import Position
from asyncpp.pipeline.record import BatchRecord, update_record
from asyncpp.pipeline.timers import TIMERS


@dataclass(frozen=True)
class PartColumns:
    """What of a row is about one part. indices: of its parameters. num_loads: its mixture layers' experts together."""

    indices: Sequence[int]
    num_loads: int


@dataclass(frozen=True)
class RankReport:
    """What a rank tells of a batch; lists are by chunk.

    stop: it was asked to stop. loss: of this replica's share of the batch, 0 where the last part is elsewhere.
    timers: seconds since the last report, in the order of TIMERS. loads: of experts, flat.
    """

    stop: bool
    loss: float
    staleness: list[float]
    timers: list[float]
    norms: list[dict[int, float]]
    loads: list[list[float]]


@dataclass
class Rows:
    """How a rank's report is laid out in a row. parts: every part of the model, in its order."""

    position: Position
    parts: Sequence[PartColumns]
    num_experts: int
    length: int = field(init=False)

    def __post_init__(self) -> None:
        self.length = max(
            2  # stop and loss
            + self.num_chunks
            + len(TIMERS)
            + sum(len(part.indices) + part.num_loads for part in self._parts_of(stage))
            for stage in range(self.position.num_stages)
        )

    @property
    def num_chunks(self) -> int:
        return len(self.parts) // self.position.num_stages

    def _parts_of(self, stage: int) -> list[PartColumns]:
        return list(self.parts[stage :: self.position.num_stages])

    def pack(self, report: RankReport) -> Tensor:
        """float64 (length), on the CPU, padded with zeros."""
        numbers = [float(report.stop), report.loss, *report.staleness, *report.timers]
        for norms, loads in zip(report.norms, report.loads, strict=True):
            numbers += [*norms.values(), *loads]
        numbers += [0.0] * (self.length - len(numbers))
        return torch.tensor(numbers, dtype=torch.float64)

    def unpack(self, rank: int, row: Tensor) -> RankReport:
        numbers = iter(row.tolist())

        def take(count: int) -> list[float]:
            return [next(numbers) for _ in range(count)]

        stop, loss, staleness, timers = next(numbers) > 0.0, next(numbers), take(self.num_chunks), take(len(TIMERS))
        norms, loads = [], []
        for part in self._parts_of(rank % self.position.num_stages):
            norms.append(dict(zip(part.indices, take(len(part.indices)), strict=True)))
            loads.append(take(part.num_loads))
        return RankReport(stop, loss, staleness, timers, norms, loads)


@dataclass(frozen=True)
class BatchReport:
    """The reports of all ranks on one batch."""

    batch: int
    by_rank: list[RankReport]
    position: Position
    num_experts: int

    @property
    def stop(self) -> bool:
        """Whether any rank was asked to stop."""
        return any(report.stop for report in self.by_rank)

    def norms(self) -> Norms:
        """Of all parameters. Replicas agree; so do the two copies of a tied one."""
        pipeline = self.by_rank[: self.position.num_stages]
        return {index: norm for report in pipeline for norms in report.norms for index, norm in norms.items()}

    def record(self, clipping: Clipping, previous: Norms | None, lr_factor: float) -> BatchRecord:
        """previous: the norms one batch before."""
        whole = self.norms()
        known = {self.batch: whole, self.batch - 1: previous}
        num_stages = self.position.num_stages
        by_part = [norms for report in self.by_rank[:num_stages] for norms in report.norms]
        decisions = [clipping.decide(self.batch, own, known.get) for own in by_part]
        staleness = int(max(max(report.staleness) for report in self.by_rank))
        last_stages = self.by_rank[num_stages - 1 :: num_stages]
        loss = sum(report.loss for report in last_stages) / self.position.data_parallel
        update = update_record(whole, decisions, staleness)
        return BatchRecord(loss, update, lr_factor, self._expert_metrics() | self._timers())

    def _expert_metrics(self) -> dict[str, float]:
        num_stages = self.position.num_stages
        num_chunks = len(self.by_rank[0].loads)
        layers: list[Tensor] = []
        for chunk in range(num_chunks):
            for stage in range(num_stages):
                loads = [
                    torch.tensor(report.loads[chunk], dtype=torch.int64) for report in self.by_rank[stage::num_stages]
                ]
                if loads[0].numel():
                    layers.append(torch.stack(loads).sum(0).view(-1, self.num_experts))
        return load_metrics(torch.cat(layers)) if layers else {}

    def _timers(self) -> dict[str, float]:
        return {
            f"time/rank{rank}_{name}": seconds
            for rank, report in enumerate(self.by_rank)
            for name, seconds in zip(TIMERS, report.timers, strict=True)
        }
