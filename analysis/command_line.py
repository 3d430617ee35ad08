"""What every analysis command has in common: key=value options, one line for bad input, an exit code, a report."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from asyncpp.arguments import Options
from asyncpp.arguments import run_command as run_parsed
from asyncpp.errors import EXIT_DONE, require
from runs import PassedOver

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def run_command(
    command: Callable[[Options], None], schema: type[Options], arguments: Sequence[str], usage: str | None
) -> int:
    """Call ``command`` with ``arguments`` read into the dataclass ``schema``. Returns the exit code.

    What a user got wrong becomes one line on standard error and EXIT_BAD_INPUT; ``--help`` prints ``usage``.
    """

    def done(options: Options) -> int:
        command(options)
        return EXIT_DONE

    return run_parsed(usage or "", arguments, schema, done)


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


def report_passed_over(passed_over: Sequence[PassedOver]) -> None:
    """Say on standard error which runs no table or figure counts, and why."""
    if passed_over:
        print(f"passed over {len(passed_over)} run folder{'s' if len(passed_over) > 1 else ''}:", file=sys.stderr)
        for entry in passed_over:
            print(f"  {entry.folder}: {entry.reason}", file=sys.stderr)
