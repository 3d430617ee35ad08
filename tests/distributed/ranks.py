"""What a rank does in the tests: many checks for one launch, since starting the ranks is what takes time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest import mock

import torch
from torch import Tensor, nn

from asyncpp.config import Config
from asyncpp.pipeline.mesh import Mesh, Position
from asyncpp.pipeline.record import BatchRecord
from asyncpp.records import TIME_PREFIX
from asyncpp.trainer.compiling import compile_ahead
from asyncpp.trainer.processes import build_runtime
from common.ranks import on_ranks as on_ranks


@dataclass
class Outcome:
    """records: of every batch (rank 0), without times. validation: after every batch.
    weights: newest, by canonical position.
    """

    records: list[BatchRecord]
    validation: list[dict[str, float]]
    weights: dict[int, Tensor]
    measurements: dict[str, float]

    @property
    def losses(self) -> list[float]:
        return [record.loss for record in self.records]


def without_times(record: BatchRecord) -> BatchRecord:
    metrics = {key: value for key, value in record.metrics.items() if not key.startswith(TIME_PREFIX)}
    return replace(record, metrics=metrics)


@contextmanager
def infinite_gradient(token: int) -> Iterator[None]:
    """Meanwhile the embedding's gradient is infinite in a micro-batch that reads ``token``: the first part's alone."""
    honest = nn.Embedding.forward

    def planted(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
        hidden = honest(embedding, tokens)
        if hidden.requires_grad and (tokens == token).any():
            hidden.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
        return hidden

    with mock.patch.object(nn.Embedding, "forward", planted):
        yield


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
        records += [without_times(record)] if record is not None else []
        losses.append(runtime.validation_losses())
    return Outcome(
        records,
        losses,
        {
            index: weight
            for part in runtime.parts
            for index, weight in zip(part.state.indices, part.state.versions.current, strict=True)
        },
        runtime.measurements(),
    )


def train_many(
    rank: int, configs: list[Config], windows: Tensor, validation: Tensor, bad_token: int | None = None
) -> list[Outcome]:
    """Pipelines of one shape, one after the other. bad_token: see infinite_gradient."""
    pipeline = configs[0].pipeline
    mesh = Mesh(Position(rank, pipeline.num_stages, pipeline.data_parallel), timeout_s=30.0)
    with nullcontext() if bad_token is None else infinite_gradient(bad_token):
        return [train_pipeline(mesh, config, windows, validation) for config in configs]
