"""python -m asyncpp.schedule show schedule=two_bw num_stages=4 num_micro_batches=4 batches=3 [key=value ...]
python -m asyncpp.schedule compare schedules=one_f_one_b,two_bw [key=value ...]

Draw a schedule, or several on one scale of time, and count what they cost.

  schedule=NAME             gpipe, one_f_one_b (1f1b), interleaved, two_bw (2bw), pipedream, wpipe,
                            or a file that ends in .txt and holds the text form
  schedules=NAME,NAME,...   the same for compare
  num_stages=4 num_micro_batches=4 batches=3    (pipedream updates after every micro-batch: each is a batch)
  num_chunks=null           of interleaved (2)
  forward=1 backward=2 update=0 transfer=0    a number, or one for each stage: forward=[1,1,2,1]
  latency=0 norm=null       of a message; of the norm's all-reduce, which updates then wait for
  jitter=0 seed=0           actions take their cost times a random number in [1 - jitter, 1 + jitter]
  json=false                print one JSON document and nothing else
  out=null                  write a picture (.svg, .png, .pdf), or, of one schedule, its text form (.txt)
  trace=null                write a trace of one schedule that ui.perfetto.dev opens (.json)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from asyncpp.arguments import asks_for_help, parse_arguments
from asyncpp.errors import EXIT_BAD_INPUT, EXIT_DONE, ConfigError, check_count, require
from asyncpp.schedule.builders import build
from asyncpp.schedule.report import COLUMNS, report, row
from asyncpp.schedule.text import parse, to_text
from asyncpp.schedule.timeline import CostModel, Timeline, timeline
from asyncpp.schedule.validate import ScheduleError, validate

_PICTURES = (".svg", ".png", ".pdf")


@dataclass
class _Options:
    """What both commands take; the text above says what it means."""

    num_stages: int = 4
    num_micro_batches: int = 4
    batches: int = 3
    num_chunks: int | None = None
    forward: Any = 1.0
    backward: Any = 2.0
    update: Any = 0.0
    transfer: Any = 0.0
    latency: float = 0.0
    norm: float | None = None
    jitter: float = 0.0
    seed: int = 0
    json: bool = False
    out: str | None = None

    def costs(self) -> CostModel:
        return CostModel(
            self.forward,
            self.backward,
            self.update,
            self.transfer,
            self.latency,
            self.norm,
            self.jitter,
            self.seed,
        )


@dataclass
class ShowOptions(_Options):
    schedule: str = MISSING
    trace: str | None = None


@dataclass
class CompareOptions(_Options):
    schedules: Any = MISSING


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code: EXIT_BAD_INPUT with one line, or a grid, on standard error."""
    commands = {"show": _show, "compare": _compare}
    if not arguments or asks_for_help(arguments):
        print(__doc__)
        return EXIT_DONE
    try:
        command = commands.get(arguments[0])
        if command is None:
            raise ConfigError("command", arguments[0], f"expected one of {', '.join(commands)}")
        command(arguments[1:])
    except (ConfigError, ScheduleError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return EXIT_DONE


def _show(arguments: Sequence[str]) -> None:
    options = parse_arguments(arguments, ShowOptions)
    _check_suffix("out", options.out, (*_PICTURES, ".txt"))
    _check_suffix("trace", options.trace, (".json",))
    drawn = _timeline(options.schedule, options, options.num_chunks)
    if options.out and options.out.endswith(".txt"):
        _write("out", options.out, to_text(drawn.schedule))
    elif options.out:
        _save_figure([drawn], options.out)
    if options.trace:
        from asyncpp.schedule.draw import trace

        _write("trace", options.trace, json.dumps(trace(drawn)))
    numbers = report(drawn)
    if options.json:
        print(json.dumps(numbers))
    else:
        _print_grids([drawn])
        _print_table([numbers])


def _compare(arguments: Sequence[str]) -> None:
    options = parse_arguments(arguments, CompareOptions)
    _check_suffix("out", options.out, _PICTURES)
    names = options.schedules.split(",") if isinstance(options.schedules, str) else options.schedules
    require(isinstance(names, list), "schedules", names, "expected names with commas between them")
    names = [str(name).strip() for name in names]
    drawn = [_timeline(name, options, options.num_chunks if name == "interleaved" else None) for name in names]
    if options.out:
        _save_figure(drawn, options.out)
    numbers = [report(timeline) for timeline in drawn]
    if options.json:
        print(json.dumps({"schedules": numbers}))
    else:
        _print_grids(drawn)
        _print_table(numbers)


def _timeline(name: str, options: _Options, num_chunks: int | None) -> Timeline:
    check_count("batches", options.batches)
    if name.endswith(".txt"):
        schedule = parse(_read(name))
    else:
        schedule = build(name, options.num_stages, options.num_micro_batches, options.batches, num_chunks)
    costs = options.costs()
    costs.check(schedule.num_stages)
    validate(schedule, global_norm=costs.norm is not None)
    return timeline(schedule, costs)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise ConfigError("schedule", path, f"cannot be read: {error.strerror}") from None


def _check_suffix(key: str, path: str | None, suffixes: Sequence[str]) -> None:
    require(path is None or Path(path).suffix in suffixes, key, path, f"expected a file in {', '.join(suffixes)}")


def _save_figure(timelines: Sequence[Timeline], path: str) -> None:
    from asyncpp.schedule.draw import save_figure

    try:
        save_figure(timelines, Path(path))
    except OSError as error:
        raise ConfigError("out", path, f"cannot be written: {error.strerror}") from None


def _write(key: str, path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise ConfigError(key, path, f"cannot be written: {error.strerror}") from None


def _print_grids(timelines: Sequence[Timeline]) -> None:
    from rich.console import Console

    from asyncpp.schedule.draw import terminal_grid

    console = Console(highlight=False)
    for drawn in timelines:
        console.print(f"[bold]{drawn.schedule.name}[/]")
        for piece in terminal_grid(drawn, console.width):
            console.print(piece)
    console.print("F forward, B backward, │ update; colours are weight versions", style="dim")


def _print_table(numbers: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        *COLUMNS, caption="Lists are by stage; versions and staleness of several chunks by part of the model."
    )
    for line in numbers:
        table.add_row(*row(line))
    Console(highlight=False).print(table)
