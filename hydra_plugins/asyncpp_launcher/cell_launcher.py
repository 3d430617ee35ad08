"""Hydra's ``-m ... hydra/launcher=local|slurm``: its cells go the way of a sweep's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from asyncpp.config import from_hydra
from asyncpp.errors import EXIT_DONE, require
from asyncpp.launcher.cell import Cell
from asyncpp.launcher.config import launcher_of
from asyncpp.launcher.launch import CellsNotDone, launch


class CellLauncher(Launcher):
    """values: of conf/hydra/launcher; each cell brings them in its own configuration, where recipes may set them."""

    def __init__(self, **values: Any) -> None:
        self._config: DictConfig | None = None
        self._loader: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._config, self._loader = config, hydra_context.config_loader

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Raises CellsNotDone where a cell was run and is not finished."""
        exit_code = launch([self._cell(list(overrides)) for overrides in job_overrides])
        if exit_code != EXIT_DONE:
            raise CellsNotDone(exit_code)
        return [JobReturn(overrides=overrides, status=JobStatus.COMPLETED) for overrides in job_overrides]

    def _cell(self, overrides: list[str]) -> Cell:
        composed = self._loader.load_sweep_config(self._config, overrides)
        cell = Cell(tuple(overrides), from_hydra(composed), launcher_of(composed))
        require(not cell.config.trainer.dry_run, "trainer.dry_run", True, "expected false with hydra/launcher")
        cell.launcher.check(cell.config)
        return cell
