"""From a sweep file to its cells, each composed and checked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncpp.command import as_override
from asyncpp.errors import require
from asyncpp.launcher.cell import Cell, compose_cell
from asyncpp.sweep.file import SweepFile

LOCAL = ("hydra/launcher=local",)


@dataclass
class SweepOptions:
    """seeds: take the place of the file's. num_parallel: cells at a time, in place of the launcher's own number.

    overrides: for every cell.
    """

    seeds: list[int] | None = None
    scale: str | None = None
    num_parallel: int | None = None
    runs_dir: str = "runs"
    overrides: list[str] = field(default_factory=list)


def expand(name: str, sweep: SweepFile, options: SweepOptions, launcher: Sequence[str] = LOCAL) -> list[Cell]:
    """Every cell of the sweep, checked. launcher: overrides that choose it. Raises ConfigError."""
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
    place = {"sweep_name": Path(name).stem, "runs_dir": options.runs_dir}
    shared = [*_overrides(place), *_overrides(sweep.scales[scale])]
    if options.num_parallel is not None:
        launcher = [*launcher, f"hydra.launcher.num_parallel={options.num_parallel}"]
    cells = []
    for seed, values, cell in itertools.product(seeds, itertools.product(*sweep.grid.values()), sweep.cells):
        grid = dict(zip(sweep.grid, values, strict=True))
        overrides = (*shared, *_overrides(grid), *_overrides(cell), f"seed={seed}", *options.overrides)
        cells.append(compose_cell((*launcher, *overrides)))
    return cells


def _overrides(values: Mapping[str, Any]) -> list[str]:
    return [as_override(key, value) for key, value in values.items()]
