"""What asyncpp.data.prepare and inspect share: ``data=<option> data.<key>=<value>`` to a checked DataConfig."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig

from asyncpp.data.config import DataConfig
from asyncpp.errors import EXIT_INTERRUPTED, require
from asyncpp.hydra_command import run_hydra_command, typed

Options = dict[str, Any]


def run_data_command(
    name: str, usage: str, option_types: Mapping[str, type], command: Callable[[DataConfig, Options], int]
) -> int:
    """Run ``command`` with what sys.argv makes of conf/<name>.yaml. Returns an exit code of asyncpp.errors.

    option_types: the keys beside ``data`` and what their values must be; a whole number must also
    be positive, or null.
    """
    try:
        return run_hydra_command(usage, sys.argv[1:], name, lambda composed: command(*_typed(composed, option_types)))
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED


def print_json(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """One JSON document: the report of the one source, or of a mixture's sources by name."""
    only = next(iter(reports.values()))
    print(json.dumps(only if len(reports) == 1 else reports, indent=1))


def _typed(composed: DictConfig, option_types: Mapping[str, type]) -> tuple[DataConfig, Options]:
    config = typed(composed, "data")
    config.check("data")
    options = {key: composed[key] for key in option_types}
    for key, value in options.items():
        if option_types[key] is bool:
            require(type(value) is bool, key, value, "expected true or false")
        elif value is not None:
            require(type(value) is int and value > 0, key, value, "expected a positive whole number")
    return config, options
