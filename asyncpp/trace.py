"""What the ranks of a pipeline really did, beside what its schedule would have them do.

    python -m asyncpp.train pipeline=2bw pipeline.trace_batches=8 ...
    python -m asyncpp.trace run=runs/default/<run> out=trace.svg

run=FOLDER       of a run that recorded its last batches; several as run=[FOLDER,FOLDER], on one scale of time
replica=0        which of pipeline.data_parallel pipelines
out=null         write a picture (.svg, .png, .pdf): each run as it was planned and as it was measured
json=false       print one JSON document and nothing else

The plan is the run's schedule with every action taking its stage's mean time, messages none. A bubble is the share of
the stages' time in which they neither compute nor update, between the filling of the pipeline and its draining.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from asyncpp.arguments import run_command
from asyncpp.config import Config
from asyncpp.errors import EXIT_DONE, ConfigError, require
from asyncpp.pipeline.measured import measured_timeline, planned_timeline, time_fractions
from asyncpp.pipeline.segments import segments_of
from asyncpp.pipeline.trace import read_trace, trace_file
from asyncpp.saved_config import read_config
from asyncpp.schedule.timeline import Timeline

_PICTURES = (".svg", ".png", ".pdf")
HEADINGS = {
    "forward_ms": "F ms",
    "backward_ms": "B ms",
    "update_ms": "U ms",
    "compute_fraction": "compute",
    "update_fraction": "update",
    "wait_receive_fraction": "receive",
    "wait_norm_fraction": "norm",
    "send_fraction": "send",
    "other_fraction": "other",
}


@dataclass
class Options:
    run: Any = MISSING
    replica: int = 0
    out: str | None = None
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. Without arguments it prints its usage."""
    return run_command(__doc__ or "", arguments or ["--help"], Options, _command)


def _command(options: Options) -> int:
    out = options.out
    require(out is None or Path(out).suffix in _PICTURES, "out", out, f"expected a file in {', '.join(_PICTURES)}")
    folders = [Path(str(run)) for run in (options.run if isinstance(options.run, list) else [options.run])]
    require(bool(folders), "run", options.run, "expected a run's folder")
    measured = [read_measured(folder, options.replica) for folder in folders]
    planned = [planned_timeline(one) for one in measured]
    documents = [report(str(folder), *both) for folder, *both in zip(folders, planned, measured, strict=True)]
    if out is not None:
        _save_figure(planned, measured, out)
    if options.json:
        print(json.dumps({"runs": documents}))
    else:
        _print(documents)
    return EXIT_DONE


def read_measured(folder: Path, replica: int = 0) -> Timeline:
    """The last batches of the run in ``folder``, in milliseconds. Raises ConfigError."""
    require(folder.is_dir(), "run", folder, "there is no such folder")
    config = read_config("run", folder)
    replicas = config.pipeline.data_parallel
    require(0 <= replica < replicas, "replica", replica, f"expected one of {replicas}, counted from zero")
    ranks = range(replica * config.pipeline.num_stages, (replica + 1) * config.pipeline.num_stages)
    files = [trace_file(folder, rank) for rank in ranks]
    accepted = "expected a run with a trace in it; training with pipeline.trace_batches=8 records one"
    require(all(file.is_file() for file in files), "run", folder, accepted)
    try:
        measured = _measured(config, [read_trace(folder, rank) for rank in ranks])
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError("run", folder, f"its trace cannot be read: {error}") from None
    accepted = f"expected more batches in its trace than {measured.schedule.num_batches}: raise pipeline.trace_batches"
    require(measured.steady_bubble_fraction is not None, "run", folder, accepted)
    return measured


def _measured(config: Config, records: Sequence[Any]) -> Timeline:
    trainer = config.trainer
    segments = segments_of(config.pipeline, config.correction, trainer.num_micro_batches, trainer.num_steps)
    name, shape = segments[-1]
    return measured_timeline(name, shape, records)


def report(run: str, planned: Timeline, measured: Timeline) -> dict[str, Any]:
    """Plain numbers: bubbles of the plan and of the run, and of every stage its mean times and its rank's shares."""
    schedule, costs = measured.schedule, measured.costs
    stages = range(schedule.num_stages)
    times = {name: costs.of_stages(name, schedule.num_stages) for name in ("forward", "backward", "update")}
    by_stage = []
    for stage in stages:
        fractions = time_fractions(measured, stage)
        assert fractions is not None  # read_measured takes no shorter trace
        by_stage.append(
            {f"{name}_ms": float(of_stages[stage]) for name, of_stages in times.items()}
            | {f"{name}_fraction": value for name, value in asdict(fractions).items()}
        )
    return {
        "run": run,
        "schedule": schedule.name,
        "num_micro_batches": schedule.num_micro_batches,
        "first_batch": schedule.first_batch,
        "num_batches": schedule.num_batches,
        "planned": _summary(planned),
        "measured": _summary(measured),
        "stages": by_stage,
    }


def _summary(timeline: Timeline) -> dict[str, Any]:
    return {"steady_bubble_fraction": timeline.steady_bubble_fraction, "batch_ms": timeline.steady_batch_duration}


def _title(timeline: Timeline, how: str) -> str:
    return f"{timeline.schedule.name} {how}: bubble {timeline.steady_bubble_fraction:.1%} in steady state"


def _save_figure(planned: Sequence[Timeline], measured: Sequence[Timeline], path: str) -> None:
    from asyncpp.schedule.draw import save_figure

    panels = [panel for pair in zip(planned, measured, strict=True) for panel in pair]
    titles = [_title(panel, how) for panel, how in zip(panels, ["planned", "measured"] * len(planned), strict=True)]
    try:
        save_figure(panels, Path(path), titles, unit="milliseconds")
    except OSError as error:
        raise ConfigError("out", path, f"cannot be written: {error.strerror}") from None


def _print(documents: Sequence[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for document in documents:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for heading in ("stage", *HEADINGS.values()):
            table.add_column(heading, justify="right")
        for stage, numbers in enumerate(document["stages"]):
            cells = [f"{numbers[k]:.1%}" if k.endswith("_fraction") else f"{numbers[k]:.2f}" for k in HEADINGS]
            table.add_row(str(stage), *cells)
        first, last = document["first_batch"], document["first_batch"] + document["num_batches"] - 1
        line = f"[bold]{document['run']}[/]: {document['schedule']}, batches {first} to {last}"
        console.print(line, soft_wrap=True)
        for how in ("planned", "measured"):
            numbers = document[how]
            text = f"{how:9} {numbers['batch_ms']:.2f} ms a batch, bubble {numbers['steady_bubble_fraction']:.1%}"
            console.print(text)
        console.print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
