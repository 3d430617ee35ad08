"""A plan's total against the most that a training step of the simulator has at once, by torch's own account."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from asyncpp.config import from_hydra
from asyncpp.hydra_command import compose_overrides
from asyncpp.optim.adamw import AdamW
from asyncpp.optim.base import UpdateRule
from asyncpp.optim.mars import MARS
from asyncpp.pipeline.simulator import Simulator
from asyncpp.planner.memory import GROUP_ELEMENTS
from asyncpp.planner.stages import cut
from asyncpp.trainer.setup import build_simulator

# Where passes need most, and last where an update does.
RUNS = [
    ("trainer.num_micro_batches=1",),
    ("trainer.num_micro_batches=4", "optimizer=muon", "correction=ef"),
    ("trainer.num_micro_batches=4", "optimizer=adan", "delay=pipedream", "pipeline.num_stages=4"),
    ("trainer.num_micro_batches=16", "optimizer=soap", "optimizer.precondition_frequency=1"),
    ("trainer.num_micro_batches=2", "model=tiny_moe"),
    ("trainer.batch_size=1", "trainer.num_micro_batches=1", "optimizer=adan"),
]


@pytest.mark.parametrize("overrides", RUNS, ids=" ".join)
def test_the_peak_of_a_step_is_near_what_was_planned(make_plan, monkeypatch, overrides):
    """Backward kernels and optimizers have temporaries of their own, which a plan estimates: so not to the byte.

    Groups are as large as on the accelerators that plans are for.
    """
    for rule in (UpdateRule, AdamW, MARS):
        monkeypatch.setattr(rule, "max_elements_on_cpu", GROUP_ELEMENTS)
    common = ("pipeline=simulated", "trainer.batch_size=16", *overrides)
    config = from_hydra(compose_overrides(["data=sotu", *common]))
    small = ("vocab_size", "num_layers", "hidden_size", "num_heads", "num_kv_heads")
    sizes = [f"model.{name}={getattr(config.model, name)}" for name in small]
    planned = make_plan(*sizes, "data.vocab_size=2048", *common)
    assert planned.model == config.model
    (stage,) = cut(planned)
    memory = stage.memory
    resident = memory.weights + memory.weight_versions + memory.optimizer_state + memory.correction_state
    simulator = build_simulator(config)
    shape = (config.trainer.batch_size, config.data.sequence_length + 1)
    windows = torch.randint(config.model.vocab_size, shape)
    for step in range(5):
        simulator.train_batch(step, windows, 1.0)
    measured = resident + peak_bytes(simulator, 5, windows)
    assert 0.98 * measured <= memory.total <= 1.15 * measured


def peak_bytes(simulator: Simulator, step: int, windows: torch.Tensor) -> int:
    """The most that the step has allocated and not yet freed, beside what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        simulator.train_batch(step, windows, 1.0)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
