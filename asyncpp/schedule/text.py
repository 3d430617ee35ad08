"""The text form of a schedule: a line of numbers, then a line of actions for each stage.

    schedule name=two_bw num_stages=2 num_micro_batches=2 num_batches=1 num_chunks=1 first_batch=0 ...
    stage 0: F0.0@0 SA0.0>1 F0.1@0 SA0.1>1 RG0.0<1 B0.0@0 RG0.1<1 B0.1@0 U0@1
    stage 1: RA0.0<0 F0.0@0 B0.0@0 SG0.0>0 RA0.1<0 F0.1@0 B0.1@0 SG0.1>0 U0@1

``F2.0:1@3`` is the forward of batch 2's micro-batch 0 through chunk 1 on weight version 3; chunk 0 is not written.
``B`` is a backward, ``SA``/``SG`` send an activation or a gradient to (>) a stage, ``RA``/``RG`` receive one from (<) a
stage, ``U2@3`` is the update of batch 2, which makes version 3.
"""

from __future__ import annotations

import re

from asyncpp.errors import ConfigError, require
from asyncpp.schedule.action import NONE, Action, Kind, Payload, Schedule

_ACTION = re.compile(
    r"(?P<kind>[FBSRU])(?P<payload>[AG]?)(?P<batch>\d+)(?:\.(?P<micro_batch>\d+))?"
    r"(?::(?P<chunk>\d+))?(?:@(?P<version>\d+))?(?:[<>](?P<peer>\d+))?"
)
_NUMBERS = ("num_stages", "num_micro_batches", "num_batches", "num_chunks", "first_batch", "buffer_size")
_FLAGS = {"true": True, "false": False}


def to_text(schedule: Schedule) -> str:
    """The whole schedule, ending in a newline."""
    numbers = " ".join(f"{name}={getattr(schedule, name)}" for name in _NUMBERS)
    flag = str(schedule.mixed_versions).lower()
    lines = [f"schedule name={schedule.name} {numbers} mixed_versions={flag}"]
    for stage, actions in enumerate(schedule.stages):
        lines.append(" ".join((f"stage {stage}:", *map(str, actions))))
    return "\n".join(lines) + "\n"


def parse_action(text: str) -> Action:
    """The action that ``text`` stands for. Raises ConfigError for anything that is not exactly a text form."""
    match = _ACTION.fullmatch(text)
    if match:
        fields = match.groupdict()
        action = Action(
            Kind(fields["kind"]),
            int(fields["batch"]),
            micro_batch=_number(fields["micro_batch"], NONE),
            chunk=_number(fields["chunk"], 0),
            version=_number(fields["version"], NONE),
            payload=Payload(fields["payload"]) if fields["payload"] else None,
            peer=_number(fields["peer"], NONE),
        )
        if _has_its_fields(action) and str(action) == text:
            return action
    raise ConfigError("action", text, "expected something like F2.0@1, B2.0@1, SA2.0>1, RG2.0<1 or U2@3")


def parse(text: str) -> Schedule:
    """Read what ``to_text`` writes. Raises ConfigError; whether the schedule makes sense is for validate to say."""
    lines = [line for line in text.splitlines() if line.strip()]
    header = lines[0].split() if lines else []
    require(header[:1] == ["schedule"], "schedule", " ".join(header)[:60], "expected a line 'schedule name=...' first")
    values = dict(word.split("=", 1) for word in header[1:] if "=" in word)
    expected = ("name", *_NUMBERS, "mixed_versions")
    require(sorted(values) == sorted(expected), "schedule", lines[0][:60], f"expected {', '.join(expected)}")
    for name in _NUMBERS:
        require(values[name].isdecimal(), name, values[name], "expected a whole number")
    flag = values["mixed_versions"]
    require(flag in _FLAGS, "mixed_versions", flag, "expected true or false")
    stages = []
    for stage, line in enumerate(lines[1:]):
        start, _, actions = line.partition(":")
        require(start.split() == ["stage", str(stage)], "schedule", line[:60], f"expected 'stage {stage}: ...'")
        stages.append(tuple(map(parse_action, actions.split())))
    require(
        len(stages) == int(values["num_stages"]), "num_stages", values["num_stages"], f"{len(stages)} stages follow"
    )
    return Schedule(
        name=values["name"],
        stages=tuple(stages),
        mixed_versions=_FLAGS[flag],
        **{name: int(values[name]) for name in _NUMBERS},
    )


def _number(digits: str | None, absent: int) -> int:
    return absent if digits is None else int(digits)


def _has_its_fields(action: Action) -> bool:
    transfer = action.kind in (Kind.SEND, Kind.RECV)
    return (
        (action.micro_batch == NONE) == (action.kind is Kind.UPDATE)
        and (action.version == NONE) == transfer
        and (action.payload is not None) == transfer
        and (action.peer != NONE) == transfer
    )
