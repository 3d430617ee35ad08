"""How fast a plan is: its schedule's timeline under estimated costs.

Passes take their FLOPs at the stated share of the peak. An update reads and writes the stage's newest weights, a sum
of gradients, and all state once; the products of Muon and its kin are not counted (0.2 to 0.4 % of a step of a million
tokens). It waits for one all-reduce, after the last backward on any stage: of the norm, and between replicas of the
gradients (ring; not overlapped with the backwards). PipeDream's cannot wait without losing what it is for; there the
all-reduce is a part of the update.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from asyncpp.model.counts import flops_per_token
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.memory import message_bytes
from asyncpp.planner.stages import Stage
from asyncpp.schedule.action import num_batches_until_steady
from asyncpp.schedule.staleness import staleness
from asyncpp.schedule.timeline import CostModel, timeline


@dataclass(frozen=True)
class Throughput:
    """In the steady state, filling and draining the pipeline left out.

    step_s: from one batch to the next. bubble_fraction: of the stages' time, in which they do not compute.
    mfu_with_bubble: of all ranks' peak, what goes into the model's FLOPs. staleness_updates: by part of the model.
    """

    step_s: float
    bubble_fraction: float
    flops_per_step: float
    tokens_per_s: float
    mfu_with_bubble: float
    staleness_updates: tuple[int, ...]


def throughput(config: PlanConfig, stages: Sequence[Stage]) -> Throughput:
    """Time two schedules, one a batch longer than the other: the difference is a batch."""
    costs = cost_model(config, stages)
    num_batches = num_batches_until_steady(config.pipeline.num_stages, config.trainer.num_micro_batches)
    shorter, longer = config.schedule(num_batches), config.schedule(num_batches + 1)
    step_s = timeline(longer, costs).duration - timeline(shorter, costs).duration

    m = config.trainer.num_micro_batches
    num_updates = m // config.num_micro_batches_of_update
    passes_s = m * sum(stage.forward_s + stage.backward_s for stage in stages)
    busy_s = passes_s + num_updates * sum(costs.of_stages("update", len(stages)))
    flops = flops_per_token(config.model, config.data.sequence_length) * config.batch_tokens
    simulated = config.pipeline.is_simulated
    late = config.delay.profile(config.pipeline).delays if simulated else staleness(longer).steady
    return Throughput(
        step_s=step_s,
        bubble_fraction=max(0.0, 1.0 - busy_s / (len(stages) * step_s)),
        flops_per_step=float(flops),
        tokens_per_s=config.batch_tokens / step_s,
        mfu_with_bubble=flops / (step_s * config.num_ranks * config.peak_flops_per_s),
        staleness_updates=late,
    )


def cost_model(config: PlanConfig, stages: Sequence[Stage]) -> CostModel:
    """Seconds of every action."""
    hardware = config.hardware
    updates = [update_s(config, stage) for stage in stages]
    all_reduces = [all_reduce_s(config, stage) for stage in stages]
    if config.updates_every_micro_batch:
        updates = [update + all_reduce for update, all_reduce in zip(updates, all_reduces, strict=True)]
    return CostModel(
        forward=[stage.forward_s for stage in stages],
        backward=[stage.backward_s for stage in stages],
        update=updates,
        transfer=message_bytes(config) / hardware.link_bytes_per_s,
        latency=hardware.link_latency_s,
        norm=None if config.updates_every_micro_batch else max(all_reduces),
    )


def update_s(config: PlanConfig, stage: Stage) -> float:
    """Of a whole stage."""
    memory = stage.memory
    one_sum = stage.num_parameters * config.precision.accumulate
    moved = memory.weights + one_sum + memory.optimizer_state + memory.correction_state
    return 2.0 * moved / config.hardware.memory_bytes_per_s


def all_reduce_s(config: PlanConfig, stage: Stage) -> float:
    """Of a stage's gradients between replicas, and of the norm between all ranks."""
    hardware, replicas = config.hardware, config.pipeline.data_parallel
    num_bytes = stage.num_parameters * config.precision.accumulate
    ring_s = 2.0 * (replicas - 1) / replicas * num_bytes / hardware.link_bytes_per_s
    return ring_s + 2.0 * math.ceil(math.log2(config.num_ranks)) * hardware.link_latency_s
