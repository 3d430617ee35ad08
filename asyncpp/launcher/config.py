"""How cells are started: an entry of conf/hydra/launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, DictConfig

from asyncpp.arguments import parse_arguments
from asyncpp.config import Config
from asyncpp.errors import check_count, check_option, require
from asyncpp.hydra_command import typed


@dataclass
class LauncherConfig:
    """name: of the launcher. num_parallel: cells at a time."""

    name: str = MISSING
    num_parallel: int = MISSING

    def check(self, config: Config) -> None:
        """Raise ConfigError where this can't start a run of ``config``."""
        check_count("launcher.num_parallel", self.num_parallel)


@dataclass
class LocalConfig(LauncherConfig):
    """Processes of this machine, each with the threads that trainer.num_threads gives it."""


@dataclass
class SlurmConfig(LauncherConfig):
    """nodes, tasks_per_node: a run's tasks, one a rank (null: as it has ranks), or a single one that starts the ranks.

    gpus_per_node, cpus_per_task, mem_gb, partition, account, qos, constraint, exclude: as sbatch knows them; null asks
    for a GPU a rank where a run wants one, a core a thread, and nothing else. timeout_min: of one launch of a cell,
    which is then requeued. signal_delay_s: how long before that a run is told to save its state. max_num_requeues: for
    time limits and preemptions together. setup: shell lines before a cell. sbatch: further flags. wait: for the last
    cell to end.
    """

    nodes: int = MISSING
    tasks_per_node: int | None = MISSING
    gpus_per_node: int | None = MISSING
    cpus_per_task: int | None = MISSING
    mem_gb: float | None = MISSING
    partition: str | None = MISSING
    account: str | None = MISSING
    qos: str | None = MISSING
    constraint: str | None = MISSING
    exclude: str | None = MISSING
    timeout_min: int = MISSING
    signal_delay_s: int = MISSING
    max_num_requeues: int = MISSING
    setup: list[str] = field(default_factory=list)
    sbatch: dict[str, Any] = field(default_factory=dict)
    wait: bool = MISSING

    def check(self, config: Config) -> None:
        super().check(config)
        for key in ("nodes", "tasks_per_node", "cpus_per_task", "timeout_min", "signal_delay_s"):
            value = getattr(self, key)
            require(value is None or value >= 1, f"launcher.{key}", value, "expected 1 or more")
        requeues, delay_s = self.max_num_requeues, self.signal_delay_s
        require(requeues >= 0, "launcher.max_num_requeues", requeues, "expected 0 or more")
        limit_s = 60 * self.timeout_min
        accepted = f"expected less than the {limit_s} s of launcher.timeout_min={self.timeout_min}"
        require(delay_s < limit_s, "launcher.signal_delay_s", delay_s, accepted)
        num_ranks, num_tasks = config.pipeline.num_processes, self.num_tasks(config)
        key, value = "launcher.tasks_per_node", self.tasks_per_node
        if value is None:
            key, value = "launcher.nodes", self.nodes
        accepted = (
            f"expected nodes x tasks_per_node = {num_ranks}, the stages x replicas of pipeline={config.pipeline.name}"
        )
        require(num_tasks in (1, num_ranks), key, value, f"{accepted}, not {num_tasks}")

    def num_tasks(self, config: Config) -> int:
        """Of one run: one a rank unless tasks_per_node says otherwise."""
        return self.nodes * self.tasks_of_node(config)

    def tasks_of_node(self, config: Config) -> int:
        return self.tasks_per_node or -(-config.pipeline.num_processes // self.nodes)

    def gpus_of_node(self, config: Config) -> int | None:
        """One a rank, where a run wants them."""
        if self.gpus_per_node is not None or not config.trainer.device.startswith("cuda"):
            return self.gpus_per_node
        return -(-config.pipeline.num_processes // self.nodes)

    def cpus_of_task(self, config: Config) -> int:
        """Cores: one a thread."""
        ranks_of_task = config.pipeline.num_processes // self.num_tasks(config)
        return self.cpus_per_task or config.trainer.num_threads * ranks_of_task


KINDS: Mapping[str, type[LauncherConfig]] = {"local": LocalConfig, "slurm": SlurmConfig}


def launcher_of(composed: DictConfig) -> LauncherConfig:
    """The launcher of a cell, from what Hydra composed, its own node included. Raises ConfigError."""
    name = composed.hydra.launcher.get("name")
    check_option("hydra/launcher", name, KINDS)
    return typed(composed.hydra, "launcher", KINDS[name])


def launcher_from(values: Mapping[str, Any], changes: Sequence[str]) -> LauncherConfig:
    """The launcher that ``values``, of a ledger, say, with ``changes``: key=value. Raises ConfigError."""
    return parse_arguments(changes, KINDS[values["name"]], values, "launcher.")
