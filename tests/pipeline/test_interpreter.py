"""A stage's actions one by one, beside no other stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from asyncpp.pipeline import interpreter
from asyncpp.pipeline.clipping import Decision
from asyncpp.pipeline.interpreter import Batch, Interpreter
from asyncpp.pipeline.part import Part
from asyncpp.pipeline.timers import TIMERS, Timers
from asyncpp.pipeline.versioned_modules import VersionedModules
from asyncpp.schedule.action import backward, forward, update
from asyncpp.trainer.setup import build_simulator


class Clock:
    """In the place of the module time: it goes on only when it is told to."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@dataclass
class LateDecision:
    """A Settlement whose decision is there after five seconds."""

    batch: Batch
    clock: Clock

    def gradients(self, chunk: int) -> list[torch.Tensor]:
        return self.batch.gradients[chunk]

    def decision(self, chunk: int) -> Decision:
        self.clock.now_s += 5.0
        return Decision(clip_factor=1.0, skipped=False)


def test_the_wait_for_the_norm_is_no_part_of_the_update(make_config, monkeypatch):
    """So time/rankR_wait_norm_s and time/rankR_update_s of a row add up."""
    clock, timers, simulator = Clock(), Timers(), build_simulator(make_config())
    monkeypatch.setattr(interpreter, "time", clock)

    def exchange(*unused: Any) -> None:
        clock.now_s += 2.0

    (state,) = simulator.states
    modules = VersionedModules(simulator.module, {n: i for i, n in enumerate(simulator.names)}, state.versions)
    stage = Interpreter(
        [Part(state, modules, is_first=True, is_last=True)],
        num_micro_batches=1,
        links=None,
        read=lambda batch, micro_batch: torch.arange(20).view(2, 10),
        settle=lambda batch: LateDecision(batch, clock),
        lr_factor=lambda batch: 1.0,
        compute=simulator.compute,
        recompute=False,
        timers=timers,
        exchange=exchange,
    )
    for action in (forward(0, 0, version=0), backward(0, 0, version=0), update(0, version=1)):
        stage.run(action)
    seconds = dict(zip(TIMERS, timers.take(), strict=True))
    assert seconds["wait_norm_s"] == 5.0
    assert seconds["update_s"] == 2.0
    assert sum(seconds.values()) == clock.now_s
    assert stage.started_s == 5.0
