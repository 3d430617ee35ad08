"""Times, bubbles and bytes: closed forms where there are some, arithmetic by hand where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import schedules

from asyncpp.errors import ConfigError
from asyncpp.schedule.action import BACKWARD, FORWARD, RECV, SEND, UPDATE
from asyncpp.schedule.builders import build
from asyncpp.schedule.timeline import CostModel, timeline

STAGES, MICRO_BATCHES, COST = st.integers(1, 12), st.integers(1, 24), st.integers(1, 9)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(["gpipe", "one_f_one_b"]), P=STAGES, m=MICRO_BATCHES, forward=COST, backward=COST)
def test_the_bubble_of_gpipe_and_1f1b(name, P, m, forward, backward):
    times = timeline(build(name, P, m, num_batches=3), CostModel(forward, backward))
    assert times.bubble_fraction == (P - 1) / (m + P - 1)
    assert times.bubble_fraction_per_stage.tolist() == [(P - 1) / (m + P - 1)] * P
    assert times.duration == 3 * (m + P - 1) * (forward + backward)
    if m >= P:
        assert times.steady_bubble_fraction == (P - 1) / (m + P - 1)


@settings(max_examples=40, deadline=None)
@given(P=STAGES, data=st.data(), forward=COST, backward=COST, update=st.integers(0, 5))
def test_two_bw_has_no_bubble_once_it_is_full(P, data, forward, backward, update):
    m = data.draw(st.integers(P, 24))
    times = timeline(build("two_bw", P, m, num_batches=4), CostModel(forward, backward, update))
    assert times.steady_bubble_fraction == 0.0
    if update == 0:
        assert times.bubble_fraction == (P - 1) / (4 * m + P - 1)  # filled and drained once


@settings(max_examples=25, deadline=None)
@given(P=STAGES, data=st.data(), forward=COST, backward=COST)
def test_two_bw_hides_the_norm(P, data, forward, backward):
    """Clipping by the norm of the whole gradient costs nothing while the all-reduce is as short as a forward."""
    m = data.draw(st.integers(P, 24))
    costs = CostModel(forward, backward, update=1.0, norm=float(forward))
    assert timeline(build("two_bw", P, m, num_batches=4), costs).steady_bubble_fraction == 0.0


def test_a_norm_of_the_whole_gradient_takes_pipedreams_overlap_away():
    """An update after every micro-batch would wait for that micro-batch to come back to the first stage."""
    schedule = build("pipedream", 4, 4, num_batches=4)
    assert timeline(schedule, CostModel(1, 1)).steady_bubble_fraction == 0.0
    assert timeline(schedule, CostModel(1, 1, norm=0.0)).steady_bubble_fraction == 0.6


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(["pipedream", "wpipe"]), P=STAGES, data=st.data(), forward=COST, backward=COST)
def test_pipedream_and_wpipe_have_no_bubble_once_they_are_full(name, P, data, forward, backward):
    m = data.draw(st.integers(P, 24))
    times = timeline(build(name, P, m, num_batches=4), CostModel(2 * forward, 2 * backward))
    assert times.steady_bubble_fraction == 0.0


@settings(max_examples=30, deadline=None)
@given(P=st.integers(2, 12), rounds=st.integers(1, 4), num_chunks=st.sampled_from([2, 4]), forward=COST, backward=COST)
def test_the_bubble_of_interleaved_is_smaller_by_the_number_of_chunks(P, rounds, num_chunks, forward, backward):
    m = rounds * P
    times = timeline(build("interleaved", P, m, 2, num_chunks), CostModel(4 * forward, 4 * backward))
    assert times.bubble_fraction == (P - 1) / (num_chunks * m + P - 1)


@settings(max_examples=40, deadline=None)
@given(
    schedule=schedules(max_stages=6, max_micro_batches=8),
    latency=st.floats(0, 2),
    transfer=st.floats(0, 2),
    jitter=st.floats(0, 0.5),
)
def test_no_stage_does_two_things_at_once_and_nothing_comes_before_it_is_sent(schedule, latency, transfer, jitter):
    costs = CostModel(update=0.5, transfer=transfer, latency=latency, norm=0.1, jitter=jitter, seed=3)
    times = timeline(schedule, costs)
    sent, last_backward = {}, {}
    for stage, actions in enumerate(schedule.stages):
        assert (times.start[stage][1:] >= times.end[stage][:-1]).all()
        assert (times.end[stage] >= times.start[stage]).all()
        for action, end in zip(actions, times.end[stage], strict=True):
            part = schedule.part(stage, action.chunk)
            if action.kind is SEND:
                to = part + 1 if action.payload is action.payload.ACTIVATION else part - 1
                sent[action.payload, action.batch, action.micro_batch, to] = end
            elif action.kind is BACKWARD:
                key = action.batch, action.chunk
                last_backward[key] = max(end, last_backward.get(key, 0.0))
    for stage, actions in enumerate(schedule.stages):
        for action, start, end in zip(actions, times.start[stage], times.end[stage], strict=True):
            if action.kind is RECV:
                part = schedule.part(stage, action.chunk)
                key = action.payload, action.batch, action.micro_batch, part
                assert end >= sent[key] + transfer + latency - 1e-9
            elif action.kind is UPDATE:
                assert start >= last_backward[action.batch, action.chunk] + 0.1 - 1e-9


def test_times_by_hand():
    """Two stages, one micro-batch: forward 1 and 3, backward 2 and 4, a message 0.5 long that takes 0.25 more."""
    costs = CostModel(forward=[1, 3], backward=[2, 4], update=10, transfer=0.5, latency=0.25)
    times = timeline(build("gpipe", 2, 1, 1), costs)
    found = [
        {str(action): (float(start), float(end)) for action, start, end in zip(actions, starts, ends, strict=True)}
        for actions, starts, ends in zip(times.schedule.stages, times.start, times.end, strict=True)
    ]
    assert found[0] == {
        "F0.0@0": (0, 1),
        "SA0.0>1": (1, 1),
        "RG0.0<1": (1, 9.5),
        "B0.0@0": (9.5, 11.5),
        "U0@1": (11.5, 21.5),
    }
    assert found[1] == {
        "RA0.0<0": (0, 1.75),
        "F0.0@0": (1.75, 4.75),
        "B0.0@0": (4.75, 8.75),
        "SG0.0>0": (8.75, 8.75),
        "U0@1": (8.75, 18.75),
    }
    assert times.duration == 21.5
    assert times.busy.tolist() == [13, 17]
    assert times.bubble_fraction == (43 - 30) / 43
    assert times.steady_bubble_fraction is None


def test_a_busy_link_delays_messages_and_a_full_buffer_the_sender():
    schedule = build("gpipe", 2, 4, 1)
    slow_link = timeline(schedule, CostModel(forward=[1, 1], backward=1, transfer=[5, 0]))
    forwards = [i for i, action in enumerate(schedule.stages[1]) if action.kind is FORWARD]
    assert slow_link.start[1][forwards].tolist() == [6, 11, 16, 21]
    slow_reader = timeline(schedule, CostModel(forward=[1, 10], backward=1))
    sends = [i for i, action in enumerate(schedule.stages[0]) if action.kind is SEND]
    assert slow_reader.end[0][sends].tolist() == [1, 2, 3, 11]  # the fourth waits until the second is taken


def test_the_slowest_stage_sets_the_pace_of_two_bw():
    times = timeline(build("two_bw", 3, 6, 5), CostModel(forward=[1, 2, 1], backward=[2, 4, 2]))
    begin, end = (times.start[1][times.schedule.stages[1].index(a)] for a in _first_forwards(times.schedule, (1, 4)))
    assert end - begin == 3 * 6 * 6
    assert times.bubble_fraction_per_stage[1] < 0.05 < times.bubble_fraction_per_stage[0]


def _first_forwards(schedule, batches):
    forwards = [action for action in schedule.stages[1] if action.kind is FORWARD and action.micro_batch == 0]
    return [next(action for action in forwards if action.batch == batch) for batch in batches]


def test_jitter_comes_from_its_seed_and_keeps_the_mean():
    schedule = build("two_bw", 2, 20, 20)
    one, again, other = (timeline(schedule, CostModel(1, 1, jitter=0.5, seed=seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one.end, again.end, strict=True))
    assert one.duration != other.duration
    assert one.busy == pytest.approx([800, 800], rel=0.05)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (CostModel(forward=[1, 2, 3]), "forward=[1, 2, 3]: expected a number, zero or more, or a list of num_stages=2"),
        (CostModel(forward=0), "forward=0: expected > 0"),
        (CostModel(backward=-1), "backward=-1: expected a number, zero or more"),
        (CostModel(update=float("nan")), "update=nan: expected a number, zero or more"),
        (CostModel(transfer=[1, 2, 3]), "transfer=[1, 2, 3]: expected a number"),
        (CostModel(latency=-1), "latency=-1: expected zero or more"),
        (CostModel(norm=-1), "norm=-1: expected zero or more, or null"),
        (CostModel(jitter=1), "jitter=1: expected a number in [0, 1)"),
        (CostModel(seed=-1), "seed=-1: expected zero or more"),
    ],
)
def test_costs_that_mean_nothing(costs, message):
    with pytest.raises(ConfigError) as raised:
        timeline(build("gpipe", 2, 2, 1), costs)
    assert str(raised.value).startswith(message)
