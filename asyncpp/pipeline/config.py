"""How the model is cut into stages and how late gradients are applied. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from asyncpp.errors import require
from asyncpp.pipeline.delay import DelayProfile, SampledDelays
from asyncpp.schedule.builders import BUILDERS
from asyncpp.schedule.staleness import steady_staleness


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
    """An entry of conf/delay. Here: what the pipeline gives, and the simulated one stands for PipeDream-2BW."""

    name: str = MISSING

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""

    def effective_name(self) -> str:
        """What the summary calls it."""
        return "one_step" if self.name == "auto" else self.name

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        """The delay of every stage, first to last."""
        return DelayProfile((1,) * pipeline.num_stages)


@dataclass
class ConstantDelayConfig(DelayConfig):
    """The same delay on every stage, in updates."""

    updates: int = MISSING

    def check(self, key: str) -> None:
        require(self.updates >= 0, f"{key}.updates", self.updates, "expected zero or more")

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        return DelayProfile((self.updates,) * pipeline.num_stages)


@dataclass
class ScheduleDelayConfig(DelayConfig):
    """The delay of every stage as it is counted from a schedule's actions, once the pipeline is full.

    schedule: a name of asyncpp.schedule.builders. One that cuts each stage in parts (interleaved, wpipe) gives a
    delay for every part, and the model is cut into as many.
    """

    schedule: str = MISSING

    def check(self, key: str) -> None:
        require(self.schedule in BUILDERS, f"{key}.schedule", self.schedule, f"expected one of {', '.join(BUILDERS)}")

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        return DelayProfile(steady_staleness(self.schedule, pipeline.num_stages, pipeline.num_stages))


@dataclass
class SampledDelayConfig(DelayConfig):
    """A delay drawn for every batch. probabilities: of a delay of 0, 1, 2, ... updates; seed: of the draws."""

    probabilities: list[float] = MISSING
    seed: int = MISSING

    def check(self, key: str) -> None:
        odds = self.probabilities
        proper = len(odds) > 0 and all(p >= 0.0 for p in odds) and abs(sum(odds) - 1.0) < 1e-9
        require(proper, f"{key}.probabilities", odds, "expected numbers of zero or more that sum to 1")
        require(self.seed >= 0, f"{key}.seed", self.seed, "expected zero or more")

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        largest = max(delay for delay, probability in enumerate(self.probabilities) if probability > 0.0)
        return SampledDelays((largest,) * pipeline.num_stages, tuple(self.probabilities), self.seed)
