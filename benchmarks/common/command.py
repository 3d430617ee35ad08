"""The command of a benchmark: options in, and what it measured out, as one JSON document or a line a figure."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from asyncpp.arguments import run_command
from asyncpp.errors import EXIT_DONE, EXIT_FAILED

Options = TypeVar("Options")


def run_benchmark(
    usage: str | None,
    schema: type[Options],
    measure: Callable[[Options], Mapping[str, Any]],
    show: Callable[[Mapping[str, Any]], None] | None = None,
) -> int:
    """Run ``measure`` with what the command line makes of ``schema``, or print ``usage``. Returns an exit code.

    schema: its ``json`` asks for one JSON document. measure: its figures by name; where one of them is ``holds``, and
    false, the exit code is EXIT_FAILED. show: prints them without ``json``; by default a line each.
    """

    def command(options: Options) -> int:
        figures = measure(options)
        if options.json:  # pyright: ignore[reportAttributeAccessIssue]
            print(json.dumps(figures))
        else:
            (show or show_figures)(figures)
        return EXIT_DONE if figures.get("holds", True) else EXIT_FAILED

    return run_command(usage or "", sys.argv[1:], schema, command)


def show_figures(figures: Mapping[str, Any], indent: str = "") -> None:
    """Print a line a figure, and groups of them below their names."""
    width = max(map(len, figures), default=0)
    for name, value in figures.items():
        if isinstance(value, Mapping):
            print(f"{indent}{name}")
            show_figures(value, f"{indent}  ")
        else:
            text = f"{value:,.3f}" if isinstance(value, float) else str(value)
            print(f"{indent}{name:{width}} {text:>16}")
