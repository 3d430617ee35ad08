"""Which runs ``-m`` stands for: every combination of the values that are given."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from asyncpp.hydra_command import CONF


def cells_of(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each cell, in the order in which they run. Raises Hydra's errors."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        (cells,) = BasicSweeper.split_arguments(parser.parse_overrides(list(overrides)), max_batch_size=None)
    return [list(cell) for cell in cells]
