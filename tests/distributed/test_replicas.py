"""Data parallelism: copies of the pipeline that share out every batch, and may share out the updates."""

from __future__ import annotations

import pytest
import torch
from distributed.ranks import Outcome, on_ranks, train_many
from distributed.test_parity import COMMON, NUM_STEPS, simulate, tokens

BATCH_SIZE = 8


def train(make_config, rows: list[tuple[str, ...]], num_stages: int, data_parallel: int) -> list[list[Outcome]]:
    """Outcomes by case, then by rank."""
    shape = (f"pipeline.num_stages={num_stages}", f"pipeline.data_parallel={data_parallel}")
    configs = [make_config(*COMMON, *row, "pipeline=2bw", f"trainer.batch_size={BATCH_SIZE}", *shape) for row in rows]
    windows = tokens(NUM_STEPS * BATCH_SIZE).view(NUM_STEPS, BATCH_SIZE, 10)
    by_rank = on_ranks(num_stages * data_parallel, train_many, configs, windows, tokens(5, seed=1))
    return [[outcomes[case] for outcomes in by_rank] for case in range(len(rows))]


@pytest.mark.parametrize("num_stages", [1, 2])
def test_two_replicas_are_one_pipeline_with_the_same_batch(make_config, num_stages):
    rows, tolerances = [], []
    for optimizer, tied in (("adamw", "true"), ("muon", "false")):
        for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-12)):
            rows.append((f"optimizer={optimizer}", f"model.tied_embeddings={tied}", f"trainer.dtype={dtype}",
                         "correction=ef", "optimizer.lr=1e-3", "trainer.num_micro_batches=4"))  # fmt: skip
            tolerances.append(tolerance)
    windows = tokens(NUM_STEPS * BATCH_SIZE).view(NUM_STEPS, BATCH_SIZE, 10)
    for row, tolerance, ranks in zip(rows, tolerances, train(make_config, rows, num_stages, 2), strict=True):
        one = make_config(*COMMON, *row, f"trainer.batch_size={BATCH_SIZE}", "delay=one_step")
        expected = simulate(one, windows, tokens(5, seed=1))
        assert ranks[0].losses == pytest.approx(expected.losses, rel=0, abs=tolerance), row
        for record, wanted in zip(ranks[0].records, expected.records, strict=True):
            assert record.update.grad_norm == pytest.approx(wanted.update.grad_norm, rel=tolerance), row
        for ours in ranks:
            for losses, wanted in zip(ours.validation, expected.validation, strict=True):
                assert losses == pytest.approx(wanted, rel=0, abs=tolerance), row
            for index, weight in ours.weights.items():
                torch.testing.assert_close(weight, expected.weights[index], rtol=0, atol=tolerance)
        for stage in range(num_stages):
            first, second = ranks[stage].weights, ranks[stage + num_stages].weights
            assert all(torch.equal(first[index], second[index]) for index in first)  # replicas never drift apart


def test_sharing_out_the_updates_changes_no_bit_and_halves_the_state(make_config):
    rows = [
        (f"optimizer={optimizer}", f"correction={correction}", "trainer.num_micro_batches=2", tied)
        for optimizer, correction, tied in (
            ("muon", "ef", "model.tied_embeddings=true"),
            ("soap", "none", "model.tied_embeddings=false"),
            ("adamw", "weight_prediction", "model.tied_embeddings=true"),
        )
    ]
    both = rows + [(*row, "pipeline.shard_optimizer=true") for row in rows]
    outcomes = train(make_config, both, num_stages=2, data_parallel=2)
    for row, whole, shared in zip(rows, outcomes[: len(rows)], outcomes[len(rows) :], strict=True):
        assert shared[0].records == whole[0].records, row
        assert [o.validation for o in shared] == [o.validation for o in whole], row
        for a, b in zip(shared, whole, strict=True):
            assert all(torch.equal(a.weights[index], b.weights[index]) for index in b.weights), row
        for key in ("optimizer_state_copies", "correction_state_copies"):
            assert shared[0].measurements[key] == pytest.approx(whole[0].measurements[key] / 2)
        assert shared[0].measurements["num_parameters"] == whole[0].measurements["num_parameters"]
