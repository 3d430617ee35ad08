"""Hydra's ``-m``: every combination of the given values. Hydra finds plugins in this namespace package only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from omegaconf import DictConfig

from asyncpp import records
from asyncpp.config import from_hydra
from asyncpp.data.availability import require_available


class PlainSweeper(BasicSweeper):
    """Hydra's basic sweeper, which writes nothing beside what its jobs write."""

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        assert self.config is not None and self.launcher is not None and self.hydra_context is not None
        loader: Any = self.hydra_context.config_loader
        overrides = OverridesParser.create(config_loader=loader).parse_overrides(arguments)
        (cells,) = self.split_arguments(overrides, max_batch_size=None)
        for cell in cells:
            self.check(loader.load_sweep_config(self.config, list(cell)))
        results = self.launcher.launch(cells, initial_job_idx=0)
        for result in results:
            _ = result.return_value  # raises what the job raised
        return results

    def check(self, composed: DictConfig) -> None:
        """Raise ConfigError for a cell that cannot run. Every cell is checked before the first one starts."""


class GridSweeper(PlainSweeper):
    """The sweeper of training runs."""

    def check(self, composed: DictConfig) -> None:
        config = from_hydra(composed)
        if not config.trainer.dry_run and not records.is_finished(config.folder):
            require_available(config.data, config.num_tokens)
        records.require_writable(config.folder, "runs_dir", config.runs_dir)
