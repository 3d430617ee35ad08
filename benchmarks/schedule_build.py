"""How long schedules take to build, validate and time, and that this grows in proportion to their actions.

    python benchmarks/schedule_build.py [schedule=two_bw num_stages=64 num_micro_batches=256 batches=10 json=true]

Times the schedule at a tenth, a fifth, a half and all of ``batches``. ``growth`` is the time for an action of the
largest list over that for an action of the smallest: 1 is linear.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from asyncpp.errors import check_count
from asyncpp.schedule.builders import build
from asyncpp.schedule.timeline import timeline
from asyncpp.schedule.validate import validate
from common.command import run_benchmark

T = TypeVar("T")


@dataclass
class Options:
    schedule: str = "two_bw"
    num_stages: int = 64
    num_micro_batches: int = 256
    batches: int = 10
    json: bool = False


def timed(function: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """What ``function`` returns, and the seconds that it took."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def measure_size(options: Options, batches: int) -> dict[str, float]:
    schedule, build_s = timed(build, options.schedule, options.num_stages, options.num_micro_batches, batches)
    _, validate_s = timed(validate, schedule)
    _, timeline_s = timed(timeline, schedule)
    total_s = build_s + validate_s + timeline_s
    return {
        "batches": batches,
        "num_actions": schedule.num_actions,
        "build_s": build_s,
        "validate_s": validate_s,
        "timeline_s": timeline_s,
        "total_s": total_s,
        "microseconds_per_action": 1e6 * total_s / schedule.num_actions,
    }


def measure(options: Options) -> dict[str, Any]:
    """The figures of the largest size, and ``sizes``: those of each."""
    check_count("batches", options.batches)
    rows = [measure_size(options, max(1, options.batches // part)) for part in (10, 5, 2, 1)]
    growth = rows[-1]["microseconds_per_action"] / rows[0]["microseconds_per_action"]
    largest = {name: value for name, value in rows[-1].items() if name.endswith("_s") or name == "num_actions"}
    return {"schedule": options.schedule, **largest, "growth": growth, "sizes": rows}


def show(figures: Mapping[str, Any]) -> None:
    for row in figures["sizes"]:
        print("  ".join(f"{name}={value:.4g}" for name, value in row.items()))
    print(f"growth={figures['growth']:.3g}")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure, show))
