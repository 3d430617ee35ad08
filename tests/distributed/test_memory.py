"""A plan of real processes against what they hold: within 5 % at the peak, and kind by kind, by torch's own account."""

from __future__ import annotations

import gc
from typing import NamedTuple

import pytest
import torch
from distributed.ranks import on_ranks
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from asyncpp.config import Config, from_hydra
from asyncpp.hydra_command import compose_overrides
from asyncpp.optim.base import UpdateRule
from asyncpp.pipeline.mesh import Mesh, Position
from asyncpp.plan import from_hydra as plan_from_hydra
from asyncpp.planner.memory import GROUP_ELEMENTS
from asyncpp.planner.stages import Stage, cut
from asyncpp.trainer.processes import build_runtime

NUM_STEPS, FULL = 6, 3  # batches, and the first that finds every version and sum there
COMMON = ("data=sotu", "pipeline.num_stages=2", f"trainer.num_steps={NUM_STEPS}")
RUNS = [
    (pipeline, *overrides)
    for pipeline in ("pipeline=two_bw", "pipeline=one_f_one_b")
    for overrides in [
        ("trainer.num_micro_batches=4", "optimizer=adamw"),
        ("trainer.num_micro_batches=4", "optimizer=muon", "correction=ef"),
        ("trainer.num_micro_batches=2", "data.sequence_length=192"),  # activations, and logits in several pieces
        ("trainer.num_micro_batches=4", "trainer.batch_size=4", "data.sequence_length=16", "optimizer=adan"),
        ("trainer.num_micro_batches=4", "model=tiny_moe"),
        ("trainer.num_micro_batches=4", "trainer.autocast=bfloat16"),
    ]
]


class Held(NamedTuple):
    """Bytes. peak: the most at once after batch FULL. The others: of the tensors at the end."""

    peak: int
    weights: int
    weight_versions: int
    state: int


def measure(rank: int, configs: list[Config], windows: list[Tensor]) -> list[Held]:
    """Everything that a rank allocates, from before its weights are there."""
    UpdateRule.max_elements_on_cpu = GROUP_ELEMENTS  # groups as on accelerators, which plans are for
    mesh = Mesh(Position(rank, 2, 1), timeout_s=60.0)
    return [measure_one(mesh, config, tokens) for config, tokens in zip(configs, windows, strict=True)]


def measure_one(mesh: Mesh, config: Config, windows: Tensor) -> Held:
    def read(batch: int, micro_batch: int) -> Tensor:
        return windows[batch].chunk(config.trainer.num_micro_batches)[micro_batch]

    gc.collect()  # the run before, or its end would be counted here
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        runtime = build_runtime(config, mesh, read, windows[0, :2])
        for batch, _ in enumerate(runtime.train()):
            if batch == FULL:
                with record_function("full"):
                    pass
    held = peak = 0
    is_full = False
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        is_full |= event.name() == "full"
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held) if is_full else 0
    states = [part.state for part in runtime.parts]
    versions = [
        state.versions.at(v) for state in states for v in range(state.versions.oldest, state.versions.newest + 1)
    ]
    kept = [tensors for state in states for group in state.optimizer.groups for tensors in group.rule.state.values()]
    kept += [tensors for state in states for tensors in state.correction.state.values()]
    return Held(peak, num_bytes(versions[-1:]), num_bytes(versions[:-1]), num_bytes(kept))


def num_bytes(lists: list[list[Tensor]]) -> int:
    """Of all storages, each once."""
    storages = [tensor.untyped_storage() for tensors in lists for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def config_of(overrides: tuple[str, ...]) -> Config:
    return from_hydra(compose_overrides([*COMMON, *overrides]))


def planned(config: Config, overrides: tuple[str, ...]) -> list[Stage]:
    trainer = [f"trainer.{name}={getattr(config.trainer, name)}" for name in ("batch_size", "num_micro_batches")]
    precision = "float32" if config.trainer.autocast is None else "bf16_autocast"
    plan = plan_from_hydra(
        compose_overrides(
            ["model=tiny", *COMMON, "hardware=cpu", f"precision={precision}", *trainer, *overrides], "plan"
        )
    )
    assert plan.model == config.model
    return cut(plan)


@pytest.fixture(scope="module")
def measured() -> list[list[Held]]:
    """By rank, then by run."""
    configs = [config_of(overrides) for overrides in RUNS]
    windows = [
        torch.randint(config.model.vocab_size, (NUM_STEPS, config.trainer.batch_size, config.data.sequence_length + 1))
        for config in configs
    ]
    return on_ranks(2, measure, configs, windows)


@pytest.mark.slow
@pytest.mark.parametrize("run", range(len(RUNS)), ids=[" ".join(overrides) for overrides in RUNS])
def test_ranks_hold_what_was_planned(measured, run):
    for stage, held in zip(planned(config_of(RUNS[run]), RUNS[run]), [by_run[run] for by_run in measured], strict=True):
        memory = stage.memory
        assert held.weights == memory.weights
        assert held.weight_versions == memory.weight_versions
        assert held.state == pytest.approx(memory.optimizer_state + memory.correction_state, rel=1e-12)
        assert memory.total == pytest.approx(held.peak, rel=0.05)
