"""What there is in sweeps/: the claim that each file stands for, and what it costs at every scale.

Costs are the planner's, for the model's FLOPs at a stated share of the peak: a guide to what fits a budget. Of cells
that differ in seed or method alone one is planned: their updates differ by no more than a hundredth of a step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

from rich.console import Console
from rich.table import Table

from asyncpp.arguments import parse_arguments
from asyncpp.config import from_hydra
from asyncpp.errors import EXIT_DONE, require
from asyncpp.hydra_command import compose_overrides, typed
from asyncpp.planner.runs import device_hours, hardware, plan_config
from asyncpp.planner.stages import cut
from asyncpp.sweep.expand import SweepOptions, overrides_of_cells
from asyncpp.sweep.file import SweepFile, load_sweep, sweep_names

CPU = "cpu"  # of conf/hardware: one core, for runs with trainer.device=cpu
METHOD = ("seed", "optimizer", "delay", "correction")  # groups that change a plan's time by next to nothing


@dataclass
class ListOptions:
    """hardware: an option of conf/hardware, for runs on GPUs. mfu: share of its peak that they reach.

    cpu_mfu: of one core, for the others. At a half a tiny run takes 36 s, as it does on an Intel Xeon.
    """

    json: bool = False
    hardware: str = "h100"
    mfu: float = 0.4
    cpu_mfu: float = 0.5


@dataclass(frozen=True)
class Entry:
    """A sweep at one scale. device: of conf/hardware. device_hours: of all its runs together."""

    scale: str
    is_paper_scale: bool
    num_runs: int
    device: str
    device_hours: float
    command: str


@dataclass(frozen=True)
class Sweep:
    """folder: below runs_dir. shares_with: other sweeps that have it, too, and make no common run twice.

    cost: the scales in one line, which the header of the sweep's file has, too.
    """

    name: str
    paper: str
    claim: str
    folder: str
    shares_with: list[str]
    cost: str
    scales: list[Entry]


def list_sweeps(arguments: Sequence[str]) -> int:
    """``python -m asyncpp.sweep list [json=true] [hardware=h100] [mfu=0.4]``."""
    options = parse_arguments(arguments, ListOptions)
    for key in ("mfu", "cpu_mfu"):
        value = getattr(options, key)
        require(0.0 < value <= 1.0, key, value, "expected a number in (0, 1]")
    sweeps = [describe(name, options) for name in sweep_names()]
    if options.json:
        print(json.dumps(asdict(options) | {"sweeps": [asdict(sweep) for sweep in sweeps]}, indent=1))
    else:
        _print(sweeps, options)
    return EXIT_DONE


def describe(name: str, options: ListOptions) -> Sweep:
    """The sweep file ``name`` of sweeps/, costed. Raises ConfigError."""
    sweep = load_sweep(name)
    folder = sweep.folder_of(name)
    others = [other for other in sweep_names() if other != name and load_sweep(other).folder_of(other) == folder]
    entries = [_entry(name, sweep, scale, options) for scale in sweep.scales]
    return Sweep(name, sweep.paper, sweep.claim, folder, others, "; ".join(map(_in_words, entries)), entries)


def _in_words(entry: Entry) -> str:
    unit = "core-hours" if entry.device == CPU else "GPU-hours"
    return f"{entry.scale} {entry.num_runs} runs, {rounded(entry.device_hours)} {unit}"


def rounded(hours: float) -> str:
    """Two digits, without an exponent."""
    return f"{float(f'{hours:.2g}'):,g}"


def _entry(name: str, sweep: SweepFile, scale: str, options: ListOptions) -> Entry:
    cells = overrides_of_cells(name, sweep, SweepOptions(scale=scale))
    device, hours, planned = CPU, 0.0, {}
    for overrides in cells:
        kind = _kind(overrides)
        if kind not in planned:
            device, planned[kind] = _cost(overrides, options)
        hours += planned[kind]
    is_first = scale == next(iter(sweep.scales))
    return Entry(
        scale=scale,
        is_paper_scale=scale == sweep.paper_scale,
        num_runs=len(cells),
        device=device,
        device_hours=hours,
        command=f"python -m asyncpp.sweep run {name}" + ("" if is_first else f" scale={scale}"),
    )


def _cost(overrides: Sequence[str], options: ListOptions) -> tuple[str, float]:
    """The device of the run that ``overrides`` compose to, and its hours of it. Raises ConfigError."""
    config = from_hydra(compose_overrides(overrides))
    device = CPU if config.trainer.device == "cpu" else options.hardware
    plan = plan_config(config, hardware(device), options.cpu_mfu if device == CPU else options.mfu)
    return device, device_hours(config, plan, cut(plan))


def _kind(overrides: Sequence[str]) -> tuple[object, ...]:
    """What runs of the same cost have in common."""
    groups = [override.partition("=")[0].partition(".")[0] for override in overrides]
    shape = [override for override, group in zip(overrides, groups, strict=True) if group not in METHOD]
    optimizer = [override for override in overrides if override.startswith("optimizer=")]
    return *shape, _has_two_passes(*optimizer[-1:])


@cache
def _has_two_passes(*choice: str) -> bool:
    """Whether the optimizer of ``choice``, an override, has every batch pass twice."""
    return typed(compose_overrides(choice), "optimizer").needs_fresh_gradients


def _print(sweeps: Sequence[Sweep], options: ListOptions) -> None:
    console = Console(highlight=False)
    for sweep in sweeps:
        shared = f"; in one folder with {', '.join(sweep.shares_with)}" if sweep.shares_with else ""
        console.print(f"[bold]{sweep.name}[/]  {sweep.paper}{shared}")
        console.print(sweep.claim.strip())
        table = Table.grid(padding=(0, 2))
        for entry in sweep.scales:
            scale = f"{entry.scale} (paper)" if entry.is_paper_scale else entry.scale
            hours = f"{rounded(entry.device_hours)} {entry.device}-hours"
            table.add_row(f"  {scale}", f"{entry.num_runs} runs", hours, entry.command)
        console.print(table, "", sep="\n")
    console.print(
        f"Hours are plans (python -m asyncpp.plan): {options.hardware} at {options.mfu:.0%} of its peak in bf16, one "
        f"cpu core at {options.cpu_mfu:.0%} of its peak in float32. hardware=... mfu=... cpu_mfu=... make others."
    )
