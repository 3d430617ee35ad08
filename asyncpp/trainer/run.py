"""A run from its configuration to its exit code: prepare the data, hold the folder, train, say how it ended."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch

from asyncpp import records
from asyncpp.distributed import Place, this_place
from asyncpp.errors import EXIT_DONE, ConfigError, require
from asyncpp.records import Status
from asyncpp.trainer.data import prepare_data
from asyncpp.trainer.ending import ending_of
from asyncpp.trainer.modes import train_given_rank, train_run
from asyncpp.trainer.run_folder import open_run_folder
from asyncpp.trainer.saving import prepare_start

if TYPE_CHECKING:
    from asyncpp.config import Config


def run(config: Config) -> int:
    """Train ``config`` unless its run folder says that it is finished. Returns an exit code of asyncpp.errors.

    Where torchrun or Slurm has started several ranks, each of them comes here, and rank 0 keeps the books.
    Raises ConfigError for what only shows here.
    """
    place = this_place()
    if place is not None:
        place.check(config.pipeline.num_processes)
    if config.trainer.device.startswith("cuda"):
        require(torch.cuda.is_available(), "trainer.device", config.trainer.device, "no GPU is visible here; use cpu")
    return _follow(config, place) if place is not None and place.rank > 0 else _lead(config, place)


def _lead(config: Config, place: Place | None) -> int:
    """The process that keeps the books."""
    for note in config.notes():
        print(f"note: {note}")
    if records.is_finished(config.folder):
        return _finished_before(config)
    records.require_writable(config.folder, "runs_dir", config.runs_dir)
    prepare_data(config.data)
    try:
        with open_run_folder(config) as folder:
            if folder is None:  # by another process, while this one prepared the data
                return _finished_before(config)
            start = prepare_start(config, folder.path)
            folder.note(data_digest=start.data_digest)
            summary = folder.finish(train_run(config, folder.path, start, place))
    except ConfigError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        return _end(error, place)
    print(f"val loss {summary['val_loss']:.4f} in {summary['duration_s']:.0f} s: {folder.path}")
    return EXIT_DONE


def _follow(config: Config, place: Place) -> int:
    """A rank that does not keep the books."""
    if records.is_finished(config.folder):
        return EXIT_DONE
    try:
        train_given_rank(config, config.folder, None, place)
    except (Exception, KeyboardInterrupt) as error:
        return _end(error, place)
    return EXIT_DONE


def _finished_before(config: Config) -> int:
    print(f"finished before: {config.folder}")
    return EXIT_DONE


def _end(error: BaseException, place: Place | None) -> int:
    """Say what ``error`` has ended; of an interrupt rank 0 alone speaks. Returns the exit code.

    One of several ranks ends at once: threads of its broken connections may still wait for ranks that are gone.
    """
    ending = ending_of(error)
    if place is None or place.rank == 0 or ending.status is Status.FAILED:
        print(ending.message(error), file=sys.stderr)
    if place is not None and place.num_ranks > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ending.exit_code)
    return ending.exit_code
