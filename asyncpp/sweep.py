"""Run a sweep file: one of sweeps/, each of which stands for a table or figure of the paper.

    python -m asyncpp.sweep run demo                     every cell that is not finished, two at a time
    python -m asyncpp.sweep run demo seeds=[0,1,2] num_parallel=4
    python -m asyncpp.sweep run my_sweep.yaml            a file of one's own

A cell is a run of ``python -m asyncpp.train`` in a process of its own, in runs/<sweep>/. All cells are checked, and
the data is prepared, before the first one starts.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from asyncpp import records
from asyncpp.arguments import parse_arguments, stop_on_signals
from asyncpp.command import as_override, compose_overrides, exit_code_of
from asyncpp.config import Config, from_hydra
from asyncpp.data.availability import require_available
from asyncpp.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, require
from asyncpp.trainer.progress import CellWatcher

SWEEPS = Path(__file__).parents[1] / "sweeps"


@dataclass
class SweepFile:
    """claim: what the sweep shows. paper: the table or figure that it stands for.

    A sweep is every combination of a cell, a value of each key of ``grid`` and a seed. Cells and scales are overrides;
    ``scales`` has one entry a size of the experiment, the first of which is the default.
    """

    claim: str = MISSING
    paper: str = MISSING
    seeds: list[int] = MISSING
    grid: dict[str, list[Any]] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    scales: dict[str, dict[str, Any]] = MISSING


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


def load_sweep(name: str) -> SweepFile:
    """The sweep file ``name``: one of sweeps/, or a path that ends in .yaml. Raises ConfigError."""
    path = Path(name) if name.endswith(".yaml") else SWEEPS / f"{name}.yaml"
    names = ", ".join(sorted(sweep.stem for sweep in SWEEPS.glob("*.yaml")))
    require(path.is_file(), "sweep", name, f"expected one of {names}, or the path of a .yaml file")
    try:
        path.read_text(encoding="utf-8")
        merged = OmegaConf.merge(OmegaConf.structured(SweepFile), OmegaConf.load(path))
        return OmegaConf.to_object(merged)  # pyright: ignore[reportReturnType]
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError) as error:
        raise ConfigError("sweep", name, f"expected a sweep file ({' '.join(str(error).split())})") from None


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


def run_sweep(name: str, options: SweepOptions) -> int:
    """Run what is not finished. Returns EXIT_DONE when every cell is."""
    cells = expand(name, load_sweep(name), options)
    missing = [cell for cell in cells if not records.is_finished(cell.config.folder)]
    print(f"{Path(name).stem}: {len(cells)} runs, {len(cells) - len(missing)} finished before", flush=True)
    if not missing:
        return EXIT_DONE
    for cell in missing:
        require_available(cell.config.data, cell.config.num_tokens)
        records.require_writable(cell.config.folder, "runs_dir", cell.config.runs_dir)
    held = [cell for cell in missing if records.is_locked(cell.config.folder)]
    for cell in held:
        print(f"left alone, as another process is running it: {cell.config.folder}", file=sys.stderr)
    _prepare_data(missing)
    exit_code = _run_cells([cell for cell in missing if cell not in held], options.num_parallel)
    return exit_code or (EXIT_FAILED if held else EXIT_DONE)


def _overrides(values: Mapping[str, Any]) -> list[str]:
    return [as_override(key, value) for key, value in values.items()]


def _prepare_data(cells: Sequence[Cell]) -> None:
    """Prepare each source once, before several processes ask for it."""
    from asyncpp.data.prepare import prepare
    from asyncpp.data.status import display

    sources = {(cell.config.data.root, cell.config.data.name): cell.config.data for cell in cells}
    with display() as report:
        for source in sources.values():
            prepare(source, report)


def _run_cells(cells: Sequence[Cell], num_parallel: int) -> int:
    """Run ``cells``, ``num_parallel`` at a time. A failed one does not stop the others."""
    waiting = list(cells)
    running: dict[subprocess.Popen[bytes], Cell] = {}
    failed: list[Cell] = []
    with CellWatcher({cell.config.folder: cell.config.trainer.num_steps for cell in cells}) as watcher:
        try:
            while waiting or running:
                while waiting and len(running) < num_parallel:
                    cell = waiting.pop(0)
                    running[_start(cell)] = cell
                time.sleep(0.2)
                watcher.refresh(cell.config.folder for cell in running.values())
                for process in [process for process in running if process.poll() is not None]:
                    cell = running.pop(process)
                    watcher.ended(cell.config.folder)
                    if process.returncode != EXIT_DONE:
                        failed.append(cell)
        except KeyboardInterrupt:
            for process in running:
                process.send_signal(signal.SIGINT)
            for process in running:
                process.wait()
            print("\ninterrupted; run the same command again to go on with what is missing", file=sys.stderr)
            return EXIT_INTERRUPTED
    for cell in failed:
        summary = records.read_summary(cell.config.folder) or {}
        print(
            f"failed: {cell.config.folder}: {summary.get('error', 'no summary; see output.log there')}", file=sys.stderr
        )
    return EXIT_FAILED if failed else EXIT_DONE


def _start(cell: Cell) -> subprocess.Popen[bytes]:
    """A process of its own for the cell, its output beside its records."""
    cell.config.folder.mkdir(parents=True, exist_ok=True)
    threads = str(cell.config.trainer.num_threads)
    with (cell.config.folder / records.OUTPUT_FILE).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "asyncpp.train", *cell.overrides],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C reaches this process, which passes it on once
            env=os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )


def main() -> int:
    stop_on_signals()
    arguments = sys.argv[1:]

    if not arguments or {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return EXIT_DONE

    def command() -> int:
        if len(arguments) < 2 or arguments[0] != "run":
            raise ConfigError("command", " ".join(arguments), "expected run <sweep> [key=value ...]")
        return run_sweep(arguments[1], parse_arguments(arguments[2:], SweepOptions))

    return exit_code_of(command, arguments)


if __name__ == "__main__":
    sys.exit(main())
