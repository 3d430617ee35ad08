"""How the model is cut into stages and how late gradients are applied. No torch here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from omegaconf import MISSING

from asyncpp.correction.config import CorrectionConfig
from asyncpp.errors import ConfigError, check_count, check_not_negative, check_option, require
from asyncpp.model.config import LlamaConfig
from asyncpp.pipeline.delay import DelayProfile, SampledDelays
from asyncpp.pipeline.partition import ranges, split_by_cost
from asyncpp.schedule.action import Shape
from asyncpp.schedule.builders import BUILDERS
from asyncpp.schedule.split import check_split
from asyncpp.schedule.staleness import steady_staleness


@dataclass
class PipelineConfig:
    """An entry of conf/pipeline.

    schedule: a name of asyncpp.schedule.builders: what the stages run, or what the simulated pipeline stands for.
    num_stages: into how many stages the layers are cut. num_chunks: parts of the model on a stage; null takes the
    schedule's own number. split: layers of each part of the model, in its order; null: by their cost.
    data_parallel: copies of the whole pipeline, which share out every batch. The rest concerns real processes:
    recompute: run a forward again before its backward instead of keeping what it saves.
    shard_optimizer: the replicas share out optimizer and correction state.
    timeout_s: how long a rank may not answer; start_timeout_s: until all have built their part, and at the end.
    trace_batches: how many of the last batches are recorded action by action.
    """

    name: str = MISSING
    schedule: str = MISSING
    num_stages: int = MISSING
    num_chunks: int | None = MISSING
    data_parallel: int = MISSING
    split: list[int] | None = MISSING
    recompute: bool = MISSING
    shard_optimizer: bool = MISSING
    timeout_s: float = MISSING
    start_timeout_s: float = MISSING
    trace_batches: int = MISSING

    @property
    def is_simulated(self) -> bool:
        """All stages are in one process, and ``delay`` says how late gradients are."""
        return self.name == "simulated"

    @property
    def num_processes(self) -> int:
        """Processes that train: one a rank, or one in all where the pipeline is simulated."""
        return 1 if self.is_simulated else self.num_stages * self.data_parallel

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""
        check_option(f"{key}.schedule", self.schedule, BUILDERS)
        for name in ("num_stages", "data_parallel"):
            check_count(f"{key}.{name}", getattr(self, name))
        chunks = self.num_chunks
        require(chunks is None or chunks >= 1, f"{key}.num_chunks", chunks, "expected 1 or more, or null")
        for name in ("timeout_s", "start_timeout_s"):
            seconds = getattr(self, name)
            require(seconds >= 1.0, f"{key}.{name}", seconds, "expected 1 second or more")
        check_not_negative(f"{key}.trace_batches", self.trace_batches)
        if self.is_simulated:
            for name, value in (("data_parallel", 1), ("recompute", False), ("shard_optimizer", False)):
                given = getattr(self, name)
                require(given == value, f"{key}.{name}", given, f"expected {value} with {key}={self.name}")

    def check_processes(self, key: str, num_micro_batches: int, correction: CorrectionConfig) -> None:
        """Raise ConfigError unless real processes can run the schedule, with ``num_micro_batches``."""
        builder = BUILDERS[self.schedule]
        instead = f"pipeline=simulated delay=from_schedule delay.schedule={self.schedule}"
        accepted = f"can be planned and drawn, not run; its delays can: {instead}"
        require(builder.runs_in_processes, key, self.name, accepted)
        shape = Shape(
            num_stages=self.num_stages,
            num_micro_batches=num_micro_batches,
            num_batches=1,
            num_chunks=builder.chunks_of(self.num_chunks),
        )
        unmet = builder.unmet(shape)
        if unmet:
            where = "trainer" if unmet.key == "num_micro_batches" else key
            raise ConfigError(f"{where}.{unmet.key}", unmet.value, unmet.accepted)
        self.check_sharding(key, correction)

    def check_sharding(self, key: str, correction: CorrectionConfig) -> None:
        """Raise ConfigError where the replicas can't share out the state of ``correction``."""
        accepted = f"expected false with correction={correction.name}, whose state every replica needs whole"
        possible = not (self.shard_optimizer and correction.corrects_gradients)
        require(possible, f"{key}.shard_optimizer", self.shard_optimizer, accepted)

    def steady_delays(self, schedule: str) -> DelayProfile:
        """The delay of every part of the model, in its order, once a pipeline of this shape is full."""
        # The delay does not depend on the number of micro-batches, and as many as stages suffice for every schedule.
        num_micro_batches = self.num_stages
        return DelayProfile(steady_staleness(schedule, self.num_stages, num_micro_batches, self.num_chunks))

    def layers(self, key: str, model: LlamaConfig, sequence_length: int, num_parts: int) -> list[range]:
        """The layers of each of ``num_parts`` parts of the model. Raises ConfigError for a split that is not one."""
        accepted = f"expected at most model.num_layers={model.num_layers} parts of the model, not {num_parts}"
        require(num_parts <= model.num_layers, f"{key}.num_stages", self.num_stages, accepted)
        if self.split is None:
            return split_by_cost(model, sequence_length, num_parts)
        check_split(self.split, model.num_layers, num_parts, f"{key}.split")
        return ranges(self.split)


@dataclass
class DelayConfig(ABC):
    """An entry of conf/delay."""

    varies: ClassVar[bool] = False  # True: from batch to batch

    name: str = MISSING

    @abstractmethod
    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""

    @abstractmethod
    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        """The delay of every part of the model, first to last."""

    def check_processes(self, key: str, pipeline: PipelineConfig) -> None:
        """Raise ConfigError unless this is the delay that the schedule of real processes has anyway."""
        of_schedule = set(pipeline.steady_delays(pipeline.schedule).delays)
        agree = set(self.profile(pipeline).delays) == of_schedule and not self.varies
        accepted = f"expected auto: pipeline={pipeline.name} has delays of {', '.join(map(str, sorted(of_schedule)))}"
        require(agree, key, self.name, accepted)

    def effective_name(self, pipeline: PipelineConfig) -> str:
        """What the summary calls it: ``auto`` goes by what it comes to."""
        if self.name != "auto":
            return self.name
        delays = set(self.profile(pipeline).delays)
        if delays in ({0}, {1}):
            return "sync" if delays == {0} else "one_step"
        return "pipedream" if pipeline.schedule == "pipedream" else "from_schedule"  # conf/delay has the first by name


@dataclass
class ConstantDelayConfig(DelayConfig):
    """The same delay on every stage, in updates."""

    updates: int = MISSING

    def check(self, key: str) -> None:
        check_not_negative(f"{key}.updates", self.updates)

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
        check_option(f"{key}.schedule", self.schedule, BUILDERS)

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        return pipeline.steady_delays(self.schedule)


@dataclass
class SampledDelayConfig(DelayConfig):
    """A delay drawn for every batch. probabilities: of a delay of 0, 1, 2, ... updates; seed: of the draws."""

    varies = True

    probabilities: list[float] = MISSING
    seed: int = MISSING

    def check(self, key: str) -> None:
        odds = self.probabilities
        proper = len(odds) > 0 and all(p >= 0.0 for p in odds) and abs(sum(odds) - 1.0) < 1e-9
        require(proper, f"{key}.probabilities", odds, "expected numbers of zero or more that sum to 1")
        check_not_negative(f"{key}.seed", self.seed)

    def profile(self, pipeline: PipelineConfig) -> DelayProfile:
        largest = max(delay for delay, probability in enumerate(self.probabilities) if probability > 0.0)
        return SampledDelays((largest,) * pipeline.num_stages, tuple(self.probabilities), self.seed)
