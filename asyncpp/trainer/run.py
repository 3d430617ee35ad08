"""A run from its configuration to its summary: prepare the data, open the folder, train, say how it ended."""

from __future__ import annotations

import os
import statistics
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from asyncpp import records
from asyncpp.data.prefetch import Prefetcher
from asyncpp.distributed import Place, this_place
from asyncpp.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, require
from asyncpp.pipeline.mesh import Position
from asyncpp.pipeline.runtime import ActionFailed
from asyncpp.records import Status
from asyncpp.trainer.data import open_data, prepare_data
from asyncpp.trainer.launch import RankFailed, launch
from asyncpp.trainer.loop import TrainingFailed, train
from asyncpp.trainer.rank import STORE_TIMEOUT_S, train_rank
from asyncpp.trainer.saving import Saver, Start, find_start, load
from asyncpp.trainer.setup import build_simulator, prepare_torch
from asyncpp.trainer.simulated import Simulated
from asyncpp.trainer.sinks import sinks_of
from asyncpp.trainer.stop import Stopped, say_so, stop_requests

if TYPE_CHECKING:
    from asyncpp.config import Config


def run(config: Config) -> int:
    """Train ``config`` unless its run folder says that it is finished. Returns an exit code of asyncpp.errors.

    Where torchrun or Slurm has started several ranks, each of them comes here, and rank 0 keeps the books.
    """
    place = this_place()
    if place is not None:
        place.check(config.pipeline.num_processes)
    if config.trainer.device.startswith("cuda"):
        require(torch.cuda.is_available(), "trainer.device", config.trainer.device, "no GPU is visible here; use cpu")
    if place is not None and place.rank > 0:
        return _follow(config, place)
    for note in config.notes():
        print(f"note: {note}")
    folder = config.folder
    if records.is_finished(folder):
        print(f"finished before: {folder}")
        return EXIT_DONE
    records.require_writable(folder, "runs_dir", config.runs_dir)
    prepare_data(config)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with records.locked(folder):
            if records.is_finished(folder):  # by another process, while this one prepared the data
                print(f"finished before: {folder}")
                return EXIT_DONE
            return _train_in(folder, config, place)
    except records.RunIsLocked as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


def _train_in(folder: Path, config: Config, place: Place | None) -> int:
    (folder / records.SUMMARY_FILE).unlink(missing_ok=True)
    records.write_atomically(folder / records.CONFIG_FILE, config.to_yaml())
    environment = records.environment()
    records.write_json(folder / records.ENVIRONMENT_FILE, environment)
    summary = _identity(config) | {"commit": environment["commit"]}
    started_s = time.perf_counter()

    def close(status: Status, **more: Any) -> None:
        summary.update(more, status=status, duration_s=time.perf_counter() - started_s)
        records.write_json(folder / records.SUMMARY_FILE, summary)

    try:
        start = find_start(config, folder)
        summary["data_digest"] = start.data_digest
        result = _train(folder, config, place, start)
        close(Status.FINISHED, **result, staleness_updates=_steady_staleness(folder, config.trainer.num_steps))
    except (KeyboardInterrupt, Stopped) as reason:
        close(Status.INTERRUPTED)
        step = reason.step if isinstance(reason, Stopped) else None
        saved = "" if step is None else f" after {step} updates, which are saved"
        print(f"\ninterrupted{saved}; run the same command again to go on", file=sys.stderr)
        return _end(EXIT_INTERRUPTED, place)
    except ConfigError:
        (folder / records.SUMMARY_FILE).unlink(missing_ok=True)
        raise
    except (TrainingFailed, RankFailed, ActionFailed) as error:
        close(Status.FAILED, error=str(error))
        print(f"{getattr(error, 'details', '')}error: {error}", file=sys.stderr)
        return _end(EXIT_FAILED, place)
    except Exception as error:
        close(Status.FAILED, error=f"{type(error).__name__}: {error}")
        traceback.print_exc()
        return _end(EXIT_FAILED, place)
    print(f"val loss {summary['val_loss']:.4f} in {summary['duration_s']:.0f} s: {folder}")
    return EXIT_DONE


def _train(folder: Path, config: Config, place: Place | None, start: Start) -> dict[str, Any]:
    """Train and return what the summary says of the result."""
    if config.pipeline.is_simulated:
        result = _simulate(folder, config, start)
    elif place is None:
        result = launch(config, folder, start)
    else:
        result = _train_at(place, folder, config, start)
    tokens = config.trainer.num_steps * config.trainer.batch_size * config.data.sequence_length
    return {"tokens_seen": tokens, **{key.replace("/", "_"): value for key, value in result.items()}}


def _simulate(folder: Path, config: Config, start: Start) -> dict[str, float]:
    """All stages in this process."""
    trainer, device = config.trainer, torch.device(config.trainer.device)
    prepare_torch(config)
    batches, validation = open_data(config)
    with stop_requests(say_so) as stop, Saver(config, folder, start) as saver:
        pipeline = Simulated(
            build_simulator(config),
            Prefetcher(batches.batch, range(start.step, trainer.num_steps), device),
            lambda step: config.lr_schedule.factor(step, trainer.num_steps),
            torch.from_numpy(validation).to(device),
            trainer.eval_batch_size,
            trainer.probe_every,
            stop,
            saver.before_update,
            start.last_norms.get(start.step - 1),
        )
        load(config, pipeline.states, start)
        with sinks_of(config, folder, start) as sinks:
            return train(config, pipeline, sinks, saver, start)


def _train_at(place: Place, folder: Path, config: Config, start: Start | None = None) -> dict[str, float]:
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


def _follow(config: Config, place: Place) -> int:
    """A rank that does not keep the books."""
    if records.is_finished(config.folder):
        return EXIT_DONE
    try:
        _train_at(place, config.folder, config)
    except (KeyboardInterrupt, Stopped):
        return _end(EXIT_INTERRUPTED, place)
    except (TrainingFailed, ActionFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return _end(EXIT_FAILED, place)
    except Exception:
        traceback.print_exc()
        return _end(EXIT_FAILED, place)
    return EXIT_DONE


def _end(exit_code: int, place: Place | None) -> int:
    """A rank ends at once: threads of its broken connections may still wait for ranks that are gone."""
    if place is not None and place.num_ranks > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code


def _steady_staleness(folder: Path, num_steps: int) -> float:
    """Mean of the second half of the run, in updates, from its records: it may have had several launches."""
    rows = records.read_metrics(folder / records.METRICS_FILE)
    key = "pipeline/staleness_updates"
    return statistics.mean(row[key] for row in rows if key in row and row["step"] >= num_steps // 2)


def _identity(config: Config) -> dict[str, Any]:
    """What the run is, for whoever looks for it."""
    return {
        "sweep_name": config.sweep_name,
        "model": config.model.name,
        "optimizer": config.optimizer.name,
        "delay": config.delay.effective_name(config.pipeline),
        "correction": config.correction.name,
        "pipeline": config.pipeline.name,
        "seed": config.seed,
        "config_hash": config.hash(),
        "num_steps": config.trainer.num_steps,
    }
