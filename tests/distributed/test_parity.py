"""The processes of a pipeline give the simulator's numbers to the last bit: records, validation, weights, sizes."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
import torch
from distributed.ranks import Outcome, infinite_gradient, on_ranks, train_many
from options import CORRECTIONS, OPTIMIZERS

from asyncpp.trainer.setup import build_simulator
from asyncpp.trainer.simulated import Simulated

NUM_STEPS, BAD_TOKEN = 4, 60
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
        records,
        losses,
        dict(enumerate(simulator.newest_weights())),
        simulator.measurements(),
    )


def check(outcomes: list[Outcome], expected: Outcome, name: str) -> None:
    """outcomes: of all ranks of one pipeline."""
    assert outcomes[0].records == expected.records, name
    assert all(outcome.validation == expected.validation for outcome in outcomes), name
    assert all(outcome.measurements == expected.measurements for outcome in outcomes), name
    assert {index for outcome in outcomes for index in outcome.weights} == set(expected.weights), name
    for outcome in outcomes:
        for index, weight in outcome.weights.items():
            assert torch.equal(weight, expected.weights[index]), (name, index)


def compare(
    make_config, num_stages: int, rows: list[tuple[tuple[str, ...], tuple[str, ...]]], bad_batch: int | None = None
) -> list[Outcome]:
    """Train every row's pipeline and its simulated twin, given as (overrides of both, overrides of the twin).

    bad_batch: in which the embedding's gradient is infinite. Returns what the twins came to.
    """
    validation = tokens(5, seed=1)  # batches of 2, 2 and 1
    bad_token = None if bad_batch is None else BAD_TOKEN
    expected: dict[int, Outcome] = {}
    by_size: dict[int, list[int]] = {}
    real = [make_config(*COMMON, *name, f"pipeline.num_stages={num_stages}") for name, _ in rows]
    for case, config in enumerate(real):
        by_size.setdefault(config.trainer.batch_size, []).append(case)
    for batch_size, group in by_size.items():
        windows = tokens(NUM_STEPS * batch_size).view(NUM_STEPS, batch_size, 10)
        if bad_batch is not None:
            windows[windows == BAD_TOKEN] = 0
            windows[bad_batch, 0, 0] = BAD_TOKEN
        arguments = [real[case] for case in group], windows, validation, bad_token
        by_rank = on_ranks(num_stages, train_many, *arguments)
        for place, case in enumerate(group):
            name, twin = rows[case]
            with nullcontext() if bad_token is None else infinite_gradient(bad_token):
                outcome = simulate(make_config(*COMMON, *name, "pipeline=simulated", *twin), windows, validation)
            check([outcomes[place] for outcomes in by_rank], outcome, str(name))
            expected[case] = outcome
    return [expected[case] for case in range(len(rows))]


def sizes(num_micro_batches: int, rows_each: int = 1) -> tuple[str, ...]:
    return (f"trainer.num_micro_batches={num_micro_batches}", f"trainer.batch_size={num_micro_batches * rows_each}")


FACTORS = {
    "optimizer": ("adamw", "muon"),
    "correction": ("none", "ef"),
    "model.tied_embeddings": ("false", "true"),
    "trainer.max_grad_norm": ("0.5", "null"),
    "trainer.dtype": ("float32", "float64"),
}
EVERY = [
    tuple(f"{key}={value}" for key, value in zip(FACTORS, values, strict=True))
    for values in itertools.product(*FACTORS.values())
]
# Half of them, in which every pair of values still meets every other pair: those with an even number of second values.
HALF = [row for row in EVERY if sum(FACTORS[k].index(v) for k, v in (item.split("=") for item in row)) % 2 == 0]


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_two_bw_is_one_step_of_delay_whatever_is_combined(make_config, num_stages, factor):
    rows = [((*row, *sizes(factor * num_stages), "pipeline=2bw"), ("delay=one_step",)) for row in EVERY]
    compare(make_config, num_stages, rows)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_two_bw_is_one_step_of_delay(make_config, num_stages):
    """At every depth: each combination of the slow test once at one of the depths."""
    chosen = HALF[num_stages - 1 :: 4]
    rows = [((*row, *sizes(2 * num_stages), "pipeline=2bw"), ("delay=one_step",)) for row in chosen]
    compare(make_config, num_stages, rows)


@pytest.mark.parametrize("num_stages", [2, 3])
def test_synchronous_schedules_are_plain_gradient_accumulation(make_config, num_stages):
    """The simulator without delay is a plain loop to the bit (tests/parity)."""
    rows = [
        ((f"pipeline={name}", tied, f"correction={correction}", *sizes(2 * num_stages)), ("delay=sync",))
        for name, tied, correction in (
            ("gpipe", "model.tied_embeddings=true", "none"),
            ("1f1b", "model.tied_embeddings=true", "ef"),
            ("1f1b", "model.tied_embeddings=false", "none"),
        )
    ]
    rows.append((("pipeline=gpipe", *sizes(1)), ("delay=sync",)))  # fewer micro-batches than stages
    compare(make_config, num_stages, rows)


@pytest.mark.parametrize("num_stages", [1, 2])
def test_chunks_of_the_model_go_round(make_config, num_stages):
    rows = [
        (("pipeline=interleaved", tied, *sizes(2 * num_stages)), ("delay=sync",))
        for tied in ("model.tied_embeddings=true", "model.tied_embeddings=false")
    ]
    compare(make_config, num_stages, rows)


@pytest.mark.parametrize("clip_by", ["global", "stage", "previous_step", "none"])
def test_pipedream_has_a_delay_for_every_stage(make_config, clip_by):
    rows = [
        (
            ("pipeline=pipedream", f"trainer.clip_by={clip_by}", "trainer.max_grad_norm=0.5", *sizes(1, 2), split),
            ("delay=pipedream", "pipeline.num_stages=3"),
        )
        for split in ("pipeline.split=null", "pipeline.split=[1,1,2]")
    ]
    compare(make_config, 3, rows)


@pytest.mark.parametrize(
    ("pipeline", "delay", "num_stages", "num_micro_batches"),
    [("2bw", "one_step", 2, 2), ("pipedream", "pipedream", 3, 1)],
)
def test_a_gradient_that_is_not_finite_is_skipped_by_the_same_parts(
    make_config, pipeline, delay, num_stages, num_micro_batches
):
    """It is the first part's: by all of them, or by that one alone where each decides by itself."""
    twin = (f"delay={delay}", f"pipeline.num_stages={num_stages}")
    options = [
        (f"trainer.clip_by={clip_by}", f"correction={correction}")
        for clip_by in ("global", "stage", "previous_step", "none")
        for correction in ("ef", "dc_asgd")
    ]
    common = ("trainer.max_grad_norm=0.5", f"pipeline={pipeline}", *sizes(num_micro_batches, 2))
    rows = [((*row, *common), twin) for row in options]
    for expected in compare(make_config, num_stages, rows, bad_batch=1):
        assert [record.update.skipped for record in expected.records] == [False, True, False, False]
        assert expected.records[1].update.grad_norm == float("inf")


def test_loads_of_experts_are_of_the_whole_model(make_config):
    rows = [
        (("model=tiny_moe", "model.ffn_size=8", f"pipeline={pipeline}", *sizes(2, 2)), (f"delay={delay}",))
        for pipeline, delay in (("2bw", "one_step"), ("interleaved", "sync"))
    ]
    for expected in compare(make_config, 2, rows):
        assert all("moe/load_max_over_mean" in record.metrics for record in expected.records)


# What else makes a correction do all that it can.
IN_FULL = {
    "dc_asgd": ("correction.adaptive=true",),
    "sync_start": ("correction.sync_fraction=0.5", "correction.strength=1.0"),
}


def test_every_optimizer_and_correction_under_two_bw(make_config):
    options = [(f"optimizer={name}", "correction=ef") for name in OPTIMIZERS]
    options += [(f"correction={name}", *IN_FULL.get(name, ())) for name in CORRECTIONS]
    options += [(f"trainer.clip_by={name}", "trainer.max_grad_norm=0.5") for name in ("stage", "previous_step", "none")]
    options += [("pipeline.recompute=true",), ("trainer.autocast=bfloat16",), ("pipeline.split=[1,3]",)]
    twins = {"pipeline.recompute=true": "pipeline.recompute=false"}
    rows = [
        (
            (*row, "pipeline=2bw", *sizes(2, 2)),
            ("delay=one_step", "pipeline.num_stages=2", *(twins[item] for item in row if item in twins)),
        )
        for row in options
    ]
    compare(make_config, 2, rows)
