"""Plans of small models on the CPU, where what they say can be measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asyncpp.hydra_command import compose_overrides
from asyncpp.plan import from_hydra
from asyncpp.planner.config import PlanConfig

# The vocabulary is small, so that the head, whose gradient is saved, does not hide what the layers save.
SMALL = (
    "model.vocab_size=61",
    "model.num_layers=3",
    "model.hidden_size=24",
    "model.num_heads=6",
    "model.num_kv_heads=2",
    "data=sotu",
    "data.vocab_size=300",  # of the trained tokenizer; a plan reads no data
    "trainer.batch_size=8",
    "trainer.num_micro_batches=4",
    "hardware=cpu",
    "precision=float32",
)


@pytest.fixture
def make_plan() -> Callable[..., PlanConfig]:
    """A checked configuration of a plan, from overrides; ``model=`` first, if not tiny's."""

    def make(*overrides: str) -> PlanConfig:
        return from_hydra(compose_overrides(["model=tiny", *SMALL, *overrides], "plan"))

    return make
