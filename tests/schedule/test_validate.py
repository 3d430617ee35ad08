"""No wrong list gets through, and what is wrong is said where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schedule_cases import schedules

from asyncpp.schedule.action import BACKWARD, FORWARD, GRADIENT, UPDATE, Schedule, Shape, send, update
from asyncpp.schedule.builders import alternate, assemble, build, passes, two_bw
from asyncpp.schedule.staleness import staleness
from asyncpp.schedule.text import parse, to_text
from asyncpp.schedule.validate import ScheduleError, validate


def with_list(schedule: Schedule, stage: int, actions: list, name: str) -> Schedule:
    stages = list(schedule.stages)
    stages[stage] = tuple(actions)
    return replace(schedule, stages=tuple(stages), name=name)


def edited(schedule: Schedule, old: str, new: str, name: str = "mine") -> Schedule:
    """The schedule whose text form has ``new`` for ``old``."""
    text = to_text(replace(schedule, name=name))
    assert old in text
    return parse(text.replace(old, new))


def refusal(schedule: Schedule, **limits) -> str:
    with pytest.raises(ScheduleError) as raised:
        validate(schedule, **limits)
    return str(raised.value)


@settings(max_examples=150, deadline=None)
@given(schedule=schedules(max_stages=5, max_micro_batches=6), data=st.data(), name=st.sampled_from(["own", "mine"]))
def test_a_dropped_or_repeated_action_is_refused(schedule, data, name):
    """Under the builder's name, and under another, where the list must be wrong by itself."""
    stage = data.draw(st.integers(0, schedule.num_stages - 1))
    actions = list(schedule.stages[stage])
    position = data.draw(st.integers(0, len(actions) - 1))
    if data.draw(st.booleans()):
        actions.insert(data.draw(st.integers(0, len(actions))), actions[position])
    else:
        del actions[position]
    refusal(with_list(schedule, stage, actions, schedule.name if name == "own" else name))


@settings(max_examples=150, deadline=None)
@given(schedule=schedules(max_stages=5, max_micro_batches=6), data=st.data())
def test_swapped_actions_are_refused(schedule, data):
    stage = data.draw(st.integers(0, schedule.num_stages - 1))
    actions = list(schedule.stages[stage])
    positions = st.integers(0, len(actions) - 1)
    one, other = data.draw(positions), data.draw(positions)
    assume(one != other)
    actions[one], actions[other] = actions[other], actions[one]
    refusal(with_list(schedule, stage, actions, schedule.name))


@settings(max_examples=150, deadline=None)
@given(schedule=schedules(max_stages=5, max_micro_batches=6), data=st.data())
def test_a_changed_field_is_refused(schedule, data):
    """Under another name as well: an action that names the wrong thing is wrong in any schedule."""
    stage = data.draw(st.integers(0, schedule.num_stages - 1))
    actions = list(schedule.stages[stage])
    position = data.draw(st.integers(0, len(actions) - 1))
    action = actions[position]
    fields = {UPDATE: ("batch", "version"), FORWARD: ("batch", "micro_batch"), BACKWARD: ("micro_batch", "version")}
    field = data.draw(st.sampled_from(fields.get(action.kind, ("batch", "micro_batch", "peer"))))
    actions[position] = action._replace(**{field: getattr(action, field) + data.draw(st.sampled_from([-1, 1, 40]))})
    refusal(with_list(schedule, stage, actions, "mine"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("F0.0@0 SA0.0>1 F0.1@0", "SA0.0>1 F0.0@0 F0.1@0", "(SA0.0>1): its forward is not there yet"),
        (
            "F0.0@0 SA0.0>1 F0.1@0 SA0.1>1",
            "F0.1@0 SA0.1>1 F0.0@0 SA0.0>1",
            "out of order; due is batch 0, micro-batch 0",
        ),
        ("RA0.1<0 F0.1@0", "F0.1@0 RA0.1<0", "(F0.1@0): its activation is not there yet"),
        ("RG0.0<1 B0.0@0", "B0.0@0 RG0.0<1", "(B0.0@0): its gradient is not there yet"),
        ("SA1.0>1", "SA1.0>0", "(SA1.0>0): the other end is stage 1"),
        ("F2.0@1", "F2.0@2", "reads weight version 2, but version 1 is the newest there"),
        ("B2.0@1", "B2.0@0", "(B2.0@0): its forward ran on weight version 1"),
        ("U0@1", "U1@2", "the newest weight version is 0: due is the update of batch 0, which makes 1"),
        (
            "B0.1@0 F1.1@0 SA1.1>1 U0@1",
            "U0@1 B0.1@0 F1.1@0 SA1.1>1",
            "the backward of batch 0, micro-batch 1 has not run",
        ),
        (" U2@3", "", "(its end): UPDATE of batch 2 in chunk 0 is missing"),
        ("B2.1@1 SG2.1>0 U2@3", "B2.1@1 U2@3", "(its end): SEND of the gradient of batch 2, micro-batch 1 is missing"),
        ("F0.0@0 B0.0@0 SG0.0>0", "F0.0@0 B0.0@0 SG0.0>0 SG3.0>0", "(SG3.0>0): there are batches 0 to 2 and 1 chunks"),
        ("F0.0@0 B0.0@0 SG0.0>0", "F0.0@0 SA0.0>0 B0.0@0 SG0.0>0", "(SA0.0>0): this stage has no such action"),
    ],
)
def test_the_message_names_the_fault(old, new, message):
    assert message in refusal(edited(build("two_bw", 2, 2, 3), old, new)).splitlines()[0]


def test_the_message_shows_a_grid_around_the_fault():
    message = refusal(edited(build("one_f_one_b", 3, 3, 1), "RA0.2<0 F0.2@0 SA0.2>2", "F0.2@0 RA0.2<0 SA0.2>2"))
    assert message.splitlines() == [
        "schedule mine, stage 1, action 9 (F0.2@0): its activation is not there yet",
        "slot     0        1        2        3        4        5        6        7        8",
        "stage 0  F0.0@0   F0.1@0   F0.2@0   .        .        B0.0@0   .        B0.1@0   .",
        "stage 1  .        F0.0@0   F0.1@0   .        B0.0@0   [F0.2@0] B0.1@0   .        B0.2@0",
        "stage 2  .        .        F0.0@0   B0.0@0   F0.1@0   B0.1@0   F0.2@0   B0.2@0   U0@1",
    ]


def test_two_bw_with_fewer_micro_batches_than_stages_shows_the_update_that_comes_too_late():
    shape = Shape(num_stages=4, num_micro_batches=3, num_batches=2)
    lines = refusal(assemble("two_bw", shape, two_bw)).splitlines()
    assert lines[0].endswith("(U0@1): the backward of batch 0, micro-batch 2 has not run")
    assert lines[1].startswith("num_micro_batches=3: expected at least num_stages=4")
    assert "[U0@1]" in lines[3]


def eager_second_stage(shape, stage):
    """The second stage wants two forwards before its first backward, the first stage gives one before its own."""
    for batch in shape.batches:
        forwards = passes(FORWARD, shape, batch, version=batch)
        yield from alternate(forwards, passes(BACKWARD, shape, batch, version=batch), warm_up=2 * stage)
        yield update(batch, batch + 1)


def test_a_deadlock_names_who_waits_for_what():
    schedule = assemble("mine", Shape(num_stages=2, num_micro_batches=3, num_batches=1), eager_second_stage)
    lines = refusal(schedule).splitlines()
    assert "deadlock: stage 0 at RG0.0<1, stage 1 at RA0.1<0 wait for each other" in lines[0]
    assert "[B0.0@0~]" in lines[2]  # never reached


def test_a_deadlock_of_full_buffers():
    """WPipe's activations for the second group wait for a batch of the first one."""
    schedule = build("wpipe", 4, 8, 2)
    validate(schedule, buffer_size=5)
    assert "deadlock" in refusal(schedule, buffer_size=4)
    assert "deadlock" in refusal(build("gpipe", 2, 1, 1), buffer_size=0)


def test_messages_that_come_in_another_order_than_they_are_expected():
    """Stage 1 takes chunk 1's first activation for chunk 0's second."""
    schedule = build("interleaved", 2, 2, 1)
    old = "SA0.0>1 F0.1@0 SA0.1>1 RA0.0:1<1 F0.0:1@0 SA0.0:1>1"
    new = "SA0.0>1 F0.1@0 RA0.0:1<1 F0.0:1@0 SA0.0:1>1 SA0.1>1"
    assert "what comes out of the channel is batch 0, micro-batch 0, for chunk 1" in refusal(edited(schedule, old, new))


def test_limits_of_memory():
    schedule = build("two_bw", 3, 4, 3)
    validate(schedule, max_weight_versions=2, max_saved_activations=3)
    assert "holds 2 weight versions, more than max_weight_versions=1" in refusal(schedule, max_weight_versions=1)
    assert "holds 3 saved activations, more than max_saved" in refusal(schedule, max_saved_activations=2)


def test_a_builders_name_is_a_promise():
    """A later update is right by itself, but it is not what 2BW is here."""
    schedule = edited(build("two_bw", 2, 2, 3), "F1.1@0 U0@1 B1.1@0", "F1.1@0 B1.1@0 U0@1")
    validate(schedule)
    assert "two_bw has U0@1 here" in refusal(replace(schedule, name="two_bw"))


def test_missing_stages_are_refused():
    schedule = build("gpipe", 3, 2, 1)
    assert "there are 2 lists" in refusal(replace(schedule, stages=schedule.stages[:2]))


def without_stash(shape, stage):
    """PipeDream's order, but every pass reads the newest version (PipeMare)."""
    newest = shape.first_batch
    forwards = [a for t in shape.batches for a in passes(FORWARD, shape, t, version=t)]
    backwards = [a for t in shape.batches for a in passes(BACKWARD, shape, t, version=t)]
    for action in alternate(forwards, backwards, warm_up=shape.num_stages - 1 - stage):
        yield action._replace(version=newest)
        if action.kind is BACKWARD:
            newest += 1
            yield update(action.batch, newest)


def test_forwards_and_backwards_on_different_versions_are_reported_and_only_then_allowed_when_declared():
    shape = Shape(num_stages=3, num_micro_batches=1, num_batches=6)
    schedule = assemble("pipemare", shape, without_stash)
    assert "its forward ran on weight version 0" in refusal(schedule)
    declared = replace(schedule, mixed_versions=True)
    validate(declared)
    counted = staleness(declared)
    assert counted.forward[:, -1, 0].tolist() == [2, 1, 0]
    assert counted.backward[:, -1, 0].tolist() == [0, 0, 0]
    assert counted.num_mismatches == 5 + 5  # on stages 0 and 1 every batch but the first


def test_a_send_to_nobody_is_refused():
    """A gradient from the first stage, which has no stage before it."""
    schedule = build("gpipe", 2, 1, 1)
    actions = [*schedule.stages[0], send(GRADIENT, 0, 0, peer=1)]
    assert "this stage has no such action" in refusal(with_list(schedule, 0, actions, "mine"))
