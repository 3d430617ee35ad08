"""A run as the planner sees it, from the run's own configuration. No torch here."""

from __future__ import annotations

from functools import cache

from asyncpp.config import Config
from asyncpp.hydra_command import compose_overrides, typed
from asyncpp.planner.config import HardwareConfig, PlanConfig, PlanOptions
from asyncpp.planner.stages import Stage
from asyncpp.planner.throughput import throughput

SECONDS_PER_HOUR = 3600.0


@cache
def hardware(name: str) -> HardwareConfig:
    """The option ``name`` of conf/hardware. Raises ConfigError."""
    return typed(compose_overrides([f"hardware={name}"], "plan"), "hardware")


def plan_config(config: Config, machine: HardwareConfig, mfu: float) -> PlanConfig:
    """The plan of ``config`` on ``machine``. mfu: share of its peak that a stage reaches while it computes."""
    return PlanConfig(
        model=config.model,
        data=config.data,
        optimizer=config.optimizer,
        pipeline=config.pipeline,
        delay=config.delay,
        correction=config.correction,
        trainer=config.trainer,
        hardware=machine,
        options=PlanOptions(
            precision=None,
            mfu=mfu,
            tokens_per_parameter=1.0,
            budget_tokens=config.num_tokens,
            json=False,
        ),
    )


def device_hours(config: Config, plan: PlanConfig, stages: list[Stage]) -> float:
    """Of all ranks, for every step of the run; validations and checkpoints are not counted."""
    passes = 2 if config.optimizer.needs_fresh_gradients else 1  # each batch twice
    step_s = passes * throughput(plan, stages).step_s
    return config.trainer.num_steps * step_s * plan.num_ranks / SECONDS_PER_HOUR
