"""What each schedule is known for, over all small shapes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import schedules

from asyncpp.errors import ConfigError
from asyncpp.schedule.action import BACKWARD, FORWARD, RECV, SEND, UPDATE, Shape
from asyncpp.schedule.builders import BUILDERS, build, canonical_name, stage_actions
from asyncpp.schedule.peaks import last_readers, peak_gradients, peak_saved_activations, peak_weight_versions
from asyncpp.schedule.staleness import staleness, steady_staleness
from asyncpp.schedule.validate import validate

STAGES, MICRO_BATCHES = st.integers(1, 12), st.integers(1, 24)
ALL = sorted(BUILDERS)


def order(schedule, stage: int) -> str:
    """A stage's FORWARD, BACKWARD and UPDATE as text."""
    return " ".join(str(action) for action in schedule.stages[stage] if action.kind not in (SEND, RECV))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_schedule_is_valid(name, data):
    schedule = data.draw(schedules(name))
    validate(schedule)
    validate(schedule, global_norm=True)
    if schedule.num_chunks == 1:
        validate(schedule, buffer_size=1)


@pytest.mark.parametrize("name", ALL)
def test_processes_run_what_updates_a_stage_after_all_its_backwards_of_the_batch(name):
    schedule = build(name, num_stages=2, num_micro_batches=4, num_batches=4)
    in_time = True
    for actions in schedule.stages:
        num_backwards = Counter()
        for action in actions:
            num_backwards[action.batch] += action.kind is BACKWARD
            is_whole = num_backwards[action.batch] == schedule.num_micro_batches * schedule.num_chunks
            in_time &= is_whole or action.kind is not UPDATE
    assert BUILDERS[name].runs_in_processes == in_time


@settings(max_examples=30, deadline=None)
@given(schedule=schedules())
def test_every_micro_batch_runs_once_through_every_part(schedule):
    expected = Counter((batch, m) for batch in schedule.batches for m in range(schedule.num_micro_batches))
    for stage in range(schedule.num_stages):
        for chunk in range(schedule.num_chunks):
            own = [action for action in schedule.stages[stage] if action.chunk == chunk]
            for kind in (FORWARD, BACKWARD):
                assert Counter((a.batch, a.micro_batch) for a in own if a.kind is kind) == expected
            assert [a.version for a in own if a.kind is UPDATE] == [batch + 1 for batch in schedule.batches]


@given(num_stages=STAGES, num_micro_batches=MICRO_BATCHES)
@settings(max_examples=20, deadline=None)
def test_pipedream_keeps_all_micro_batches(num_stages, num_micro_batches):
    schedule = build("pipedream", num_stages, num_micro_batches, num_batches=2)
    assert (schedule.num_batches, schedule.num_micro_batches) == (2 * num_micro_batches, 1)


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "interleaved"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_synchronous_schedules_have_no_staleness_and_one_version(name, data):
    schedule = data.draw(schedules(name))
    assert not staleness(schedule).per_batch.any()
    assert set(peak_weight_versions(schedule)) == {1}
    assert set(peak_gradients(schedule)) == {1}


@settings(max_examples=40, deadline=None)
@given(num_stages=STAGES, data=st.data())
def test_two_bw_is_one_update_late_and_keeps_two_versions(num_stages, data):
    m = data.draw(st.integers(num_stages, 24))
    schedule = build("two_bw", num_stages, m, num_batches=4)
    counted = staleness(schedule)
    assert counted.per_batch.tolist() == [[0, 1, 1, 1]] * num_stages
    assert counted.num_mismatches == 0
    assert peak_weight_versions(schedule) == [2] * num_stages
    assert peak_saved_activations(schedule) == [num_stages - stage for stage in range(num_stages)]
    assert max(peak_gradients(schedule)) <= 2
    assert schedule.num_actions == 4 * (m * (6 * num_stages - 4) + num_stages)  # no flush, nothing added


@settings(max_examples=20, deadline=None)
@given(num_stages=STAGES, num_micro_batches=st.integers(13, 24))
def test_pipedream_is_as_late_as_there_are_stages_behind(num_stages, num_micro_batches):
    schedule = build("pipedream", num_stages, num_micro_batches, num_batches=2)
    for stage, row in enumerate(staleness(schedule).per_batch.tolist()):
        assert row == [min(batch, num_stages - 1 - stage) for batch in schedule.batches]
    assert peak_weight_versions(schedule) == [num_stages - stage for stage in range(num_stages)]


@settings(max_examples=15, deadline=None)
@given(num_stages=STAGES, data=st.data())
def test_wpipe_delays_and_doubles_the_first_group_only(num_stages, data):
    m = data.draw(st.integers(num_stages, 24))
    schedule = build("wpipe", num_stages, m, num_batches=3)
    late, fresh = [[0, 1, 1]] * num_stages, [[0, 0, 0]] * num_stages
    assert staleness(schedule).per_batch.tolist() == late + fresh
    assert peak_weight_versions(schedule) == [2] * num_stages + [1] * num_stages


@settings(max_examples=30, deadline=None)
@given(num_stages=STAGES, num_micro_batches=MICRO_BATCHES)
def test_saved_activations_of_gpipe_and_1f1b(num_stages, num_micro_batches):
    P, m = num_stages, num_micro_batches
    assert peak_saved_activations(build("gpipe", P, m, 2)) == [m] * P
    assert peak_saved_activations(build("one_f_one_b", P, m, 2)) == [min(P - stage, m) for stage in range(P)]


@settings(max_examples=20, deadline=None)
@given(num_rounds=st.integers(1, 4), num_stages=st.integers(2, 8), num_chunks=st.integers(2, 4))
def test_interleaved_warms_up_as_in_the_paper(num_rounds, num_stages, num_chunks):
    schedule = build("interleaved", num_stages, num_rounds * num_stages, 1, num_chunks)
    for stage, saved in enumerate(peak_saved_activations(schedule)):
        warm_up = 2 * (num_stages - 1 - stage) + (num_chunks - 1) * num_stages
        assert saved == min(warm_up + 1, num_rounds * num_stages * num_chunks)


def test_lists_are_those_of_the_pictures():
    assert order(build("gpipe", 2, 2, 1), 0) == "F0.0@0 F0.1@0 B0.0@0 B0.1@0 U0@1"
    assert order(build("one_f_one_b", 2, 3, 1), 0) == "F0.0@0 F0.1@0 B0.0@0 F0.2@0 B0.1@0 B0.2@0 U0@1"
    assert order(build("two_bw", 1, 1, 3), 0) == "F0.0@0 B0.0@0 F1.0@0 U0@1 B1.0@0 F2.0@1 U1@2 B2.0@1 U2@3"
    assert order(build("pipedream", 2, 1, 3), 0) == "F0.0@0 F1.0@0 B0.0@0 U0@1 F2.0@1 B1.0@0 U1@2 B2.0@1 U2@3"
    assert order(build("interleaved", 2, 2, 1), 1) == (
        "F0.0@0 F0.1@0 F0.0:1@0 B0.0:1@0 F0.1:1@0 B0.1:1@0 B0.0@0 B0.1@0 U0@1 U0:1@1"
    )
    assert order(build("wpipe", 1, 1, 2), 0) == (
        "F0.0@0 F0.0:1@0 B0.0:1@0 F1.0@0 U0:1@1 B0.0@0 F1.0:1@1 U0@1 B1.0:1@1 U1:1@2 B1.0@0 U1@2"
    )


@settings(max_examples=20, deadline=None)
@given(num_stages=st.integers(2, 12), data=st.data())
def test_two_bw_leaves_the_norm_time_and_the_next_batch_its_version(num_stages, data):
    """On every stage the update of batch t stands between the last backward of t and the first forward of t + 2,
    and causally after the first stage's last backward of t: behind the last activation that it sends after that."""
    m = data.draw(st.integers(num_stages, 24))
    schedule = build("two_bw", num_stages, m, num_batches=4)
    first = schedule.stages[0]
    for actions in schedule.stages:
        for batch in (0, 1):
            at = actions.index(next(a for a in actions if a.kind is UPDATE and a.batch == batch))
            before = [a for a in actions[:at] if a.kind in (FORWARD, BACKWARD)]
            assert (FORWARD, batch + 1, m - 1) in {a[:3] for a in before}
            assert (FORWARD, batch + 2, 0) not in {a[:3] for a in before}
    keys = [action[:3] for action in first]
    assert keys.index((BACKWARD, 0, m - 1)) < keys.index((FORWARD, 1, m - 1))


@pytest.mark.parametrize("name", ALL)
def test_resumed_lists_read_the_versions_of_the_whole_run(name):
    """A segment that starts at batch 7 reads what the whole run's batches read, and has no second start."""
    whole, segment = build(name, 3, 4, 12), build(name, 3, 4, 3, first_batch=7)

    def reads(schedule, batches):
        return [
            {(a.batch, a.micro_batch, a.chunk, a.version) for a in actions if a.kind is FORWARD and a.batch in batches}
            for actions in schedule.stages
        ]

    assert reads(segment, segment.batches) == reads(whole, segment.batches)
    assert staleness(segment).steady == staleness(whole).steady
    assert (staleness(segment).per_batch[:, 0] == staleness(whole).steady).all()
    assert peak_weight_versions(segment) == peak_weight_versions(whole)


def test_a_process_can_read_its_list_without_keeping_it():
    shape = Shape(num_stages=64, num_micro_batches=64, num_batches=10**9)
    endless = stage_actions("two_bw", shape, stage=0)
    assert next(action for action in endless if action.kind is UPDATE) == (UPDATE, 0, -1, 0, 1, None, -1)


def test_last_readers_say_when_a_version_may_go():
    actions = build("two_bw", 1, 1, 3).stages[0]
    assert {key: str(actions[at]) for key, at in last_readers(actions).items()} == {
        (0, 0): "B1.0@0",
        (0, 1): "B2.0@1",
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpipe", (0, 0, 0, 0)),
        ("1f1b", (0, 0, 0, 0)),
        ("2bw", (1, 1, 1, 1)),
        ("pipedream", (3, 2, 1, 0)),
        ("interleaved", (0,) * 8),
        ("wpipe", (1, 1, 1, 1, 0, 0, 0, 0)),
    ],
)
@pytest.mark.parametrize("num_micro_batches", [4, 7])
def test_steady_staleness(name, expected, num_micro_batches):
    assert steady_staleness(name, num_stages=4, num_micro_batches=num_micro_batches) == expected


def test_steady_staleness_of_pipedream_does_not_depend_on_how_short_a_batch_is():
    assert steady_staleness("pipedream", num_stages=12, num_micro_batches=1) == tuple(range(11, -1, -1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2bw", 4, 3, 1), "num_micro_batches=3: expected at least num_stages=4"),
        (("wpipe", 4, 3, 1), "num_micro_batches=3: expected at least num_stages=4"),
        (("gpipe", 0, 4, 1), "num_stages=0: expected 1 or more"),
        (("gpipe", 4, 0, 1), "num_micro_batches=0: expected 1 or more"),
        (("gpipe", 4, 4, 0), "num_batches=0: expected 1 or more"),
        (("gpipe", 4, 4, 1, 2), "num_chunks=2: this schedule has 1"),
        (("wpipe", 4, 4, 1, 3), "num_chunks=3: this schedule has 2"),
        (("interleaved", 4, 4, 1, 1), "num_chunks=1: expected 2 or more"),
        (("gpipe", 4, 4, 1, None, -1), "first_batch=-1: expected zero or more"),
        (("zero_bubble", 4, 4, 1), "schedule=zero_bubble: expected one of gpipe, one_f_one_b, interleaved, two_bw"),
    ],
)
def test_shapes_that_a_schedule_cannot_have(arguments, message):
    with pytest.raises(ConfigError) as raised:
        build(*arguments)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_aliases():
    assert (canonical_name("1f1b"), canonical_name("2bw")) == ("one_f_one_b", "two_bw")
