"""Recorded times as a timeline: what is recorded of a long run lies on the schedule that starts in its middle."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpp.pipeline.measured import measured_timeline, planned_timeline, time_fractions
from asyncpp.pipeline.trace import RECORD, Trace, read_trace
from asyncpp.schedule.action import UPDATE, Shape, backward, forward, update
from asyncpp.schedule.builders import BUILDERS, build
from asyncpp.schedule.timeline import CostModel, Timeline, timeline

COSTS = CostModel(forward=1.0, backward=2.0, update=0.5, transfer=0.2, latency=0.1, norm=0.3, jitter=0.4)


def run(name: str, num_stages: int, num_micro_batches: int, num_batches: int) -> Timeline:
    """A whole run, in seconds."""
    norm = None if name in ("pipedream", "wpipe") else COSTS.norm
    costs = CostModel(**{**asdict(COSTS), "norm": norm})
    return timeline(build(name, num_stages, num_micro_batches, num_batches), costs)


def records_of(whole: Timeline, first_batch: int) -> list[np.ndarray]:
    """What the stages' traces keep of it."""
    return [
        np.array(
            [
                (action.kind.value, *action[1:5], 1e9 + start, 1e9 + end)
                for action, start, end in zip(actions, starts, ends, strict=True)
                if action.batch >= first_batch
            ],
            dtype=RECORD,
        )
        for actions, starts, ends in zip(whole.schedule.stages, whole.start, whole.end, strict=True)
    ]


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=20, deadline=None)
@given(num_stages=st.integers(1, 5), extra=st.integers(0, 3), first_batch=st.integers(0, 9), seen=st.integers(2, 4))
def test_the_steady_state_of_a_window_is_that_of_the_whole_run(name, num_stages, extra, first_batch, seen):
    m = 1 if BUILDERS[name].one_micro_batch else num_stages + extra
    filling = -(-num_stages // m)
    num_batches = first_batch + filling + seen
    whole = run(name, num_stages, m, num_batches)
    measured = measured_timeline(name, shape_of(whole), records_of(whole, first_batch))
    assert measured.schedule.batches == range(first_batch, num_batches)
    idle = total = 0.0
    for stage in range(num_stages):
        begin, end = measured.steady_span(stage)
        starts = whole.start[stage]
        actions = whole.schedule.stages[stage]
        offset = next(
            s for a, s in zip(actions, starts, strict=True) if (a.kind, a.batch) == ("F", first_batch + filling)
        )
        inside = (starts >= offset) & (starts < offset + (end - begin) / 1e3 - 1e-6)
        busy = inside & np.array([action.kind in ("F", "B", "U") for action in actions])
        busy_s = (whole.end[stage] - starts)[busy].sum()
        own = time_fractions(measured, stage)
        assert own is not None
        assert own.compute + own.update == pytest.approx(busy_s / ((end - begin) / 1e3), abs=1e-5)
        assert sum(asdict(own).values()) == pytest.approx(1.0)
        assert own.other == pytest.approx(0.0, abs=1e-5)  # the timeline's stages do nothing else
        total += end - begin
        idle += end - begin - busy_s * 1e3
    assert measured.steady_bubble_fraction == pytest.approx(idle / total, abs=1e-5)


def shape_of(timeline: Timeline) -> Shape:
    schedule = timeline.schedule
    return Shape(
        num_stages=schedule.num_stages,
        num_micro_batches=schedule.num_micro_batches,
        num_batches=schedule.num_batches,
        num_chunks=schedule.num_chunks,
        first_batch=schedule.first_batch,
    )


@pytest.mark.parametrize("name", ["two_bw", "interleaved"])
def test_the_plan_takes_what_the_actions_took(name):
    """Where every action takes its cost, and messages no time, the plan is the run."""
    costs = CostModel(forward=[1.0, 3.0], backward=[4.0, 2.0], update=0.5)
    whole = timeline(build(name, 2, 4, 6), costs)
    planned = planned_timeline(measured_timeline(name, shape_of(whole), records_of(whole, 0)))
    for stage in range(2):
        np.testing.assert_allclose(planned.start[stage], whole.start[stage] * 1e3, atol=1e-3)
    assert planned.steady_batch_duration == pytest.approx(whole.steady_batch_duration * 1e3)


def test_waiting_is_told_apart():
    whole = run("one_f_one_b", 2, 4, 5)
    own = time_fractions(measured_timeline("one_f_one_b", shape_of(whole), records_of(whole, 0)), 1)
    assert own is not None and own.wait_norm > 0.01 and own.wait_receive > 0.01
    later = records_of(whole, 0)
    for record in later[1]:
        if record["kind"] == UPDATE.value:
            record["start_s"] -= 0.1  # of the wait for the norm, a part was the update's work
    moved = time_fractions(measured_timeline("one_f_one_b", shape_of(whole), later), 1)
    assert moved is not None and moved.wait_norm < own.wait_norm
    assert moved.update - own.update == pytest.approx(own.wait_norm - moved.wait_norm)
    assert moved.wait_receive == own.wait_receive


def test_a_stage_that_recorded_less_is_followed_by_all():
    whole = run("two_bw", 2, 2, 8)
    few, many = records_of(whole, 4), records_of(whole, 2)
    measured = measured_timeline("two_bw", shape_of(whole), [many[0], few[1]])
    assert measured.schedule.first_batch == 4


@pytest.mark.parametrize("damage", [lambda own: own[:-1], lambda own: own[::-1], lambda own: own[:0]])
def test_records_of_something_else_are_refused(damage):
    whole = run("two_bw", 2, 2, 5)
    own, other = records_of(whole, 0)
    with pytest.raises(ValueError, match="recorded"):
        measured_timeline("two_bw", shape_of(whole), [own, damage(other)])
    with pytest.raises(ValueError, match="recorded"):
        measured_timeline("one_f_one_b", shape_of(whole), [own, other])


def test_a_trace_keeps_the_last_batches_only(tmp_path):
    trace = Trace(first_batch=2)
    done = [
        forward(1, 0, 0),
        forward(2, 0, 1),
        backward(1, 0, 0),
        update(1, 2),
        backward(2, 0, 1, chunk=1),
        update(2, 3),
    ]
    for index, action in enumerate(done):
        trace.begin(action)
        trace.end(action, float(index), index + 0.5)
    trace.write(tmp_path, rank=3)
    records = read_trace(tmp_path, 3)
    fields = records[["kind", "batch", "micro_batch", "chunk", "version"]].tolist()
    assert fields == [("F", 2, 0, 0, 1), ("B", 2, 0, 1, 1), ("U", 2, -1, 0, 3)]
    np.testing.assert_allclose(records["end_s"] - records["start_s"], 0.5)
    np.testing.assert_allclose(np.diff(records["start_s"]), [3.0, 1.0])


def test_clocks_of_processes_agree(tmp_path):
    """However perf_counter counts: the time of a record is the system's."""
    import time

    trace = Trace(0)
    now_s, counter_s = time.time(), time.perf_counter()
    trace.end(forward(0, 0, 0), counter_s, counter_s)
    trace.write(tmp_path, 0)
    assert abs(read_trace(tmp_path, 0)["start_s"][0] - now_s) < 0.05
