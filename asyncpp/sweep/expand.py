"""From a sweep file to its cells, each composed and checked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncpp.command import as_override, compose_overrides
from asyncpp.config import Config, from_hydra
from asyncpp.errors import require
from asyncpp.sweep.file import SweepFile


@dataclass
class SweepOptions:
    """seeds: take the place of the file's. num_parallel: processes at a time. overrides: for every cell."""

    seeds: list[int] | None = None
    scale: str | None = None
    num_parallel: int = 2
    runs_dir: str = "runs"
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its overrides and what they compose to."""

    overrides: tuple[str, ...]
    config: Config


def expand(name: str, sweep: SweepFile, options: SweepOptions) -> list[Cell]:
    """Every cell of the sweep, checked. Raises ConfigError."""
    for key, values in {
        "scales": sweep.scales,
        "cells": sweep.cells,
        **{f"grid.{k}": v for k, v in sweep.grid.items()},
    }.items():
        require(len(values) > 0, key, values, f"expected at least one in the sweep file {name}")
    scale = options.scale or next(iter(sweep.scales))
    require(scale in sweep.scales, "scale", scale, f"expected one of {', '.join(sweep.scales)}")
    seeds = sweep.seeds if options.seeds is None else options.seeds
    require(len(seeds) > 0, "seeds", seeds, "expected at least one seed")
    require(options.num_parallel >= 1, "num_parallel", options.num_parallel, "expected 1 or more")
    place = {"sweep_name": Path(name).stem, "runs_dir": options.runs_dir}
    shared = [*_overrides(place), *_overrides(sweep.scales[scale])]
    cells = []
    for seed, values, cell in itertools.product(seeds, itertools.product(*sweep.grid.values()), sweep.cells):
        grid = dict(zip(sweep.grid, values, strict=True))
        overrides = (*shared, *_overrides(grid), *_overrides(cell), f"seed={seed}", *options.overrides)
        config = from_hydra(compose_overrides(overrides))
        require(not config.trainer.dry_run, "trainer.dry_run", True, "expected false in a sweep")
        cells.append(Cell(overrides, config))
    return cells


def _overrides(values: Mapping[str, Any]) -> list[str]:
    return [as_override(key, value) for key, value in values.items()]
