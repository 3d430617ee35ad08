"""Train one run, or with ``-m`` every combination of the given values.

    python -m asyncpp.train optimizer=muon correction=ef
    python -m asyncpp.train -m optimizer=adamw,muon correction=none,ef

Exit codes: 0 done, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import os
import sys

import hydra
from omegaconf import DictConfig

from asyncpp.arguments import stop_on_signals
from asyncpp.command import exit_code_of
from asyncpp.config import from_hydra
from asyncpp.errors import EXIT_DONE


def main() -> int:
    stop_on_signals()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them and leaving
    exit_codes: list[int] = []

    @hydra.main(config_path="../conf", config_name="train", version_base="1.3")
    def train(composed: DictConfig) -> None:
        exit_codes.append(exit_code_of(lambda: _run(composed), sys.argv[1:]))

    def command() -> int:
        train()
        return max(exit_codes, default=EXIT_DONE)

    return exit_code_of(command, sys.argv[1:])


def _run(composed: DictConfig) -> int:
    config = from_hydra(composed)
    from asyncpp.trainer.run import run  # imports torch, which a wrong configuration need not wait for

    return run(config)


if __name__ == "__main__":
    sys.exit(main())
