"""Real processes over gloo for tests: many checks for one launch, since starting the ranks is what takes time."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from asyncpp.config import Config
from asyncpp.model.init import initial_weights
from asyncpp.pipeline.mesh import Mesh, Position
from asyncpp.trainer.compiling import compile_ahead
from asyncpp.trainer.launch import PRELOAD
from asyncpp.trainer.processes import build_runtime


def on_ranks(num_ranks: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 300.0) -> list[Any]:
    """``function(rank, *arguments)`` in a process for every rank, connected; what each returns, in order of rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, "distributed.ranks"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=_main, args=(rank, num_ranks, store.port, theirs, function, arguments))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        results = []
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(timeout_s), f"rank {rank} gave no answer"
            ok, result = pipe.recv()
            assert ok, result
            results.append(result)
        return results
    finally:
        for process in processes:
            process.kill()
            process.join()


def _main(rank: int, num_ranks: int, port: int, pipe: Any, function: Callable[..., Any], arguments: Any) -> None:
    try:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60))
        pipe.send((True, function(rank, *arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    pipe.poll(60.0)  # leave together: a rank that has gone is an error to the others
    os._exit(0)


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
    dtype = getattr(torch, config.trainer.dtype)

    def read(batch: int, micro_batch: int) -> Tensor:
        share = windows[batch].chunk(position.data_parallel)[position.replica]
        return share.chunk(config.trainer.num_micro_batches)[micro_batch]

    def weights_of(infos: Any) -> list[Tensor]:
        return [weight.to(dtype) for weight in initial_weights(config.model, config.seed, infos)]

    runtime = build_runtime(config, mesh, weights_of, read, validation)
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
