"""Train one run, or with ``-m`` every combination of the given values.

    python -m asyncpp.train optimizer=muon correction=ef
    python -m asyncpp.train -m optimizer=adamw,muon correction=none,ef
    python -m asyncpp.train -m optimizer=adamw,muon correction=none,ef hydra/launcher=slurm

Exit codes: 0 done, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import hydra
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from asyncpp import records
from asyncpp.arguments import stop_on_signals
from asyncpp.config import from_hydra
from asyncpp.data.availability import require_available
from asyncpp.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from asyncpp.hydra_command import CONF, compose_overrides, hydra_exit_code_of
from asyncpp.launcher.launch import CellsNotDone
from asyncpp.launcher.slurm_commands import SlurmFailed


class _Interrupted(BaseException):
    """Ends Hydra's multirun, which would take an Exception for one cell's failure."""


def main() -> int:
    stop_on_signals()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them and leaving
    exit_codes: list[int] = []

    @hydra.main(config_path="../conf", config_name="train", version_base="1.3")
    def train(composed: DictConfig) -> None:
        exit_codes.append(hydra_exit_code_of(lambda: _run(composed), sys.argv[1:]))
        if exit_codes[-1] == EXIT_INTERRUPTED:
            raise _Interrupted  # no further cell

    def command() -> int:
        arguments = get_args_parser().parse_args()
        if arguments.multirun and arguments.cfg == "job":
            return _print_cells(arguments.overrides, arguments.resolve)
        try:
            with suppress(_Interrupted):
                train()
        except CellsNotDone as ending:  # of hydra/launcher=local or slurm, which have said why
            return ending.exit_code
        except SlurmFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_FAILED
        return max(exit_codes, default=EXIT_DONE)

    try:
        return hydra_exit_code_of(command, sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(composed: DictConfig) -> int:
    config = from_hydra(composed)
    if config.trainer.dry_run:
        from asyncpp.dry_run import dry_run  # imports torch, which a wrong configuration need not wait for

        return dry_run(config)
    if not records.is_finished(config.folder):
        require_available(config.data, config.num_tokens)
    from asyncpp.trainer.run import run

    return run(config)


def _print_cells(overrides: Sequence[str], resolve: bool) -> int:
    """``-m ... --cfg job``, which Hydra itself refuses: the configuration of every cell, as YAML documents."""
    for cell in _cells_of(overrides):
        print(f"--- # {' '.join(cell)}")
        print(OmegaConf.to_yaml(compose_overrides(cell), resolve=resolve), end="")
    return EXIT_DONE


def _cells_of(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each run that ``-m`` stands for, in the order in which they run. Raises Hydra's errors."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        (cells,) = BasicSweeper.split_arguments(parser.parse_overrides(list(overrides)), max_batch_size=None)
    return [list(cell) for cell in cells]


if __name__ == "__main__":
    sys.exit(main())
