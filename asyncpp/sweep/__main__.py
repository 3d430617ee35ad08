"""Run a sweep file: one of sweeps/, each of which stands for a table or figure of the paper.

    python -m asyncpp.sweep run demo                     every cell that is not finished, two at a time
    python -m asyncpp.sweep run demo seeds=[0,1,2] num_parallel=4
    python -m asyncpp.sweep run my_sweep.yaml            a file of one's own

A cell is a run of ``python -m asyncpp.train`` in a process of its own, in runs/<sweep>/. All cells are checked, and
the data is prepared, before the first one starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from asyncpp.arguments import parse_arguments, stop_on_signals
from asyncpp.command import exit_code_of
from asyncpp.errors import EXIT_DONE, ConfigError, require
from asyncpp.sweep.expand import SweepOptions
from asyncpp.sweep.run import run_sweep


def run(arguments: Sequence[str]) -> int:
    require(len(arguments) > 0, "command", "run", "expected run <sweep> [key=value ...]")
    return run_sweep(arguments[0], parse_arguments(arguments[1:], SweepOptions))


# Each is given what stands after its name, and returns an exit code.
COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {"run": run}


def main() -> int:
    stop_on_signals()
    arguments = sys.argv[1:]
    if not arguments or {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return EXIT_DONE

    def command() -> int:
        name, *rest = arguments
        if name not in COMMANDS:
            raise ConfigError("command", name, f"expected one of {', '.join(COMMANDS)}")
        return COMMANDS[name](rest)

    return exit_code_of(command, arguments)


if __name__ == "__main__":
    sys.exit(main())
