"""The configuration of a run that takes a second, with whatever a test changes of it."""

from __future__ import annotations

from pathlib import Path

from asyncpp.config import Config, from_hydra
from asyncpp.hydra_command import compose_overrides

NUM_STEPS = 8
SMALL = (
    "model.num_layers=4",
    "model.hidden_size=24",
    "model.ffn_size=40",
    "model.num_heads=3",
    "data.sequence_length=16",
    "data.num_validation_sequences=4",
    "trainer.batch_size=4",
    "trainer.num_micro_batches=4",
    "trainer.eval_every=3",
    f"trainer.num_steps={NUM_STEPS}",
)


def configured(folder: Path, data: str, *overrides: str) -> Config:
    """folder: of its records. data: ``data.root=<prepared tokens>``, which the fixture of that name is."""
    return from_hydra(compose_overrides([*SMALL, data, f"runs_dir={folder}", *overrides]))
