"""A run of a sweep, as it is handed to a launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncpp.config import Config, from_hydra
from asyncpp.errors import require
from asyncpp.hydra_command import compose_overrides
from asyncpp.launcher.config import LauncherConfig, launcher_of


@dataclass(frozen=True)
class Cell:
    """overrides: what it was composed from. config, launcher: what they compose to."""

    overrides: tuple[str, ...]
    config: Config
    launcher: LauncherConfig

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.config.folder

    @property
    def sweep_folder(self) -> Path:
        return self.folder.parent


def compose_cell(overrides: Sequence[str]) -> Cell:
    """The cell of ``overrides``, checked. Raises ConfigError."""
    composed = compose_overrides(overrides, with_hydra=True)
    config, launcher = from_hydra(composed), launcher_of(composed)
    require(not config.trainer.dry_run, "trainer.dry_run", True, "expected false in a sweep")
    launcher.check(config)
    return Cell(tuple(overrides), config, launcher)
