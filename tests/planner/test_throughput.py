"""Time: FLOPs as counted for the model, bubbles as the papers have them, and what replicas cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asyncpp.model.counts import flops_per_token
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.report import plan
from asyncpp.planner.stages import cut
from asyncpp.planner.throughput import Throughput, all_reduce_s, throughput

# A vocabulary of one token makes the head cost next to nothing, so that equal numbers of layers are equal stages.
EQUAL_STAGES = ("model.vocab_size=1", "model.num_layers=12", "pipeline.num_stages=4", "model.ffn_size=200")
MANY = ("trainer.batch_size=48", "trainer.num_micro_batches=12")


def at_once(config: PlanConfig) -> PlanConfig:
    """With memory and links that take no time, so that only matrix products do."""
    hardware = replace(config.hardware, memory_bytes_per_s=1e30, link_bytes_per_s=1e30, link_latency_s=0.0)
    return replace(config, hardware=hardware)


def speed(config: PlanConfig) -> Throughput:
    return throughput(config, cut(config))


@pytest.mark.parametrize("model", ["tiny", "tiny_moe", "360m", "10b"])
def test_a_pipeline_without_a_bubble_reaches_the_stated_share_of_the_peak(make_plan, model):
    """All FLOPs that are counted for the model are on some stage, and none twice."""
    shape = ("model.hidden_size=24", "data.sequence_length=32")  # the others are make_plan's or the model's own
    config = at_once(make_plan(f"model={model}", *shape, "pipeline=simulated", "mfu=0.31"))
    result = speed(config)
    assert result.flops_per_step == flops_per_token(config.model, 32) * 8 * 32
    assert result.bubble_fraction == pytest.approx(0.0, abs=1e-9)
    assert result.mfu_with_bubble == pytest.approx(0.31)
    assert result.tokens_per_s == pytest.approx(8 * 32 / result.step_s)


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [("gpipe", 3 / 15), ("one_f_one_b", 3 / 15), ("interleaved", 1.5 / 13.5), ("two_bw", 0.0), ("pipedream", 0.0)],
)
def test_bubbles_are_those_of_the_papers(make_plan, schedule, wanted):
    """P = 4, m = 12: (P - 1) / (m + P - 1), for v chunks (P - 1) / v in its place, and none without a flush."""
    chunks = ("pipeline.num_chunks=2", "model.num_layers=16") if schedule == "interleaved" else ()
    result = speed(at_once(make_plan(f"pipeline={schedule}", *EQUAL_STAGES, *MANY, *chunks)))
    assert result.bubble_fraction == pytest.approx(wanted, abs=2e-3)
    assert result.mfu_with_bubble == pytest.approx(0.4 * (1.0 - wanted), rel=3e-3)


def test_staleness_is_the_schedules(make_plan):
    for schedule, wanted in (("two_bw", (1,) * 4), ("pipedream", (3, 2, 1, 0)), ("one_f_one_b", (0,) * 4)):
        assert speed(make_plan(f"pipeline={schedule}", *EQUAL_STAGES, *MANY)).staleness_updates == wanted
    simulated = make_plan("pipeline=simulated", "delay=constant", "pipeline.num_stages=2")
    assert speed(simulated).staleness_updates == (2, 2)


def test_replicas_share_a_batch_and_wait_for_its_gradients_only_where_the_pipeline_flushes(make_plan):
    """The all-reduce fits into the slack of 2BW; a synchronous schedule waits for all of it, every step."""
    one = ("trainer.batch_size=48", "trainer.num_micro_batches=12", "pipeline.data_parallel=1")
    two = ("trainer.batch_size=96", "trainer.num_micro_batches=12", "pipeline.data_parallel=2")
    steps = {}
    for schedule in ("one_f_one_b", "two_bw"):
        for overrides in (one, two):
            config = make_plan(f"pipeline={schedule}", *EQUAL_STAGES, *overrides)
            result = speed(config)
            steps[schedule, config.pipeline.data_parallel] = result.step_s
    reduced = max(all_reduce_s(config, stage) for stage in cut(config))
    alone = max(all_reduce_s(make_plan("pipeline=two_bw", *EQUAL_STAGES, *one), stage) for stage in cut(config))
    assert steps["one_f_one_b", 2] - steps["one_f_one_b", 1] == pytest.approx(reduced - alone, rel=1e-6)
    assert steps["two_bw", 2] == pytest.approx(steps["two_bw", 1], rel=1e-9)
    assert reduced > alone


def test_the_budget_and_its_days(make_plan):
    config = make_plan("pipeline=two_bw", "pipeline.num_stages=2", "tokens_per_parameter=3")
    document = plan(config)
    assert document["budget_tokens"] == 3 * document["num_parameters"]
    assert document["days"] == pytest.approx(document["num_steps"] * document["step_s"] / 86400)
    assert document["rank_days"] == 2 * document["days"]
    given = plan(make_plan("pipeline=two_bw", "pipeline.num_stages=2", "budget_tokens=1e6"))
    assert given["budget_tokens"] == 1e6
    assert (given["num_steps"] - 1) * given["batch_tokens"] < 1e6 <= given["num_steps"] * given["batch_tokens"]
