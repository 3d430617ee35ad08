"""Real processes for benchmarks and tests: one function on every rank, what each returns, and a runtime to drive."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from asyncpp.config import Config, from_hydra
from asyncpp.hydra_command import compose_overrides
from asyncpp.pipeline.mesh import Mesh
from asyncpp.pipeline.runtime import Runtime
from asyncpp.trainer.launch import PRELOAD
from asyncpp.trainer.processes import build_runtime

TIMEOUT_S = 300.0


def on_ranks(num_ranks: int, function: Callable[..., Any], *arguments: Any, backend: str = "gloo") -> list[Any]:
    """``function(rank, *arguments)`` in a connected process for every rank; what each returns, in order of rank.

    backend: of torch.distributed. Raises RuntimeError with a rank's traceback.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_main, args=(rank, num_ranks, store.port, backend, theirs, function, arguments)
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        reports = [_report(rank, pipe) for rank, pipe in enumerate(pipes)]
    finally:
        for process in processes:
            process.kill()
            process.join()
    for failed, report in reports:
        if failed:
            raise RuntimeError(report)
    return [report for _, report in reports]


def _report(rank: int, pipe: Any) -> tuple[bool, Any]:
    if not pipe.poll(TIMEOUT_S):
        return True, f"rank {rank} gave no answer in {TIMEOUT_S:g} s"
    return pipe.recv()


def _main(
    rank: int, num_ranks: int, port: int, backend: str, pipe: Any, function: Callable[..., Any], arguments: Any
) -> None:
    try:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
        pipe.send((False, function(rank, *arguments)))
    except BaseException:
        pipe.send((True, traceback.format_exc()))
    pipe.poll(TIMEOUT_S)  # leave together: a rank that has gone is an error to the others
    os._exit(0)


def config_of(*overrides: str) -> Config:
    return from_hydra(compose_overrides(list(overrides)))


def tokens(num_rows: int, config: Config) -> Tensor:
    """int64 (num_rows, sequence_length + 1), random, the same everywhere."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(config.model.vocab_size, (num_rows, config.data.sequence_length + 1), generator=generator)


def runtime_of(config: Config, mesh: Mesh) -> Runtime:
    """This rank of ``config``'s pipeline, which gets the same tokens in every batch."""
    device = torch.device(config.trainer.device)
    windows = tokens(config.trainer.batch_size, config).to(device).chunk(config.trainer.num_micro_batches)
    return build_runtime(
        config,
        mesh,
        lambda batch, micro_batch: windows[micro_batch],
        tokens(1, config).to(device),
    )
