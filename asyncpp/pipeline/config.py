"""How the model is cut into stages and how late gradients are applied. No torch here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from omegaconf import MISSING

from asyncpp.errors import require
from asyncpp.pipeline.delay import DelayProfile, SampledDelays
from asyncpp.schedule.builders import BUILDERS
from asyncpp.schedule.staleness import steady_staleness


@dataclass
class PipelineConfig:
    """An entry of conf/pipeline.

    schedule: a name of asyncpp.schedule.builders: what the stages run, or what the simulated pipeline stands for.
    num_stages: into how many stages the layers are cut. num_chunks: parts of the model on a stage; null takes the
    schedule's own number. data_parallel: copies of the whole pipeline, which share out every batch.
    """

    name: str = MISSING
    schedule: str = MISSING
    num_stages: int = MISSING
    num_chunks: int | None = MISSING
    data_parallel: int = MISSING

    @property
    def is_simulated(self) -> bool:
        """All stages are in one process, and ``delay`` says how late gradients are."""
        return self.name == "simulated"

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""
        require(self.schedule in BUILDERS, f"{key}.schedule", self.schedule, f"expected one of {', '.join(BUILDERS)}")
        for name in ("num_stages", "data_parallel"):
            require(getattr(self, name) >= 1, f"{key}.{name}", getattr(self, name), "expected 1 or more")
        chunks = self.num_chunks
        require(chunks is None or chunks >= 1, f"{key}.num_chunks", chunks, "expected 1 or more, or null")
        one_copy = self.data_parallel == 1 or not self.is_simulated
        require(one_copy, f"{key}.data_parallel", self.data_parallel, f"expected 1 with {key}={self.name}")


@dataclass
class DelayConfig(ABC):
    """An entry of conf/delay."""

    name: str = MISSING

    @abstractmethod
    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""

    @abstractmethod
    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        """The delay of every stage, first to last."""

    def effective_name(self, pipeline: PipelineConfig) -> str:
        """What the summary calls it: ``auto`` goes by what it comes to."""
        if self.name != "auto":
            return self.name
        delays = set(self.profile(pipeline).delays)
        return "sync" if delays == {0} else "one_step" if delays == {1} else "from_schedule"


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

    schedule: a name of asyncpp.schedule.builders, by default the one that the pipeline runs or stands for. One that
    cuts each stage in parts (interleaved, wpipe) gives a delay for every part, and the model is cut into as many.
    """

    schedule: str = MISSING

    def check(self, key: str) -> None:
        require(self.schedule in BUILDERS, f"{key}.schedule", self.schedule, f"expected one of {', '.join(BUILDERS)}")

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        # The delay does not depend on the number of micro-batches, and as many as stages suffice for every schedule.
        num_micro_batches = pipeline.num_stages
        chunks = pipeline.num_chunks
        return DelayProfile(steady_staleness(self.schedule, pipeline.num_stages, num_micro_batches, chunks))


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
