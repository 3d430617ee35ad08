"""SIGKILL at any moment, saving included: run again until it is finished, a run's records and state are the unbroken
run's to the last bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from small_run import configured
from trainer.test_resume import assert_same

from asyncpp import records
from asyncpp.config import Config
from asyncpp.trainer.launch import PRELOAD
from asyncpp.trainer.run import run

NUM_STEPS = 20
EVERY_STEP = (f"trainer.num_steps={NUM_STEPS}", "trainer.checkpoint_every=1", "correction=ef", "trainer.eval_every=7")


def launched(config: Config) -> multiprocessing.process.BaseProcess:
    """``run(config)`` in a process, and a process group, of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, "trainer.test_kills"])
    process = context.Process(target=_main, args=(config,))
    process.start()
    return process


def _main(config: Config) -> None:
    os.setsid()
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    os._exit(run(config))


def session(leader: int) -> list[int]:
    """All live processes of the session of ``leader``, without it."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != leader:
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                members.append(int(entry.name))
    return members


def num_rows(config: Config) -> int:
    return sum("train/loss" in row for row in records.read_metrics(config.folder / records.METRICS_FILE))


def kill_and_finish(config: Config, chance: random.Random, victims: str) -> int:
    """Kill one to three launches of ``config`` at random moments, then let one finish. Returns the kills.

    victims: "all", the process that was started and its ranks; "one" of them.
    """
    kills = 0
    for _ in range(chance.randint(1, 3)):
        process = launched(config)
        assert process.pid is not None
        moment = chance.randrange(NUM_STEPS - 1)  # so many rows are there, at least, and a little time has passed
        while process.is_alive() and num_rows(config) < moment:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.05))
        members = [process.pid, *session(process.pid)]
        for pid in members if victims == "all" else [chance.choice(members)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        process.join(60.0)
        assert not process.is_alive()
        while session(process.pid):  # ranks leave when their starter has gone
            time.sleep(0.01)
    if not records.is_finished(config.folder):
        assert run(config) == 0
    return kills


@pytest.mark.slow
def test_50_runs_killed_at_random_moments(tmp_path, data):
    chance = random.Random(11)
    whole = configured(tmp_path / "whole", data, *EVERY_STEP)
    assert run(whole) == 0
    kills = 0
    for number in range(50):
        config = configured(tmp_path / str(number), data, *EVERY_STEP)
        kills += kill_and_finish(config, chance, victims="all")
        assert_same(config, whole)
    assert kills >= 50


@pytest.mark.slow
def test_20_pipelines_killed_at_random_moments(tmp_path, data):
    chance = random.Random(12)
    pipeline = (*EVERY_STEP, "pipeline=2bw", "pipeline.num_stages=2")
    whole = configured(tmp_path / "whole", data, *pipeline)
    assert run(whole) == 0
    kills = 0
    for number in range(20):
        config = configured(tmp_path / str(number), data, *pipeline)
        kills += kill_and_finish(config, chance, victims=("one", "all")[number % 2])
        assert_same(config, whole)
    assert kills >= 20


def test_two_kills_show_nowhere(tmp_path, data):
    whole, cut = (configured(tmp_path / name, data, *EVERY_STEP) for name in ("whole", "cut"))
    assert run(whole) == 0
    for num_steps in (3, 12):
        process = launched(cut)
        while num_rows(cut) < num_steps:
            assert process.is_alive()
            time.sleep(0.005)
        process.kill()
        process.join()
    assert run(cut) == 0
    assert_same(cut, whole)
