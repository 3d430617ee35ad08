"""Any order that walk gives can be run by one process."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import schedules

from asyncpp.schedule.action import BACKWARD, RECV, SEND, UPDATE
from asyncpp.schedule.builders import build
from asyncpp.schedule.walk import Deadlock, channel, walk


@settings(max_examples=40, deadline=None)
@given(schedule=schedules(max_stages=6, max_micro_batches=8), global_norm=st.booleans())
def test_every_action_comes_once_after_what_it_waits_for(schedule, global_norm):
    reached = [0] * schedule.num_stages
    held, backwards = Counter(), Counter()
    for stage, position in walk(schedule, global_norm=global_norm):
        assert position == reached[stage]
        reached[stage] += 1
        action = schedule.stages[stage][position]
        if action.kind in (SEND, RECV):
            key = channel(stage, action)
            held[key] += 1 if action.kind is SEND else -1
            assert 0 <= held[key] <= schedule.buffer_size
        elif action.kind is BACKWARD:
            backwards[action.batch, action.chunk] += 1
        elif action.kind is UPDATE and global_norm:
            assert backwards[action.batch, action.chunk] == schedule.num_stages * schedule.num_micro_batches
    assert reached == [len(actions) for actions in schedule.stages]


def test_a_deadlock_comes_after_all_that_can_run():
    seen = []
    with pytest.raises(Deadlock) as raised:
        for stage, position in walk(build("gpipe", 2, 2, 1), buffer_size=0):
            seen.append((stage, position))
    assert seen == [(0, 0)]  # the first forward; there is no room for what it made
    assert raised.value.waiting == {0: 1, 1: 0}
