"""A run from its configuration to its summary: prepare the data, open the folder, train, say how it ended."""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asyncpp import records
from asyncpp.data.batches import Batches, validation_windows
from asyncpp.data.prepare import prepare
from asyncpp.data.status import display
from asyncpp.data.tokens import open_tokens
from asyncpp.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, require
from asyncpp.records import Status
from asyncpp.trainer.loop import TrainingFailed, train
from asyncpp.trainer.progress import progress_for
from asyncpp.trainer.setup import build_simulator, describe
from asyncpp.trainer.sinks import Sinks

if TYPE_CHECKING:
    from asyncpp.config import Config


def run(config: Config) -> int:
    """Train ``config`` unless its run folder says that it is finished. Returns an exit code of asyncpp.errors."""
    for note in config.notes():
        print(f"note: {note}")
    if config.trainer.dry_run:
        print(describe(config))
        return EXIT_DONE
    folder = config.folder
    if records.is_finished(folder):
        print(f"finished before: {folder}")
        return EXIT_DONE
    if config.trainer.device.startswith("cuda"):
        require(torch.cuda.is_available(), "trainer.device", config.trainer.device, "no GPU is visible here; use cpu")
    records.require_writable(folder, "runs_dir", config.runs_dir)
    batches, validation = _open_data(config)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with records.locked(folder):
            if records.is_finished(folder):  # by another process, while this one prepared the data
                print(f"finished before: {folder}")
                return EXIT_DONE
            return _train_in(folder, config, batches, validation)
    except records.RunIsLocked as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


def _open_data(config: Config) -> tuple[Batches, Tensor]:
    """The batches and the held-out sequences, int64 (sequences, sequence_length + 1); prepared first if need be."""
    data = config.data
    with display() as report:
        prepare(data, report)
    tokens = open_tokens(data)
    batches = Batches(tokens, data.sequence_length, config.trainer.batch_size, config.seed)
    windows = validation_windows(tokens, data.sequence_length, data.num_validation_sequences)
    return batches, torch.from_numpy(windows).to(config.trainer.device)


def _train_in(folder: Path, config: Config, batches: Batches, validation: Tensor) -> int:
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
        close(Status.FINISHED, **_train(folder, config, batches, validation))
    except KeyboardInterrupt:
        close(Status.INTERRUPTED)
        print(f"\ninterrupted; run the same command again to start {folder.name} anew", file=sys.stderr)
        return EXIT_INTERRUPTED
    except TrainingFailed as error:
        close(Status.FAILED, error=str(error))
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except Exception as error:
        close(Status.FAILED, error=f"{type(error).__name__}: {error}")
        traceback.print_exc()
        return EXIT_FAILED
    print(f"val loss {summary['val_loss']:.4f} in {summary['duration_s']:.0f} s: {folder}")
    return EXIT_DONE


def _train(folder: Path, config: Config, batches: Batches, validation: Tensor) -> dict[str, Any]:
    """Train and return what the summary says of the result."""
    trainer = config.trainer
    torch.set_num_threads(trainer.num_threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with this only
    torch.use_deterministic_algorithms(True)
    simulator = build_simulator(config)
    tokens_per_step = trainer.batch_size * config.data.sequence_length
    progress = progress_for(folder.name, trainer.num_steps, tokens_per_step)
    with Sinks(folder, config.logger, asdict(config), progress, tokens_per_step) as sinks:
        losses = train(config, simulator, batches, validation, sinks)
    return {
        "tokens_seen": trainer.num_steps * tokens_per_step,
        **{key.replace("/", "_"): value for key, value in losses.items()},
        **simulator.measurements(),
    }


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
