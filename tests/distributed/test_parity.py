"""The processes of a pipeline give the simulator's numbers to the last bit: losses, norms, validation, weights."""

from __future__ import annotations

import itertools

import pytest
import torch
from distributed.ranks import Outcome, on_ranks, train_many

from asyncpp.trainer.setup import build_simulator
from asyncpp.trainer.simulated import Simulated

NUM_STEPS = 4
COMMON = ("model.num_layers=4", f"trainer.num_steps={NUM_STEPS}", "data.sequence_length=9", "trainer.eval_batch_size=2")


def tokens(num_rows: int, seed: int = 7) -> torch.Tensor:
    starts = torch.randint(0, 61, (num_rows, 1), generator=torch.Generator().manual_seed(seed))
    return (starts + torch.arange(10)) % 61


def simulate(config, windows, validation) -> Outcome:
    simulator = build_simulator(config)
    pipeline = Simulated(
        simulator,
        enumerate(windows),
        lambda step: config.lr_schedule.factor(step, config.trainer.num_steps),
        validation,
        config.trainer.eval_batch_size,
        None,
    )
    records, losses = [], []
    for record in pipeline.train():
        records.append(record)
        losses.append(pipeline.validation_losses())
    return Outcome(
        [record.loss for record in records],
        [record.update.grad_norm for record in records],
        [record.update.staleness_updates for record in records],
        losses,
        dict(enumerate(simulator.newest_weights())),
        simulator.measurements(),
    )


def check(outcomes: list[Outcome], expected: Outcome, name: str) -> None:
    """outcomes: of all ranks of one pipeline."""
    books = outcomes[0]
    assert books.losses == expected.losses, name
    assert books.grad_norms == expected.grad_norms, name
    assert books.staleness == expected.staleness, name
    assert all(outcome.validation == expected.validation for outcome in outcomes), name
    assert {index for outcome in outcomes for index in outcome.weights} == set(expected.weights), name
    for outcome in outcomes:
        for index, weight in outcome.weights.items():
            assert torch.equal(weight, expected.weights[index]), (name, index)


def cases(num_stages: int):
    """Every combination of the issue that a depth has."""
    for factor, optimizer, correction, tied, clip, dtype in itertools.product(
        (1, 2), ("adamw", "muon"), ("none", "ef"), ("false", "true"), ("1.0", "null"), ("float32", "float64")
    ):
        num_micro_batches = factor * num_stages
        yield (
            f"optimizer={optimizer}",
            f"correction={correction}",
            f"model.tied_embeddings={tied}",
            f"trainer.max_grad_norm={clip}",
            f"trainer.dtype={dtype}",
            f"trainer.num_micro_batches={num_micro_batches}",
            f"trainer.batch_size={num_micro_batches}",
        )


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_two_bw_is_the_simulator_with_one_step_of_delay(make_config, num_stages):
    validation = tokens(5, seed=1)  # batches of 2, 2 and 1
    names = list(cases(num_stages))
    by_size: dict[int, list] = {}
    for name in names:
        by_size.setdefault(int(name[-1].partition("=")[2]), []).append(name)
    for batch_size, group in by_size.items():
        windows = tokens(NUM_STEPS * batch_size).view(NUM_STEPS, batch_size, 10)
        real = [make_config(*COMMON, *name, "pipeline=2bw", f"pipeline.num_stages={num_stages}") for name in group]
        by_rank = on_ranks(num_stages, train_many, real, windows, validation)
        for case, name in enumerate(group):
            expected = simulate(make_config(*COMMON, *name, "delay=one_step"), windows, validation)
            check([outcomes[case] for outcomes in by_rank], expected, str(name))
