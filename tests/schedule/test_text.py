"""The text form says everything, and nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import schedules

from asyncpp.errors import ConfigError
from asyncpp.schedule.action import ACTIVATION, GRADIENT, backward, forward, recv, send, update
from asyncpp.schedule.builders import build
from asyncpp.schedule.text import parse, parse_action, to_text

TEXTS = {
    "F2.0@1": forward(2, 0, version=1),
    "B12.3:1@11": backward(12, 3, version=11, chunk=1),
    "SA2.0>1": send(ACTIVATION, 2, 0, peer=1),
    "SG0.4:2>0": send(GRADIENT, 0, 4, peer=0, chunk=2),
    "RG2.0<3": recv(GRADIENT, 2, 0, peer=3),
    "U2@3": update(2, version=3),
    "U2:1@3": update(2, version=3, chunk=1),
}


@pytest.mark.parametrize(("text", "action"), TEXTS.items())
def test_actions(text, action):
    assert str(action) == text
    assert parse_action(text) == action


def test_texts_that_are_no_action():
    texts = "F2@1 F2.0 F FA2.0@1 S2.0>1 SA2.0<1 RA2.0>1 SA2.0@1>1 U2.0@3 U2 F02.0@1 F2.0:0@1 X2.0@1 F2.0@1@1"
    for text in ("", "F2.0@1 ", *texts.split()):
        with pytest.raises(ConfigError, match="expected something like"):
            parse_action(text)


@settings(max_examples=30, deadline=None)
@given(schedule=schedules(max_stages=6, max_micro_batches=8))
def test_round_trip(schedule):
    assert parse(to_text(schedule)) == schedule


@settings(max_examples=50, deadline=None)
@given(text=st.text(alphabet="FBSRUAG0123456789.:@<> =\nstage_", max_size=40))
def test_no_text_breaks_the_parser(text):
    with pytest.raises(ConfigError):
        parse(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schedule name", "plan name", "expected a line 'schedule name=...' first"),
        ("num_stages=2", "num_stages=two", "num_stages=two: expected a whole number"),
        ("num_stages=2", "num_stages=3", "num_stages=3: 2 stages follow"),
        ("num_batches=1", "num_batches=0", "num_batches=0: expected 1 or more"),
        ("first_batch=0 ", "", "expected name, num_stages"),
        ("mixed_versions=false", "mixed_versions=no", "mixed_versions=no: expected true or false"),
        ("stage 1:", "stage 2:", "expected 'stage 1: ...'"),
        ("U0@1", "U0", "action=U0: expected something like"),
    ],
)
def test_what_is_wrong_with_a_text(old, new, message):
    text = to_text(build("gpipe", 2, 2, 1))
    assert old in text
    with pytest.raises(ConfigError) as raised:
        parse(text.replace(old, new, 1))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
