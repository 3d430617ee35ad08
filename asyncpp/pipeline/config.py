"""How the model is cut into stages and how late gradients are applied. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from asyncpp.errors import require
from asyncpp.pipeline.delay import DelayProfile


@dataclass
class PipelineConfig:
    """An entry of conf/pipeline. num_stages: into how many stages the layers are cut."""

    name: str = MISSING
    num_stages: int = MISSING

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""
        require(self.num_stages >= 1, f"{key}.num_stages", self.num_stages, "expected 1 or more")


@dataclass
class DelayConfig:
    """An entry of conf/delay."""

    name: str = MISSING

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""

    def effective_name(self) -> str:
        """What the summary calls it."""
        return self.name

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        """The delay of every stage."""
        raise NotImplementedError


@dataclass
class ConstantDelayConfig(DelayConfig):
    """The same delay on every stage, in updates."""

    updates: int = MISSING

    def check(self, key: str) -> None:
        require(self.updates >= 0, f"{key}.updates", self.updates, "expected zero or more")

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        return DelayProfile((self.updates,) * pipeline.num_stages)


@dataclass
class AutoDelayConfig(DelayConfig):
    """What the pipeline gives: the simulated one stands for PipeDream-2BW, whose delay is one update."""

    def effective_name(self) -> str:
        return "one_step"

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        return DelayProfile((1,) * pipeline.num_stages)
