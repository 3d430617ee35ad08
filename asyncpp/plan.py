"""What a run needs and how long it takes, before anything runs.

    python -m asyncpp.plan model=10b optimizer=muon correction=ef pipeline=2bw pipeline.num_stages=8 \
        pipeline.data_parallel=4 hardware=h100

Parameters, memory of every stage by kind, the split of the layers, FLOPs, bubble, tokens per second at a stated share
of the peak, days for the token budget, and whether it fits, or what to change. The keys are those of
``python -m asyncpp.train``, with the defaults of conf/plan.yaml; ``json=true`` prints one JSON document.

pipeline=simulated plans the simulator itself: all stages in one process, with the versions that ``delay`` asks for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig

from asyncpp.arguments import to_dataclass
from asyncpp.config import GROUPS, RECIPE, SCALARS
from asyncpp.errors import EXIT_DONE
from asyncpp.hydra_command import require_known, run_hydra_command, typed
from asyncpp.planner.config import PlanConfig, PlanOptions
from asyncpp.planner.report import plan
from asyncpp.planner.tables import print_plan
from asyncpp.trainer.config import TrainerConfig

PLANNED_GROUPS = ("model", "data", "optimizer", "pipeline", "delay", "correction", "hardware")


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; a plan that does not fit is a plan, and EXIT_DONE."""

    def command(composed: DictConfig) -> int:
        config = from_hydra(composed)
        document = plan(config)
        if config.options.json:
            print(json.dumps(document, indent=1))
        else:
            print_plan(document)
        return EXIT_DONE

    return run_hydra_command(__doc__ or "", arguments, "plan", command)


def from_hydra(composed: DictConfig) -> PlanConfig:
    """Type and check what Hydra composed. Raises ConfigError."""
    option_names = [field.name for field in fields(PlanOptions)]
    accepted = (*GROUPS, "trainer", "hardware", *SCALARS, RECIPE, *option_names)
    require_known(composed, accepted)
    groups: dict[str, Any] = {name: typed(composed, name) for name in PLANNED_GROUPS}
    options = to_dataclass({name: composed[name] for name in option_names}, PlanOptions)
    config = PlanConfig(**groups, trainer=typed(composed, "trainer", TrainerConfig), options=options)
    config.check()
    return config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
