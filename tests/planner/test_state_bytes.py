"""A plan's memory against the bytes of live tensors: the simulator built and run, kind by kind, to the byte."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from options import CORRECTIONS, OPTIMIZERS
from torch import Tensor

from asyncpp.model import cross_entropy
from asyncpp.optim import groups
from asyncpp.pipeline.simulator import Simulator
from asyncpp.planner import memory, units
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.stages import cut
from asyncpp.trainer.setup import build_simulator, build_state, initial_weights_of

RUNS = [
    ("optimizer=adamw",),
    ("optimizer=adamw", "trainer.dtype=float64", "trainer.autocast=null"),
    ("optimizer=sgd", "delay=sync"),
    ("optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false"),
    ("optimizer=lion", "correction=nesterov"),
    ("optimizer=adan", "delay=pipedream", "pipeline.num_stages=3"),
    ("optimizer=mars", "correction=weight_prediction"),
    ("optimizer=nadam", "correction=dc_asgd", "correction.adaptive=true"),
    ("optimizer=nadam", "correction=dc_asgd"),
    ("optimizer=muon", "correction=ef", "pipeline.num_stages=2"),
    ("optimizer=muon", "correction=ef", "pipeline.num_stages=2", "delay=constant", "delay.updates=3"),
    ("optimizer=normuon", "correction=sync_start"),
    ("optimizer=normuon", "correction=sync_start", "correction.strength=1"),
    ("optimizer=soap", "correction=lr_damping"),
    ("optimizer=soap", "optimizer.max_precondition_dim=30", "delay=sampled"),
    ("optimizer=muon", "model.tied_embeddings=true", "correction=ef"),
    ("optimizer=adamw", "delay=from_schedule", "delay.schedule=wpipe", "model.num_layers=4", "pipeline.num_stages=2"),
]


def test_every_optimizer_and_correction_is_among_the_runs():
    given = {item for overrides in RUNS for item in overrides}
    for group, names in (("optimizer", OPTIMIZERS), ("correction", CORRECTIONS)):
        assert {f"{group}={name}" for name in names} <= given


@pytest.mark.parametrize("overrides", RUNS, ids=" ".join)
def test_weights_gradients_and_state_take_the_bytes_that_they_were_planned_to(make_config, make_plan, overrides):
    config = make_config(*overrides, "trainer.batch_size=8", "trainer.num_micro_batches=4")
    precision = [f"precision={config.trainer.dtype}"]
    planned = make_plan("pipeline=simulated", "model.ffn_size=40", *overrides, *precision)
    assert planned.model == config.model
    compare(planned, build_simulator(config))


def test_a_mixture_takes_the_bytes_that_it_was_planned_to(make_config, make_plan):
    overrides = ("optimizer=muon", "correction=ef", "model.num_experts=5", "model.top_k=2", "model.ffn_size=16")
    config = make_config("model=tiny_moe", *overrides, "trainer.batch_size=8", "trainer.num_micro_batches=4")
    planned = make_plan("pipeline=simulated", "model=tiny_moe", *overrides)
    assert planned.model == config.model
    compare(planned, build_simulator(config))


@pytest.mark.parametrize("pipeline", ["two_bw", "interleaved"])
def test_state_that_replicas_share_out_takes_the_bytes_of_the_largest_share(make_config, make_plan, pipeline):
    overrides = (f"pipeline={pipeline}", "pipeline.num_stages=2", "pipeline.data_parallel=3", "model.num_layers=4",
                 "optimizer=muon", "correction=ef", "trainer.batch_size=12", "trainer.num_micro_batches=2")  # fmt: skip
    whole = cut(make_plan("model.ffn_size=40", *overrides))
    sharded = ("pipeline.shard_optimizer=true",)
    config = make_config(*overrides, *sharded)
    planned = make_plan("model.ffn_size=40", *overrides, *sharded)
    assert planned.model == config.model
    weights_of = initial_weights_of(config, torch.device("cpu"))
    for stage, (plan, unsharded) in enumerate(zip(cut(planned), whole, strict=True)):
        shares = []
        for replica in range(3):
            parts = range(config.profile.num_parts)[stage::2]
            states = [build_state(config, part, weights_of, replica) for part in parts]
            shares.append(sum(s.optimizer.num_state_elements() + s.correction.num_state_elements() for s in states))
        assert plan.memory.optimizer_state + plan.memory.correction_state == 4 * max(shares)
        assert plan.memory.optimizer_state < 0.5 * unsharded.memory.optimizer_state
        assert plan.memory.weights == unsharded.memory.weights


def compare(planned: PlanConfig, simulator: Simulator) -> None:
    """Run until every old version is there, then count storages."""
    delays = planned.delay.profile(planned.pipeline).delays
    for step in range(max(delays) + 2):
        gradients = gradients_of(simulator, step)
    newest = [weight for part in simulator.states for weight in part.versions.at(part.versions.newest)]
    versions = [
        weight
        for part in simulator.states
        for version in range(part.versions.oldest, part.versions.newest)
        for weight in part.versions.at(version)
    ]
    state = [
        tensor
        for part in simulator.states
        for group in part.optimizer.groups
        for tensors in group.rule.state.values()
        for tensor in tensors
    ]
    correction = [
        tensor for part in simulator.states for tensors in part.correction.state.values() for tensor in tensors
    ]
    (stage,) = cut(planned)
    expected = stage.memory
    assert num_bytes(newest) == expected.weights
    assert num_bytes(versions) == expected.weight_versions
    assert num_bytes(gradients) == expected.gradients
    assert num_bytes(correction) == expected.correction_state
    # NAdam's scalars are fp32 in fp64, too, and a plan has no place for fractions of an element.
    assert num_bytes(state) == pytest.approx(expected.optimizer_state, rel=1e-12)


def gradients_of(simulator: Simulator, step: int) -> list[Tensor]:
    """Train a batch; what the gradient of its first micro-batch consists of, which the others are added to."""
    taken: list[list[Tensor]] = []
    grad = torch.autograd.grad

    def noted(*arguments, **options):
        taken.append(list(grad(*arguments, **options)))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", noted)
        simulator.train_batch(step, torch.arange(8 * 11).view(8, 11) % 61, 1.0)
    assert len(taken) == 4
    return taken[0]


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Of all storages, each once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def test_constants_are_those_of_the_modules_that_import_torch():
    assert units.LOGITS_TOKENS == cross_entropy.CHUNK_TOKENS
    assert memory.GROUP_ELEMENTS == groups.MAX_ELEMENTS_ON_ACCELERATORS
