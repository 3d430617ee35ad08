"""What a rank does in the tests: many checks for one launch, since starting the ranks is what takes time."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncpp.config import Config
from asyncpp.pipeline.mesh import Mesh, Position
from asyncpp.trainer.compiling import compile_ahead
from asyncpp.trainer.processes import build_runtime
from common.ranks import on_ranks as on_ranks


@dataclass
class Outcome:
    """losses, norms: of every batch (rank 0). validation: after every batch. weights: newest, by canonical position."""

    losses: list[float]
    grad_norms: list[float]
    staleness: list[int]
    validation: list[dict[str, float]]
    weights: dict[int, Tensor]
    measurements: dict[str, float]


def train_pipeline(mesh: Mesh, config: Config, windows: Tensor, validation: Tensor) -> Outcome:
    """One rank of ``config``'s pipeline on ``windows``, int64 (num_steps, batch_size, sequence_length + 1)."""
    position = mesh.position

    def read(batch: int, micro_batch: int) -> Tensor:
        share = windows[batch].chunk(position.data_parallel)[position.replica]
        return share.chunk(config.trainer.num_micro_batches)[micro_batch]

    runtime = build_runtime(config, mesh, read, validation)
    compile_ahead(config, runtime.parts, validation)
    mesh.meet(300.0)
    records, losses = [], []
    for record in runtime.train():
        records += [record] if record is not None else []
        losses.append(runtime.validation_losses())
    return Outcome(
        [record.loss for record in records],
        [record.update.grad_norm for record in records],
        [record.update.staleness_updates for record in records],
        losses,
        {
            index: weight
            for part in runtime.parts
            for index, weight in zip(part.state.indices, part.state.versions.current, strict=True)
        },
        runtime.measurements(),
    )


def train_many(rank: int, configs: list[Config], windows: Tensor, validation: Tensor) -> list[Outcome]:
    """Pipelines of one shape, one after the other."""
    pipeline = configs[0].pipeline
    mesh = Mesh(Position(rank, pipeline.num_stages, pipeline.data_parallel), timeout_s=30.0)
    return [train_pipeline(mesh, config, windows, validation) for config in configs]
