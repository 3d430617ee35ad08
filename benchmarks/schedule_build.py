"""How long schedules take to build, validate and time, and that this grows in proportion to their actions.

    python benchmarks/schedule_build.py [schedule=two_bw num_stages=64 num_micro_batches=256 batches=10 json=true]

Times the schedule at a tenth, a fifth, a half and all of ``batches``. ``growth`` is the time for an action of the
largest list over that for an action of the smallest: 1 is linear.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from asyncpp.arguments import parse_arguments
from asyncpp.errors import EXIT_BAD_INPUT, EXIT_DONE, ConfigError, require
from asyncpp.schedule.builders import build
from asyncpp.schedule.timeline import timeline
from asyncpp.schedule.validate import validate

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


def measure(options: Options, batches: int) -> dict[str, float]:
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


def main(arguments: list[str]) -> int:
    try:
        options = parse_arguments(arguments, Options)
        require(options.batches >= 1, "batches", options.batches, "expected 1 or more")
        rows = [measure(options, max(1, options.batches // part)) for part in (10, 5, 2, 1)]
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    growth = rows[-1]["microseconds_per_action"] / rows[0]["microseconds_per_action"]
    if options.json:
        largest = {name: value for name, value in rows[-1].items() if name.endswith("_s") or name == "num_actions"}
        print(json.dumps({"schedule": options.schedule, **largest, "growth": growth, "sizes": rows}))
    else:
        for row in rows:
            print("  ".join(f"{name}={value:.4g}" for name, value in row.items()))
        print(f"growth={growth:.3g}")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
