"""From a sweep file to its cells, each composed and checked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncpp.errors import require
from asyncpp.hydra_command import as_override
from asyncpp.launcher.cell import Cell, compose_cell
from asyncpp.sweep.file import Scale, SweepFile


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


def expand(name: str, sweep: SweepFile, options: SweepOptions, launcher: Sequence[str] = ()) -> list[Cell]:
    """Every cell of the sweep, checked. launcher: overrides of the launcher that the scale has. Raises ConfigError."""
    chosen = overrides_of_launcher(sweep.at(options.scale), launcher)
    if options.num_parallel is not None:
        chosen.append(f"hydra.launcher.num_parallel={options.num_parallel}")
    cells: dict[Path, Cell] = {}
    for overrides in overrides_of_cells(name, sweep, options):
        cell = compose_cell((*chosen, *overrides))
        accepted = f"expected cells that differ: two of them are {cell.folder}"
        require(cell.folder not in cells, "sweep", name, accepted)
        cells[cell.folder] = cell
    return list(cells.values())


def overrides_of_cells(name: str, sweep: SweepFile, options: SweepOptions) -> list[tuple[str, ...]]:
    """The overrides of every cell, by which nothing is composed yet. Raises ConfigError."""
    scale = sweep.at(options.scale)
    seeds = scale.seeds if options.seeds is None else options.seeds
    require(len(seeds) > 0, "seeds", seeds, "expected at least one seed")
    for key, values in {"cells": scale.cells, **{f"grid.{key}": values for key, values in scale.grid.items()}}.items():
        require(len(values) > 0, key, values, f"expected at least one in the sweep file {name}")
    place = {"sweep_name": sweep.folder_of(Path(name).stem), "runs_dir": options.runs_dir}
    accepted = "expected a name without ${, which stands for another key's value and could differ from cell to cell"
    require("${" not in place["sweep_name"], "sweep_name", place["sweep_name"], accepted)
    shared = [*_overrides(place), *_overrides(scale.overrides)]
    return [
        (
            *shared,
            *_overrides(dict(zip(scale.grid, values, strict=True))),
            *_overrides(cell),
            f"seed={seed}",
            *options.overrides,
        )
        for seed, values, cell in itertools.product(seeds, itertools.product(*scale.grid.values()), scale.cells)
    ]


def overrides_of_launcher(scale: Scale, launcher: Sequence[str] = ()) -> list[str]:
    """The scale's own launcher with the changes ``launcher``, or another one that they name."""
    keys = {f"hydra.launcher.{key}": value for key, value in scale.launcher.items() if key != "name"}
    choice = f"hydra/launcher={scale.launcher.get('name', 'local')}"
    another = any(word.startswith("hydra/launcher=") and word != choice for word in launcher)
    return [*([] if another else [choice, *_overrides(keys)]), *launcher]


def _overrides(values: Mapping[str, Any]) -> list[str]:
    return [as_override(key, value) for key, value in values.items()]
