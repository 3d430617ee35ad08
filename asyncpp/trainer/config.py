"""How long and how a run trains, and where its records go. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import ClassVar

from omegaconf import MISSING

from asyncpp.errors import check_count, check_option, require
from asyncpp.pipeline.clipping import CLIPPINGS
from asyncpp.trainer.checkpoint.config import CheckpointConfig

MAX_THREADS = 1024  # more than a machine has; torch ends the process when it can't start as many as it is asked for


@dataclass
class TrainerConfig:
    """num_steps: updates. batch_size: sequences of one update, cut into num_micro_batches.

    max_grad_norm: limit of the gradient norm; null does not clip. clip_by: whose norm (asyncpp/pipeline/clipping.py).
    eval_every: steps between validations, one more after the last step; null validates there only.
    eval_batch_size: sequences of one validation forward.
    probe_every: steps between staleness probes (probes.py); null makes none.
    max_skipped_steps: so many steps in a row with a gradient that is not finite end the run.
    checkpoint_every: steps between checkpoints, one more after the last step; null writes that one only.
    num_threads: of torch, which sums in another order on another number.
    dry_run: check and describe the run, and train nothing.
    device: cpu, cuda, or cuda:<index>. dtype: of weights, gradients and state.
    autocast: dtype of matrix products, where it is not that of the weights, which are float32 then.
    compile: torch.compile the layers.
    """

    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    autocast_dtypes: ClassVar[tuple[str, ...]] = ("bfloat16",)  # fp16 needs a scale for its loss

    num_steps: int = MISSING
    batch_size: int = MISSING
    num_micro_batches: int = MISSING
    max_grad_norm: float | None = MISSING
    clip_by: str = MISSING
    eval_every: int | None = MISSING
    eval_batch_size: int = MISSING
    probe_every: int | None = MISSING
    max_skipped_steps: int = MISSING
    checkpoint_every: int | None = MISSING
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    num_threads: int = MISSING
    dry_run: bool = MISSING
    device: str = MISSING
    dtype: str = MISSING
    autocast: str | None = MISSING
    compile: bool = MISSING

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""
        for name in ("num_steps", "batch_size", "num_micro_batches", "eval_batch_size", "num_threads"):
            check_count(f"{key}.{name}", getattr(self, name))
        require(
            self.batch_size % self.num_micro_batches == 0,
            f"{key}.batch_size",
            self.batch_size,
            f"expected a multiple of {key}.num_micro_batches={self.num_micro_batches}",
        )
        norm, skipped = self.max_grad_norm, self.max_skipped_steps
        require(norm is None or norm > 0.0, f"{key}.max_grad_norm", norm, "expected a positive number, or null")
        self.checkpoint.check(f"{key}.checkpoint")
        for name in ("eval_every", "probe_every", "checkpoint_every"):
            every = getattr(self, name)
            require(every is None or every >= 1, f"{key}.{name}", every, "expected 1 or more, or null")
        check_count(f"{key}.max_skipped_steps", skipped)
        check_option(f"{key}.dtype", self.dtype, self.dtypes)
        autocast = self.autocast
        known = autocast is None or autocast in self.autocast_dtypes
        require(known, f"{key}.autocast", autocast, f"expected one of {', '.join(self.autocast_dtypes)}, or null")
        accepted = f"expected null with {key}.dtype={self.dtype}, whose products it leaves as they are"
        require(autocast is None or self.dtype == "float32", f"{key}.autocast", autocast, accepted)
        check_option(f"{key}.clip_by", self.clip_by, CLIPPINGS)
        known = re.fullmatch(r"cpu|cuda(:\d+)?", self.device) is not None
        require(known, f"{key}.device", self.device, "expected cpu, cuda, or cuda:<index>")
        threads = self.num_threads
        require(threads <= MAX_THREADS, f"{key}.num_threads", threads, f"expected at most {MAX_THREADS}")

    def check_processes(self, key: str, data_parallel: int) -> None:
        """Raise ConfigError for what real processes can't do, ``data_parallel`` to a stage."""
        self.check_replicas(key, data_parallel)
        every = self.probe_every
        require(every is None, f"{key}.probe_every", every, "expected null, or pipeline=simulated")

    def check_replicas(self, key: str, data_parallel: int) -> None:
        """Raise ConfigError unless ``data_parallel`` replicas have micro-batches of one size."""
        shares = data_parallel * self.num_micro_batches
        accepted = f"expected a multiple of pipeline.data_parallel x {key}.num_micro_batches = {shares}"
        require(self.batch_size % shares == 0, f"{key}.batch_size", self.batch_size, accepted)


@dataclass
class LoggerConfig:
    """An entry of conf/logger. metrics.jsonl is always written; this adds a second reader."""

    tracker: ClassVar[str | None] = None  # import path of the Tracker that this configures

    name: str = MISSING

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""


@dataclass
class WandbConfig(LoggerConfig):
    """mode: online, offline (files below the run folder, to be synced later), or auto: online where there is a key."""

    tracker = "asyncpp.trainer.tracking.wandb_tracker.WandbTracker"
    modes: ClassVar[tuple[str, ...]] = ("auto", "online", "offline")

    project: str = MISSING
    mode: str = MISSING

    def check(self, key: str) -> None:
        check_option(f"{key}.mode", self.mode, self.modes)


@dataclass
class TensorboardConfig(LoggerConfig):
    """Event files below the run folder."""

    tracker = "asyncpp.trainer.tracking.tensorboard_tracker.TensorboardTracker"

    def check(self, key: str) -> None:
        installed = find_spec("tensorboard") is not None
        accepted = "needs the package tensorboard, which is not installed: pip install 'asyncpp[tensorboard]'"
        require(installed, key, self.name, accepted)
