"""What one process of a real pipeline does, whoever started it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from asyncpp.data.batches import Batches
from asyncpp.pipeline.mesh import Mesh, Position, lost
from asyncpp.pipeline.runtime import Watcher
from asyncpp.pipeline.trace import Trace
from asyncpp.trainer.compiling import compile_ahead
from asyncpp.trainer.data import open_data
from asyncpp.trainer.loop import train
from asyncpp.trainer.processes import ReadTokens, build_runtime
from asyncpp.trainer.saving import Saver, Start, load
from asyncpp.trainer.setup import prepare_torch
from asyncpp.trainer.sinks import sinks_of

if TYPE_CHECKING:
    from asyncpp.config import Config


def train_rank(
    config: Config,
    position: Position,
    store: dist.Store,
    local_rank: int,
    folder: Path,
    start: Start,
    stop: Callable[[], bool],
    watchers: Sequence[Watcher] = (),
) -> dict[str, float]:
    """Train as rank ``position.rank``, from the first connection to the last, and return what the loop does.

    store: where the ranks find each other. folder: of the run. start: the same on all ranks. stop: whether this rank
    was asked to stop; all do, then.
    Raises TrainingFailed, Stopped, and ActionFailed where this rank or another can't go on.
    """
    device = _device(config, local_rank)
    prepare_torch(config)
    mesh = _connect(config, position, store, device)
    num_traced = config.pipeline.trace_batches
    traces = [Trace(config.trainer.num_steps - num_traced)] if num_traced > 0 else []
    result = _train(config, mesh, device, folder, start, stop, [*watchers, *traces])
    for trace in traces:
        trace.write(folder, position.rank)
    mesh.meet(config.pipeline.start_timeout_s)
    dist.destroy_process_group()
    return result


def _train(
    config: Config,
    mesh: Mesh,
    device: torch.device,
    folder: Path,
    start: Start,
    stop: Callable[[], bool],
    watchers: Sequence[Watcher],
) -> dict[str, float]:
    """What is between the first message of the ranks and the last."""
    rank = mesh.position.rank
    batches, held_out = open_data(config.data, config.trainer.batch_size, config.seed)
    validation = torch.from_numpy(held_out).to(device)
    read = _reader(batches, config.trainer.num_micro_batches, mesh.position, device)
    with Saver(config, folder, start, rank) as saver:
        runtime = build_runtime(config, mesh, read, validation, start, [*watchers, saver], stop)
        load(config, runtime.states, start)
        compile_ahead(config, runtime.parts, validation)
        mesh.meet(config.pipeline.start_timeout_s)
        with sinks_of(config, folder, start, rank) as sinks:
            return train(config, runtime, sinks, saver, start)


def _reader(batches: Batches, num_micro_batches: int, position: Position, device: torch.device) -> ReadTokens:
    """What gives this replica's rows of a micro-batch, on ``device``."""

    def read(batch: int, micro_batch: int) -> Tensor:
        windows = batches.micro_batch(batch, micro_batch, num_micro_batches, position.replica, position.data_parallel)
        return torch.from_numpy(windows).to(device)

    return read


def _device(config: Config, local_rank: int) -> torch.device:
    """A GPU of its own for every rank of a machine, unless the configuration names one for all."""
    device = torch.device(config.trainer.device)
    if device.type != "cuda":
        return device
    if device.index is None:
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _connect(config: Config, position: Position, store: dist.Store, device: torch.device) -> Mesh:
    """Raises PeerLost where another rank does not come."""
    with lost("another rank"):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=position.rank,
            world_size=position.num_ranks,
            timeout=timedelta(seconds=config.pipeline.start_timeout_s),
        )
        return Mesh(position, config.pipeline.timeout_s)
