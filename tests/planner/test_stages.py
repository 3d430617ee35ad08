"""Which stage has what, how much of it, and what would make it fit."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from asyncpp.model.counts import parameter_counts
from asyncpp.planner.changes import changes, max_memory_bytes
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.memory import Memory
from asyncpp.planner.stages import Stage, cut, held_by_part
from asyncpp.planner.units import units

SCHEDULES = ("gpipe", "one_f_one_b", "interleaved", "two_bw", "pipedream", "wpipe")


@pytest.mark.parametrize("tied", ["true", "false"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_unit_is_on_one_stage_and_every_parameter_counted_once(make_plan, schedule, tied):
    config = make_plan(
        f"pipeline={schedule}", "pipeline.num_stages=3", "model.num_layers=8", f"model.tied_embeddings={tied}"
    )
    stages = cut(config)
    num_chunks = len(stages[0].parts)
    in_order = [unit for chunk in range(num_chunks) for stage in stages for unit in stage.parts[chunk].units]
    assert in_order == units(config)
    assert sum(stage.num_parameters for stage in stages) == parameter_counts(config.model).total


PEAKS = {  # P = 3, m = 4: versions; gradient sums, with a backward's own; micro-batches saved, of them at an update
    "gpipe": [(1, 1, 2, 4, 0), (1, 1, 2, 4, 0), (1, 1, 2, 4, 0)],
    "one_f_one_b": [(1, 1, 2, 3, 0), (1, 1, 2, 2, 0), (1, 1, 2, 1, 0)],
    "two_bw": [(2, 2, 2, 3, 3), (2, 2, 3, 2, 2), (2, 2, 3, 1, 1)],
    "pipedream": [(3, 1, 1, 3, 2), (2, 1, 1, 2, 1), (1, 1, 1, 1, 0)],
}


@pytest.mark.parametrize("schedule", PEAKS)
def test_what_a_stage_holds_is_counted_from_the_schedule(make_plan, schedule):
    config = make_plan(f"pipeline={schedule}", "pipeline.num_stages=3")
    assert [tuple(asdict(held).values()) for held in held_by_part(config)] == PEAKS[schedule]


def test_the_simulator_holds_what_its_delays_ask_for(make_plan):
    config = make_plan("pipeline=simulated", "delay=pipedream", "pipeline.num_stages=3")
    assert [held.weight_versions for held in held_by_part(config)] == [3, 2, 1]
    (stage,) = cut(config)
    assert config.num_ranks == 1 and len(stage.parts) == 3


def test_kinds_follow_versions_sums_precision_and_corrections(make_plan):
    """One layer of 2BW in mixed precision: every kind by its own factor."""
    common = ("pipeline=two_bw", "pipeline.num_stages=3", "optimizer=adamw", "precision=bf16_mixed")
    plain, corrected = (cut(make_plan(*common, f"correction={name}"))[1] for name in ("none", "ef"))
    size = plain.num_parameters
    memory = plain.memory
    assert memory.weights == 6 * size  # bf16, and its copy in fp32
    assert memory.weight_versions == 2 * size
    assert memory.gradients == 2 * 4 * size
    assert memory.optimizer_state == 2 * 4 * size
    assert memory.correction_state == 0
    assert corrected.memory == memory + Memory(correction_state=4 * size)


def test_a_tied_head_away_from_the_embedding_has_a_copy_of_it(make_plan):
    def last_stage(tied: str, num_stages: int) -> Memory:
        overrides = (f"pipeline.num_stages={num_stages}", f"model.tied_embeddings={tied}", "optimizer=adamw")
        return cut(make_plan("pipeline=one_f_one_b", *overrides))[-1].memory

    for kind in ("weights", "gradients", "optimizer_state"):
        assert getattr(last_stage("true", 3), kind) == getattr(last_stage("false", 3), kind)
    table_bytes = 61 * 24 * 4
    alone, apart = last_stage("true", 1), last_stage("false", 1)
    assert apart.weights - alone.weights == table_bytes
    assert apart.optimizer_state - alone.optimizer_state == 2 * table_bytes
    assert apart.gradients == alone.gradients  # which are summed after the last micro-batch only


def test_replicas_average_in_a_flat_copy_beside_the_next_batch_or_before_the_update(make_plan):
    def memories(*overrides: str) -> tuple[Memory, Memory]:
        """Of a middle stage, alone and with a second replica, of micro-batches of one size."""
        common = ("pipeline.num_stages=3", "optimizer=sgd", *overrides)
        alone, replicated = (
            cut(make_plan(*common, f"pipeline.data_parallel={n}", f"trainer.batch_size={n * 4}"))[1] for n in (1, 2)
        )
        return alone.memory, replicated.memory

    alone, replicated = memories("pipeline=two_bw", "data.sequence_length=128")
    assert replicated == alone + Memory(buffers=alone.gradients / 2)  # of two sums
    alone, replicated = memories("pipeline=one_f_one_b", "data.sequence_length=128")
    assert replicated == alone  # what is saved for the backwards takes more, and is gone by then


def test_recomputing_keeps_a_layers_input_only(make_plan):
    common = ("pipeline=gpipe", "pipeline.num_stages=3", "data.sequence_length=32")
    layers = [cut(make_plan(*common, f"pipeline.recompute={flag}"))[1] for flag in ("false", "true")]
    tokens, width = 2 * 32, 24
    assert layers[1].memory.saved_activations == 4 * tokens * width * 4
    assert layers[0].memory.saved_activations > 5 * layers[1].memory.saved_activations
    assert layers[1].backward_s == pytest.approx(1.5 * layers[0].backward_s)


def test_the_split_balances_time_and_gives_way_to_memory(make_plan):
    config = make_plan("pipeline=one_f_one_b", "pipeline.num_stages=2", "model.num_layers=8", "model.vocab_size=2048")
    balanced = cut(config)
    assert len(balanced[0].units) > len(balanced[1].units)  # the head takes as long as several layers
    squeezed = cut(with_memory(config, 0.97 * balanced[0].memory.total))
    assert max(stage.memory.total for stage in squeezed) <= 0.97 * balanced[0].memory.total
    assert slowest_s(squeezed) > slowest_s(balanced)
    assert cut(with_memory(config, 1000.0)) == balanced  # nothing fits: as if there were room


def slowest_s(stages: list[Stage]) -> float:
    return max(stage.forward_s + stage.backward_s for stage in stages)


def with_memory(config: PlanConfig, usable_bytes: float) -> PlanConfig:
    return replace(config, hardware=replace(config.hardware, memory_bytes=usable_bytes, reserved_bytes=0.0))


@pytest.mark.parametrize("pipeline", ["simulated", "two_bw", "wpipe"])
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_a_change_that_fits_fits_when_it_is_planned(make_plan, pipeline, share):
    overrides = [f"pipeline={pipeline}", "correction=ef", "model.num_layers=8", "trainer.batch_size=32"]
    overrides += [] if pipeline == "simulated" else ["pipeline.num_stages=2"]
    config = make_plan(*overrides)
    needed = max_memory_bytes(config)
    usable = share * needed
    found = changes(with_memory(config, usable))
    for change in found:
        again = max_memory_bytes(with_memory(make_plan(*overrides, *change.overrides.split()), usable))
        assert again == change.max_memory_bytes < needed
        assert change.fits == (again <= usable)
    fitting = [change for change in found if change.fits]
    assert fitting == found if len(fitting) > 1 else found[:1]


def test_nothing_is_to_be_changed_where_nothing_helps(make_plan):
    config = make_plan("pipeline=simulated", "delay=sync", "trainer.num_micro_batches=8")
    assert changes(with_memory(config, 1000.0)) == []
