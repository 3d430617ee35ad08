"""What every analysis command has in common: key=value options, one line for bad input, an exit code, a report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from asyncpp.errors import EXIT_BAD_INPUT, EXIT_DONE, ConfigError, require
from runs import PassedOver

Options = TypeVar("Options")


def run_command(
    command: Callable[[Options], None], schema: type[Options], arguments: Sequence[str], usage: str | None
) -> int:
    """Call ``command`` with ``arguments`` read into the dataclass ``schema``. Returns the exit code.

    What a user got wrong becomes one line on standard error and EXIT_BAD_INPUT; ``--help`` prints ``usage``.
    """
    if "--help" in arguments or "-h" in arguments:
        print((usage or "").strip())
        return EXIT_DONE
    try:
        command(parse(schema, arguments))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return EXIT_DONE


def parse(schema: type[Options], arguments: Sequence[str]) -> Options:
    """The dataclass ``schema`` with its defaults replaced by ``key=value`` arguments. Raises ConfigError."""
    options = OmegaConf.structured(schema)
    known = [field.name for field in fields(schema)]  # pyright: ignore[reportArgumentType]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        require(key in known, key, value, f"no such key; accepted here: {', '.join(known)}")
        require(bool(equals and value), key, value, "expected a value after the equals sign")
        try:
            options[key] = value
            _ = options[key]  # resolves an interpolation, which no option may be
        except OmegaConfBaseException as error:
            raise ConfigError(key, value, str(error).splitlines()[0].lower()) from None
    return OmegaConf.to_object(options)  # pyright: ignore[reportReturnType]


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
