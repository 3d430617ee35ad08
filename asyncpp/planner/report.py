"""A plan as one document of plain numbers."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from asyncpp.model.counts import flops_per_token, parameter_counts
from asyncpp.planner.changes import Change, changes
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.stages import Part, Stage, cut
from asyncpp.planner.throughput import throughput

SECONDS_PER_DAY = 86400.0


def plan(config: PlanConfig) -> dict[str, Any]:
    """Everything that follows from ``config``, under plain keys: the document of ``json=true``.

    Memory is of one rank; every replica of a stage needs the same. ``days`` are of the token budget.
    """
    stages = cut(config)
    speed = throughput(config, stages)
    counts = parameter_counts(config.model)
    budget_tokens = config.options.budget_tokens or config.options.tokens_per_parameter * counts.total
    needed, usable = max(stage.memory.total for stage in stages), config.hardware.usable_bytes
    num_steps = math.ceil(budget_tokens / config.batch_tokens)
    days = num_steps * speed.step_s / SECONDS_PER_DAY
    return {
        "model": config.model.name,
        "optimizer": config.optimizer.name,
        "correction": config.correction.name,
        "pipeline": config.pipeline.name,
        "hardware": config.hardware.name,
        "precision": config.precision_name,
        "num_parameters": counts.total,
        "num_active_parameters": counts.active,
        "num_non_embedding_parameters": counts.non_embedding,
        "num_active_non_embedding_parameters": counts.active_non_embedding,
        "num_ranks": config.num_ranks,
        "num_stages": config.pipeline.num_stages,
        "data_parallel": config.pipeline.data_parallel,
        "num_micro_batches": config.trainer.num_micro_batches,
        "micro_batch_sequences": config.micro_batch_sequences,
        "sequence_length": config.data.sequence_length,
        "batch_tokens": config.batch_tokens,
        "num_updates_per_step": config.trainer.num_micro_batches // config.num_micro_batches_of_update,
        "stages": [_stage(config, stage) for stage in stages],
        "max_memory_bytes": round(needed),
        "usable_memory_bytes": round(usable),
        "fits": needed <= usable,
        "changes": [] if needed <= usable else [_change(change) for change in changes(config)],
        "staleness_updates": list(speed.staleness_updates),
        "flops_per_token": flops_per_token(config.model, config.data.sequence_length),
        "flops_per_step": speed.flops_per_step,
        "mfu": config.options.mfu,
        "bubble_fraction": speed.bubble_fraction,
        "mfu_with_bubble": speed.mfu_with_bubble,
        "step_s": speed.step_s,
        "tokens_per_s": speed.tokens_per_s,
        "budget_tokens": budget_tokens,
        "num_steps": num_steps,
        "days": days,
        "rank_days": days * config.num_ranks,
    }


def _stage(config: PlanConfig, stage: Stage) -> dict[str, Any]:
    return {
        "parts": [_part(part) for part in stage.parts],
        "num_parameters": stage.num_parameters,
        "forward_s": stage.forward_s,
        "backward_s": stage.backward_s,
        "memory_bytes": {kind: round(value) for kind, value in asdict(stage.memory).items()},
        "total_memory_bytes": round(stage.memory.total),
        "fits": stage.memory.total <= config.hardware.usable_bytes,
    }


def _part(part: Part) -> dict[str, Any]:
    names = [unit.name for unit in part.units]
    return {
        "layers": [int(name.removeprefix("layers.")) for name in names if name.startswith("layers.")],
        "embedding": "embedding" in names,
        "head": "head" in names,
        **asdict(part.held),
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "overrides": change.overrides,
        "max_memory_bytes": round(change.max_memory_bytes),
        "fits": change.fits,
    }
