"""What a plan is made for: a run, and the machine that it is to run on. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from omegaconf import MISSING

from asyncpp.correction.config import CorrectionConfig
from asyncpp.data.config import DataConfig
from asyncpp.errors import ConfigError, check_not_negative, check_positive, require
from asyncpp.model.config import LlamaConfig
from asyncpp.optim.config import OptimizerConfig
from asyncpp.pipeline.config import DelayConfig, PipelineConfig
from asyncpp.schedule.action import Schedule
from asyncpp.schedule.builders import BUILDERS, build
from asyncpp.trainer.config import TrainerConfig


@dataclass(frozen=True)
class Precision:
    """Bytes of an element, by what it is for.

    compute: of the weight versions that batches read, of hidden states, and of a micro-batch's gradient.
    operand: of what matrix products read and make. Where that is less than compute, as under autocast, every product
    has copies of its own of what it reads, the weights too, and keeps them for the backward of each micro-batch.
    master: of the further copy of the newest weights that the optimizer updates; 0 where it updates a version itself.
    accumulate: of sums of gradients and of optimizer and correction state; statistics, too, have at least this.
    product: the dtype of the matrix products, under which the hardware's speed is listed.
    """

    compute: int
    operand: int
    master: int
    accumulate: int
    product: str


PRECISIONS = {
    "float64": Precision(8, 8, 0, 8, "float64"),  # trainer.dtype
    "float32": Precision(4, 4, 0, 4, "float32"),
    "bf16_autocast": Precision(4, 2, 0, 4, "bfloat16"),  # trainer.autocast=bfloat16
    # Not what the trainer does, for comparison: Micikevicius et al., arXiv 1710.03740, with bf16
    "bf16_mixed": Precision(2, 2, 4, 4, "bfloat16"),
}


@dataclass
class HardwareConfig:
    """An entry of conf/hardware: one rank's accelerator, and its link to another rank.

    memory_bytes: all that it has. reserved_bytes: what the driver, libraries and fragmentation take of it.
    memory_bytes_per_s: of its own memory. peak_flops_per_s: of dense matrix products, by their dtype.
    link_bytes_per_s, link_latency_s: of a message between two ranks, in one direction.
    fused_norms: torch's RMSNorm is one kernel there, which keeps less for the backward.
    """

    name: str = MISSING
    memory_bytes: float = MISSING
    reserved_bytes: float = MISSING
    memory_bytes_per_s: float = MISSING
    peak_flops_per_s: dict[str, float] = field(default_factory=dict)
    link_bytes_per_s: float = MISSING
    link_latency_s: float = MISSING
    fused_norms: bool = MISSING

    @property
    def usable_bytes(self) -> float:
        return self.memory_bytes - self.reserved_bytes

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no machine has; ``key`` is where this config stands."""
        for name in ("memory_bytes", "memory_bytes_per_s", "link_bytes_per_s"):
            check_positive(f"{key}.{name}", getattr(self, name))
        for name, value in self.peak_flops_per_s.items():
            check_positive(f"{key}.peak_flops_per_s.{name}", value)
        check_not_negative(f"{key}.link_latency_s", self.link_latency_s)
        accepted = f"expected zero to {key}.memory_bytes={self.memory_bytes:g}"
        require(0.0 <= self.reserved_bytes < self.memory_bytes, f"{key}.reserved_bytes", self.reserved_bytes, accepted)


@dataclass
class PlanOptions:
    """The keys of conf/plan.yaml beside the groups.

    precision: a name of PRECISIONS; null is that of trainer.dtype and trainer.autocast. mfu: share
    of the peak that a stage reaches while it computes; its bubbles come on top.
    tokens_per_parameter, budget_tokens: training tokens; the first is for a budget that is null.
    """

    precision: str | None = MISSING
    mfu: float = MISSING
    tokens_per_parameter: float = MISSING
    budget_tokens: float | None = MISSING
    json: bool = MISSING

    def check(self) -> None:
        known = self.precision is None or self.precision in PRECISIONS
        require(known, "precision", self.precision, f"expected one of {', '.join(PRECISIONS)}, or null")
        require(0.0 < self.mfu <= 1.0, "mfu", self.mfu, "expected a number in (0, 1]")
        check_positive("tokens_per_parameter", self.tokens_per_parameter)
        budget = self.budget_tokens
        require(budget is None or budget > 0.0, "budget_tokens", budget, "expected a positive number, or null")


@dataclass(frozen=True)
class PlanConfig:
    """A run to be planned. Of ``data`` only the sequence length counts, of ``trainer`` the batch and the dtypes."""

    model: LlamaConfig
    data: DataConfig
    optimizer: OptimizerConfig
    pipeline: PipelineConfig
    delay: DelayConfig
    correction: CorrectionConfig
    trainer: TrainerConfig
    hardware: HardwareConfig
    options: PlanOptions

    @property
    def precision_name(self) -> str:
        """The option, or what the trainer does."""
        of_trainer = self.trainer.dtype if self.trainer.autocast is None else "bf16_autocast"
        return self.options.precision or of_trainer

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.precision_name]

    @property
    def casts(self) -> bool:
        """Matrix products make copies of what they read."""
        return self.precision.operand < self.precision.compute

    @property
    def num_ranks(self) -> int:
        return self.pipeline.num_processes

    @property
    def batch_tokens(self) -> int:
        return self.trainer.batch_size * self.data.sequence_length

    @property
    def micro_batch_sequences(self) -> int:
        return self.trainer.batch_size // (self.pipeline.data_parallel * self.trainer.num_micro_batches)

    @property
    def micro_batch_tokens(self) -> int:
        return self.micro_batch_sequences * self.data.sequence_length

    @property
    def updates_every_micro_batch(self) -> bool:
        """As PipeDream does."""
        return not self.pipeline.is_simulated and BUILDERS[self.pipeline.schedule].one_micro_batch

    @property
    def num_micro_batches_of_update(self) -> int:
        return 1 if self.updates_every_micro_batch else self.trainer.num_micro_batches

    @property
    def peak_flops_per_s(self) -> float:
        return self.hardware.peak_flops_per_s[self.precision.product]

    def check(self) -> None:
        """Raise ConfigError for a run that cannot be."""
        groups = ("model", "data", "optimizer", "pipeline", "delay", "correction", "trainer", "hardware")
        for key in groups:
            getattr(self, key).check(key)
        self.options.check()
        speeds = self.hardware.peak_flops_per_s
        accepted = f"hardware={self.hardware.name} has a speed for {', '.join(speeds)}"
        require(self.precision.product in speeds, "precision", self.precision_name, accepted)
        pipeline = self.pipeline
        self.trainer.check_replicas("trainer", pipeline.data_parallel)
        pipeline.check_sharding("pipeline", self.correction)
        fixed = pipeline.is_simulated or self.delay.name == "auto"
        require(fixed, "delay", self.delay.name, f"expected auto: pipeline={pipeline.name} has a delay of its own")
        possible = not self.optimizer.needs_fresh_gradients
        accepted = "expected another one: it needs a second gradient of every batch, which a plan has no room for"
        require(possible, "optimizer", self.optimizer.name, accepted)
        pipeline.layers("pipeline", self.model, self.data.sequence_length, self.num_parts())

    def num_parts(self) -> int:
        """Into how many parts the model is cut. Raises ConfigError for a shape that its schedule cannot have."""
        if self.pipeline.is_simulated:
            return self.delay.profile(self.pipeline).num_parts
        return self.one_batch.num_parts

    @cached_property
    def one_batch(self) -> Schedule:
        """The schedule of a single batch: number of chunks, size of buffers."""
        return self.schedule(1)

    def schedule(self, num_batches: int) -> Schedule:
        """What the ranks run: the pipeline's schedule, or one stage after the other where it is simulated.

        Raises ConfigError, in the words of the command line, for a shape that the schedule cannot have.
        """
        pipeline, m = self.pipeline, self.trainer.num_micro_batches
        if pipeline.is_simulated:
            return build("one_f_one_b", 1, m, num_batches)
        try:
            return build(pipeline.schedule, pipeline.num_stages, m, num_batches, pipeline.num_chunks)
        except ConfigError as error:
            group = "trainer" if error.key == "num_micro_batches" else "pipeline"
            raise ConfigError(f"{group}.{error.key}", error.value, error.accepted) from None
