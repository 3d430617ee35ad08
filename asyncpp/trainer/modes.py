"""The three ways in which a run trains: simulated here, on ranks that it starts, or as one of ranks that are given."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from asyncpp.data.prefetch import Prefetcher
from asyncpp.distributed import Place
from asyncpp.pipeline.mesh import Position
from asyncpp.trainer.data import open_data
from asyncpp.trainer.launch import start_ranks
from asyncpp.trainer.loop import train
from asyncpp.trainer.rank import train_rank
from asyncpp.trainer.saving import Saver, Start, load
from asyncpp.trainer.setup import build_lr_factor, build_simulator, prepare_torch
from asyncpp.trainer.simulated import Simulated
from asyncpp.trainer.sinks import sinks_of
from asyncpp.trainer.stop import say_so, stop_requests

if TYPE_CHECKING:
    from asyncpp.config import Config

STORE_TIMEOUT_S = 1800.0  # ranks that another program started wait so long for rank 0, which may prepare the data


def train_run(config: Config, folder: Path, start: Start, place: Place | None) -> dict[str, float]:
    """Train ``config`` from ``start`` on and return what the loop does. Rank 0 calls it, or the only process.

    place: of this process, where another program has started the ranks. Raises as the loop does, and RankFailed.
    """
    if config.pipeline.is_simulated:
        return train_simulated(config, folder, start)
    if place is None:
        return start_ranks(config, folder, start)
    return train_given_rank(config, folder, start, place)


def train_simulated(config: Config, folder: Path, start: Start) -> dict[str, float]:
    """All parts of the model in this process."""
    trainer, device = config.trainer, torch.device(config.trainer.device)
    prepare_torch(config)
    batches, validation = open_data(config.data, trainer.batch_size, config.seed)
    with stop_requests(say_so) as stop, Saver(config, folder, start) as saver:
        pipeline = Simulated(
            build_simulator(config, start.last_norms.get(start.step - 1)),
            Prefetcher(batches.batch, range(start.step, trainer.num_steps), device),
            build_lr_factor(config),
            torch.from_numpy(validation).to(device),
            trainer.eval_batch_size,
            trainer.probe_every,
            stop,
            saver.before_update,
        )
        load(config, pipeline.states, start)
        with sinks_of(config, folder, start) as sinks:
            return train(config, pipeline, sinks, saver, start)


def train_given_rank(config: Config, folder: Path, start: Start | None, place: Place) -> dict[str, float]:
    """This process is one of the ranks. start: known to rank 0, which tells the others."""
    timeout = timedelta(seconds=STORE_TIMEOUT_S)
    store = dist.TCPStore(place.address, place.port, place.num_ranks, _hosts_store(place), timeout)
    position = Position(place.rank, config.pipeline.num_stages, config.pipeline.data_parallel)
    key = f"{config.hash()}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if start is not None:
        store.set(key, start.to_json())
    else:
        start = Start.from_json(store.get(key).decode())
    with stop_requests(say_so if place.rank == 0 else lambda: None) as stop:
        return train_rank(config, position, store, place.local_rank, folder, start, stop)


def _hosts_store(place: Place) -> bool:
    """torchrun's agent has a store at the address already."""
    return place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
