"""Run a sweep and look after it. A sweep is a file of sweeps/, which stands for a table or figure of the paper.

    python -m asyncpp.sweep run demo                     every cell that is not finished, two at a time
    python -m asyncpp.sweep run demo seeds=[0,1,2] num_parallel=4
    python -m asyncpp.sweep run my_sweep.yaml            a file of one's own
    python -m asyncpp.sweep run table3_moe scale=paper launcher.partition=gpu
    python -m asyncpp.sweep list [json=true]             what there is in sweeps/, and what it costs at every scale
    python -m asyncpp.sweep status demo [--watch] [json=true]
    python -m asyncpp.sweep retry demo                   the failed cells only
    python -m asyncpp.sweep cancel demo                  what runs saves its state first; run goes on from there
    python -m asyncpp.sweep prune demo                   says what could go; confirm=true removes it

A cell is a run in a process or job of its own, in runs/<sweep>/; with runs_dir=<folder>, which every command but list
takes, in <folder>/<sweep>/. All cells are checked, and the data is prepared,
before the first one starts. What `python -m asyncpp.train -m ... hydra/launcher=local|slurm` starts is a sweep, too,
and its name is its sweep_name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from asyncpp.arguments import asks_for_help, stop_on_signals
from asyncpp.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, require
from asyncpp.hydra_command import hydra_exit_code_of
from asyncpp.launcher.slurm_commands import SlurmFailed
from asyncpp.sweep.catalogue import list_sweeps
from asyncpp.sweep.control import cancel, retry, run
from asyncpp.sweep.prune import prune
from asyncpp.sweep.status import status

# Each is given a sweep's name and what stands after it, and returns an exit code.
OF_ONE_SWEEP: Mapping[str, Callable[[str, Sequence[str]], int]] = {
    "run": run,
    "status": status,
    "retry": retry,
    "cancel": cancel,
    "prune": prune,
}
LIST = "list"  # of all sweeps


def main() -> int:
    stop_on_signals()
    arguments = sys.argv[1:]
    if not arguments or asks_for_help(arguments):
        print((__doc__ or "").strip())
        return EXIT_DONE

    def command() -> int:
        name, *rest = arguments
        if name == LIST:
            return list_sweeps(rest)
        if name not in OF_ONE_SWEEP:
            raise ConfigError("command", name, f"expected one of {', '.join((*OF_ONE_SWEEP, LIST))}")
        require(len(rest) > 0, "command", name, f"expected {name} <sweep> [key=value ...]")
        return OF_ONE_SWEEP[name](rest[0], rest[1:])

    try:
        return hydra_exit_code_of(command, arguments)
    except SlurmFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("\ninterrupted; what Slurm has goes on, and status shows it", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
