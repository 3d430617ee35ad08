"""Which rank this process is, where another program started the ranks. No torch at import."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from asyncpp.errors import ConfigError, require


@dataclass(frozen=True)
class Place:
    """rank of num_ranks; local_rank: on its machine. address, port: of rank 0's store.

    source: the environment variable that says how many ranks there are, for messages.
    """

    rank: int
    num_ranks: int
    local_rank: int
    address: str
    port: int
    source: str

    def check(self, num_ranks: int) -> None:
        """Raise ConfigError unless as many ranks were started as the configuration has."""
        accepted = f"expected {num_ranks} = pipeline.num_stages x pipeline.data_parallel"
        require(self.num_ranks == num_ranks, self.source, self.num_ranks, accepted)


def place_from(environment: Mapping[str, str]) -> Place | None:
    """This process's place among ranks that torchrun or Slurm's srun started; None where neither did.

    A single task of srun is on its own, and starts its ranks itself. Raises ConfigError for half an environment.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return Place(
            _number(environment, "RANK"),
            _number(environment, "WORLD_SIZE"),
            _number(environment, "LOCAL_RANK"),
            environment.get("MASTER_ADDR", "127.0.0.1"),
            _number(environment, "MASTER_PORT"),
            "WORLD_SIZE",
        )
    if "SLURM_STEP_ID" in environment and _number(environment, "SLURM_STEP_NUM_TASKS") > 1:
        job, step = _number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_STEP_ID")
        return Place(
            _number(environment, "SLURM_PROCID"),
            _number(environment, "SLURM_STEP_NUM_TASKS"),
            _number(environment, "SLURM_LOCALID"),
            environment.get("MASTER_ADDR") or _first_host(environment["SLURM_STEP_NODELIST"]),
            # below the ports that a system hands out (from 32768 on); jobs side by side differ
            15_000 + (job * 16 + step) % 17_000,
            "SLURM_STEP_NUM_TASKS",
        )
    return None


def this_place() -> Place | None:
    return place_from(os.environ)


def _number(environment: Mapping[str, str], key: str) -> int:
    value = environment.get(key, "")
    require(value.isdigit(), key, value or "unset", "expected a number, as torchrun and srun set it")
    return int(value)


def _first_host(nodes: str) -> str:
    """The first of Slurm's list of nodes, such as ``node[3-5,8]``, which only Slurm can read for certain."""
    try:
        shown = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError("MASTER_ADDR", "unset", f"expected rank 0's machine: scontrol fails here ({error})") from None
    return shown.stdout.split()[0]
