"""Sweeps on a real Slurm: started, preempted, timed out, killed, cancelled. Nothing is lost, not the last bit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from slurm_place import Place, queue, results, wait_until

from asyncpp import records

pytestmark = pytest.mark.slurm

RANKS = {"pipeline": "2bw", "pipeline.timeout_s": 300.0, "pipeline.start_timeout_s": 300.0}  # however busy the machine
TWO_RANKS = RANKS | {"pipeline.num_stages": 2}
FOUR_RANKS = RANKS | {"pipeline.num_stages": 4}


def preempt() -> None:
    """A job of the higher partition takes both nodes whole, and ends at once."""
    size = ["--partition=high", "--nodes=2", "--exclusive"]
    command = ["sbatch", "--job-name=higher", *size, "--output=/dev/null", "--wrap=true"]
    subprocess.run(command, check=True, capture_output=True)
    wait_until(lambda: not queue("higher"), "the end of the job that preempts")


def num_restarts(folder: Path) -> int:
    """Of a run: how often it went on from a checkpoint."""
    return (folder / records.OUTPUT_FILE).read_text().count("resuming after")


def processes_of(folder: Path) -> list[int]:
    """The training processes of a run, one a rank."""
    found = subprocess.run(["pgrep", "-f", f"run_cell .*{folder.name}"], capture_output=True, text=True).stdout.split()
    return [int(number) for number in found]


def send(number: int, processes: list[int]) -> None:
    """A signal, to those of the processes that are still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def pause_at(place: Place, folders: list[Path], num_steps: int) -> None:
    """Stop each run's processes once it has done so many updates: no machine is too fast for what follows."""
    left = list(folders)

    def all_paused() -> bool:
        for folder in [folder for folder in left if place.num_steps(folder) >= num_steps]:
            send(signal.SIGSTOP, processes_of(folder))
            left.remove(folder)
        return not left

    wait_until(all_paused, f"step {num_steps} of {folders}")


def was_told(process: int) -> bool:
    """Whether a process that was paused has SIGUSR2 waiting for it, or goes on already, or is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return True
    (waiting,) = re.findall(r"ShdPnd:\s*(\w+)", status)
    return "T (stopped)" not in status or bool(int(waiting, 16) >> (signal.SIGUSR2 - 1) & 1)


def test_hydras_multirun_is_an_array_and_a_hung_up_terminal_ends_nothing(place: Place):
    """Six cells through Hydra's launcher, which submits and returns."""
    place.write("six", [])
    shared = json.loads((place.folder / "six.yaml").read_text())["scales"]["tiny"]
    common = [f"{key}={'null' if value is None else value}" for key, value in shared.items()]
    grid = ["-m", "optimizer=adamw,muon,lion", "delay=sync,one_step"]
    cells = [*grid, "trainer.num_steps=20", "sweep_name=six", *common]
    place.python("asyncpp.train", *cells, "hydra/launcher=slurm")
    jobs = place.jobs("six")
    assert len(jobs) == 6 and len({(job or "").split("_")[0] for job in jobs}) == 1
    place.wait_for_end("six")
    place.python("asyncpp.train", *cells, "runs_dir=reference")  # Hydra's own launcher: in one process, one by one
    runs, reference = (sorted(place.folder.glob(f"{where}/six/tiny-*")) for where in ("runs", "reference"))
    assert len(runs) == 6 and [results(run) for run in runs] == [results(run) for run in reference]
    assert all(records.is_finished(run) for run in runs)
    again = place.python("asyncpp.train", *cells, "hydra/launcher=slurm")
    assert "6 runs, 6 finished before" in again and place.jobs("six") == jobs


def test_twelve_cells_two_of_which_fail(place: Place):
    """Ten results, both errors, and a retry of exactly the two."""
    broken = {"optimizer.lr": 1e30, "trainer.max_skipped_steps": 2}
    good = [{"optimizer.lr": rate} for rate in (1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4, 8e-4, 9e-4, 1e-3)]
    place.write("twelve", [*good, broken, broken | {"optimizer": "muon"}], trainer__num_steps=6)
    place.run("twelve", "launcher.wait=true", exit_code=1)
    before, jobs = place.status("twelve"), place.jobs("twelve")
    assert [cell["state"] for cell in before.values()] == ["done"] * 10 + ["failed"] * 2
    for cell in list(before.values())[10:]:
        assert cell["error"].startswith("no finite gradient in 2 steps in a row, the last at step")
    place.python("asyncpp.sweep", "retry", "twelve", exit_code=1)
    after = place.jobs("twelve")
    assert after[:10] == jobs[:10] and not set(after[10:]) & set(jobs[10:])
    assert [cell["state"] for cell in place.status("twelve").values()] == ["done"] * 10 + ["failed"] * 2


def test_four_ranks_on_two_nodes_preempted_twice(place: Place):
    place.write("preempted", [FOUR_RANKS], trainer__num_steps=200)
    place.run("preempted", "launcher.nodes=2", "launcher.partition=main")
    (folder,) = place.folders("preempted")
    for num_preempted, num_steps in ((1, 30), (2, 60)):
        pause_at(place, [folder], num_steps)
        preempt()  # which also sends SIGCONT
        wait_until(lambda n=num_preempted: num_restarts(folder) == n, f"restart {num_preempted}")
    place.wait_for_end("preempted")
    place.check_against_reference("preempted")


def test_two_ranks_reach_the_time_limit_and_go_on(place: Place):
    """Of a job of one minute: some launchers would take it for one that timed out for good."""
    place.write("limited", [TWO_RANKS], trainer__num_steps=200)
    place.run("limited", "launcher.timeout_min=1", "launcher.signal_delay_s=35")
    (folder,) = place.folders("limited")
    pause_at(place, [folder], 30)
    ranks = processes_of(folder)
    wait_until(lambda: all(was_told(rank) for rank in ranks), "the signal before the time limit")
    send(signal.SIGCONT, ranks)  # Slurm may have sent one with its signal: then the ranks may be gone by now
    place.wait_for_end("limited")
    assert num_restarts(folder) >= 1
    place.check_against_reference("limited")


def test_a_kill_and_a_cancelled_job_and_a_cancelled_sweep(place: Place):
    """Each says what happened, holds no process back, and goes on to the same losses."""
    place.write("ended", [{"optimizer": name} for name in ("adamw", "muon", "lion")], trainer__num_steps=300)
    place.run("ended")
    killed, cancelled, stopped = place.folders("ended")
    pause_at(place, [killed, cancelled, stopped], 110)
    (process,) = processes_of(killed)
    send(signal.SIGKILL, [process])
    subprocess.run(["scancel", place.jobs("ended")[1] or ""], check=True)
    wait_until(lambda: len(queue("ended")) == 1, "two jobs to end")
    states = place.status("ended")
    assert states[killed.name]["state"] == "failed"
    assert states[killed.name]["error"] == "error: the run was killed by SIGKILL"
    assert (states[cancelled.name]["state"], states[stopped.name]["state"]) == ("stopped", "running")
    place.python("asyncpp.sweep", "cancel", "ended")
    place.wait_for_end("ended")
    assert place.status("ended")[stopped.name]["state"] == "stopped"
    place.run("ended")
    jobs = place.jobs("ended")
    place.run("ended", exit_code=1)  # a second launch leaves alone what the first one has
    assert place.jobs("ended") == jobs
    place.wait_for_end("ended")
    place.check_against_reference("ended")


def test_what_slurm_cannot_do_is_one_line_and_nothing_is_submitted(place: Place):
    place.write("refused", [{}], trainer__num_steps=2)
    command = ["asyncpp.sweep", "run", "refused.yaml", "launcher=slurm"]
    place.python(*command, "launcher.partition=gpu", exit_code=2)
    place.python(*command, "launcher.constraint=a100", exit_code=1)  # which only sbatch knows
    assert queue("refused") == []
    assert [cell["state"] for cell in place.status("refused").values()] == ["missing"]
