"""The root configuration: from what Hydra composed to checked dataclasses. No torch here.

Each group's YAML names its dataclass (``_target_``), which types its values and checks them; what concerns more than
one group is checked in ``Config.check``. Past this module nobody sees a DictConfig.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from asyncpp import records
from asyncpp.correction.config import CorrectionConfig
from asyncpp.data.config import DataConfig
from asyncpp.errors import require
from asyncpp.hydra_command import require_finite, require_known, typed
from asyncpp.model.config import LlamaConfig
from asyncpp.optim.config import OptimizerConfig
from asyncpp.optim.lr_schedule import LRScheduleConfig
from asyncpp.pipeline.config import DelayConfig, PipelineConfig
from asyncpp.pipeline.delay import DelayProfile
from asyncpp.trainer.config import LoggerConfig, TrainerConfig

GROUPS = ("model", "data", "optimizer", "lr_schedule", "pipeline", "delay", "correction", "logger")
SCALARS = {"seed": int, "runs_dir": str, "sweep_name": str, "resume": str}
RECIPE = "recipe"  # what conf/optimizer takes its learning rates from; the run itself has the values, not the table


@dataclass
class Config:
    """A run, whole. Fields are the groups and keys of conf/train.yaml."""

    model: LlamaConfig
    data: DataConfig
    optimizer: OptimizerConfig
    lr_schedule: LRScheduleConfig
    pipeline: PipelineConfig
    delay: DelayConfig
    correction: CorrectionConfig
    logger: LoggerConfig
    trainer: TrainerConfig
    seed: int
    runs_dir: str
    sweep_name: str
    resume: str

    def check(self) -> None:
        """Raise ConfigError for a run that cannot be, before anything is built or written."""
        for key in (*GROUPS, "trainer"):
            if key != "lr_schedule":
                getattr(self, key).check(key)
        self.lr_schedule.check("lr_schedule", self.trainer.num_steps)
        require(0 <= self.seed < 2**32, "seed", self.seed, "expected zero or more, below 2**32")
        require(bool(self.runs_dir), "runs_dir", self.runs_dir, "expected the path of a folder")
        require(
            self.sweep_name != "" and not self.sweep_name.startswith(".") and "/" not in self.sweep_name,
            "sweep_name",
            self.sweep_name,
            "expected a folder's name, without a slash and without a dot in front, which would hide its runs",
        )
        known = self.resume in ("auto", "never") or Path(self.resume).is_dir()
        require(known, "resume", self.resume, "expected auto, never, or the folder of a run or of a checkpoint")
        for key in GROUPS:
            name = getattr(self, key).name
            plain = re.fullmatch(r"[A-Za-z0-9_]+", name) is not None  # it becomes part of a folder's name
            require(plain, f"{key}.name", name, "expected letters, digits and underscores")
        self._check_parts_and_processes()
        require(
            not (self.delay.varies and self.correction.needs_constant_delay),
            "correction",
            self.correction.name,
            f"expected one that is defined for a delay that varies, as with delay={self.delay.name}; use none",
        )
        require(
            self.model.vocab_size >= self.data.vocab_size,
            "model.vocab_size",
            self.model.vocab_size,
            f"expected at least data.vocab_size={self.data.vocab_size}",
        )

    def _check_parts_and_processes(self) -> None:
        """What is asked of each group where the model is cut in parts, and where processes of their own have them."""
        pipeline, trainer = self.pipeline, self.trainer
        pipeline.layers("pipeline", self.model, self.data.sequence_length, self.profile.num_parts)
        if pipeline.is_simulated:
            return
        pipeline.check_processes("pipeline", trainer.num_micro_batches, self.correction)
        self.delay.check_processes("delay", pipeline)
        trainer.check_processes("trainer", pipeline.data_parallel)
        self.optimizer.check_processes("optimizer")
        alike = len(set(self.profile.delays)) == 1 and trainer.clip_by in ("global", "none")
        where = f"pipeline={pipeline.name} trainer.clip_by={trainer.clip_by}"
        self.model.check_processes("model", pipeline.num_stages, alike, where)

    @property
    def profile(self) -> DelayProfile:
        """The delay of every part of the model, in its order: of the schedule where there is a real one."""
        if self.pipeline.is_simulated:
            return self.delay.profile(self.pipeline)
        return self.pipeline.steady_delays(self.pipeline.schedule)

    @property
    def delay_varies(self) -> bool:
        """Whether it differs from stage to stage or from batch to batch: no one number of updates says what it is."""
        return self.delay.varies or len(set(self.profile.delays)) > 1

    @property
    def layers(self) -> list[range]:
        """The layers of every part of the model, in its order."""
        return self.pipeline.layers("pipeline", self.model, self.data.sequence_length, self.profile.num_parts)

    @property
    def num_tokens(self) -> int:
        """Training tokens that the whole run reads."""
        return self.trainer.num_steps * self.trainer.batch_size * self.data.sequence_length

    def notes(self) -> list[str]:
        """What a user may not expect of a run that is allowed all the same."""
        correction, delay = self.correction, self.delay
        undelayed = max(self.profile.delays) == 0
        if undelayed and correction.name != "none" and not correction.acts_without_delay:
            return [f"correction={correction.name} changes nothing with delay={delay.name}: no update is late"]
        return []

    def scientific(self) -> dict[str, Any]:
        """What changes the numbers, as plain containers. A delay counts by what it comes to, not by its name."""
        values: dict[str, Any] = asdict(self)
        for key in records.BOOKKEEPING_KEYS:
            *parents, leaf = key.split(".")
            node = values
            for parent in parents:
                node = node[parent]
            node.pop(leaf, None)  # a mixture, for one, has no shards of its own
        values["delay"] = asdict(self.profile)
        if len(set(self.profile.delays)) == 1:
            values["delay"]["delays"] = self.profile.delays[:1]  # on however many stages
        pipeline = self.pipeline
        values["pipeline"] = {key: getattr(pipeline, key) for key in ("name", "num_stages", "data_parallel")}
        if len(set(self.profile.delays)) > 1 or self.trainer.clip_by == "stage":
            values["pipeline"]["layers"] = [len(owned) for owned in self.layers]  # otherwise a split changes no bit
        return values

    def hash(self) -> str:
        return records.config_hash(self.scientific())

    def run_name(self) -> str:
        """The run folder's name: readable first, then the hash that tells apart what the name does not."""
        names = (self.model.name, self.optimizer.name, self.delay.effective_name(self.pipeline), self.correction.name)
        return "-".join((*names, f"seed{self.seed}", self.hash()))

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.runs_dir) / self.sweep_name / self.run_name()

    def to_yaml(self) -> str:
        """Every value, and which dataclass each group is of."""
        values = asdict(self)
        for key in GROUPS:
            kind = type(getattr(self, key))
            values[key] = {"_target_": f"{kind.__module__}.{kind.__qualname__}", **values[key]}
        return OmegaConf.to_yaml(OmegaConf.create(values))


def from_hydra(composed: DictConfig) -> Config:
    """Type and check what Hydra composed. Raises ConfigError."""
    require_finite(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]))
    accepted = (*GROUPS, "trainer", *SCALARS, RECIPE)
    require_known(composed, accepted)
    values: dict[str, Any] = {name: typed(composed, name) for name in GROUPS}
    values["trainer"] = typed(composed, "trainer", TrainerConfig)
    for name, kind in SCALARS.items():
        values[name] = composed[name]
        require(type(values[name]) is kind, name, values[name], f"expected a value of type {kind.__name__}")
    config = Config(**values)
    config.check()
    return config
