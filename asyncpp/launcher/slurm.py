"""Cells as jobs of Slurm: those that ask for the same are one array."""

from __future__ import annotations

import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError

from asyncpp import records
from asyncpp.errors import EXIT_DONE, EXIT_FAILED
from asyncpp.launcher import slurm_commands
from asyncpp.launcher.cell import Cell
from asyncpp.launcher.config import SlurmConfig
from asyncpp.launcher.freeze import Code
from asyncpp.launcher.ledger import Ledger
from asyncpp.launcher.process import last_words
from asyncpp.launcher.slurm_commands import SlurmFailed
from asyncpp.launcher.slurm_job import CellJob

MAX_ARRAY = 1000  # cells of one array; Slurm's own limit is 1001 unless a cluster sets another
POLL_S = 2.0
START = "asyncpp/launcher/slurm_start.py"


def submit(cells: Sequence[Cell], code: Code, started: Callable[[Cell, str], None]) -> None:
    """Submit ``cells``, and tell ``started`` the job of each at once. Raises SlurmFailed.

    The cells of an array run launcher.num_parallel at a time.
    """
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[repr(_parameters(cell, code))].append(cell)
    for group in groups.values():
        for first in range(0, len(group), MAX_ARRAY):
            _submit_array(group[first : first + MAX_ARRAY], code, started)


def _submit_array(cells: Sequence[Cell], code: Code, started: Callable[[Cell, str], None]) -> None:
    launcher = _launcher(cells[0])
    start = f"{shlex.quote(sys.executable)} -IS {shlex.quote(str(code.folder / START))}"
    executor = SlurmExecutor(Ledger(cells[0].sweep_folder).jobs.absolute(), launcher.max_num_requeues, python=start)
    executor.update_parameters(**_parameters(cells[0], code))
    requeues = launcher.max_num_requeues
    try:
        with executor.batch():
            jobs = [
                executor.submit(CellJob(str(cell.folder), cell.config.trainer.num_threads, requeues)) for cell in cells
            ]
    except (FailedJobError, FailedSubmissionError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith("sbatch: error")), lines[-1])
        raise SlurmFailed(f"sbatch refused {len(cells)} cells: {said}") from None
    for cell, job in zip(cells, jobs, strict=True):
        started(cell, job.job_id)


def _launcher(cell: Cell) -> SlurmConfig:
    assert isinstance(cell.launcher, SlurmConfig)
    return cell.launcher


def _parameters(cell: Cell, code: Code) -> dict[str, Any]:
    """What sbatch is asked for, in submitit's words."""
    launcher = _launcher(cell)
    cpus = launcher.cpus_of_task(cell.config)
    wanted = {
        "job_name": cell.config.sweep_name,
        "time": launcher.timeout_min,
        "nodes": launcher.nodes,
        "ntasks_per_node": launcher.tasks_of_node(cell.config),
        "cpus_per_task": cpus,
        "gpus_per_node": launcher.gpus_of_node(cell.config),
        "mem": None if launcher.mem_gb is None else f"{round(launcher.mem_gb * 1024)}MB",
        "partition": launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "constraint": launcher.constraint,
        "exclude": launcher.exclude,
        "signal_delay_s": launcher.signal_delay_s,
        "array_parallelism": launcher.num_parallel,
        "setup": [f"export {name}={shlex.quote(value)}" for name, value in code.environment().items()] + launcher.setup,
        "srun_args": [f"--cpus-per-task={cpus}"],  # which srun does not take from the job
        "additional_parameters": {"requeue": True} | launcher.sbatch,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def wait_for(jobs: dict[str, Cell]) -> int:
    """Wait until none of ``jobs``, cells by job id, waits or runs. Returns EXIT_DONE where every cell is finished."""
    left = dict(jobs)
    while left:
        time.sleep(POLL_S)
        live = slurm_commands.live_jobs()
        for job in [job for job in left if job not in live]:
            cell = left.pop(job)
            done = records.is_finished(cell.folder)
            print(
                f"[{len(jobs) - len(left)}/{len(jobs)}] {cell.folder.name}  {'done' if done else 'failed'}", flush=True
            )
    failed = [cell for cell in jobs.values() if not records.is_finished(cell.folder)]
    for cell in failed:
        print(f"failed: {cell.folder}: {last_words(cell.folder)}", file=sys.stderr)
    return EXIT_FAILED if failed else EXIT_DONE
