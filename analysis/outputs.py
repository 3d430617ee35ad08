"""What analysis commands leave: where they write, by which command, and which runs they passed over."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from asyncpp.errors import require
from runs import PassedOver

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


MOST_TOLD = 10  # folders in one note


def command_of(script: str, options: DataclassInstance) -> str:
    """What made a file, for its readers: ``script`` with runs and out, and what else differs from the defaults.

    Without json, which changes nothing but what is printed.
    """
    told = [
        f"{field.name}={shlex.quote(str(value))}"
        for field in fields(options)
        if (value := getattr(options, field.name)) != field.default or field.name in ("runs", "out")
        if field.name != "json"
    ]
    return " ".join([f"python analysis/{script}", *told])


def output_folder(out: Path) -> Path:
    """``out``, made where it is missing. Raises ConfigError where nothing can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        writable = os.access(out, os.W_OK)
    except OSError:
        writable = False
    require(writable, "out", out, "expected a folder that can be written")
    return out


def not_counted(passed_over: Sequence[PassedOver]) -> list[str]:
    """For the reader of a written file: a note of what was passed over, none where everything counts."""
    told = [f"{entry.folder.name}: {entry.reason}" for entry in passed_over[:MOST_TOLD]]
    more = len(passed_over) - len(told)
    told += [f"and {more} more, which json=true lists"] if more else []
    return [f"Not counted, of the folders below runs: {'; '.join(told)}."] if told else []


def report_passed_over(passed_over: Sequence[PassedOver]) -> None:
    """Say on standard error which runs no table or figure counts, and why."""
    if passed_over:
        print(f"passed over {len(passed_over)} run folder{'s' if len(passed_over) > 1 else ''}:", file=sys.stderr)
        for entry in passed_over:
            print(f"  {entry.folder}: {entry.reason}", file=sys.stderr)
