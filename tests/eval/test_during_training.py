"""Checkpoints scored while a run writes them: the training does not notice, and no score depends on it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from eval_cases import config_of, small_run

from asyncpp.records import read_metrics

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STEPS = [2, 4, 6]


def overrides_of(token_root: Path, runs_dir: Path, *pipeline: str) -> list[str]:
    return [*small_run(token_root), *pipeline, f"runs_dir={runs_dir}", "trainer.num_steps=6",
            "trainer.num_micro_batches=2", "data.num_validation_sequences=8", "trainer.eval_every=2",
            "trainer.checkpoint_every=2", "trainer.checkpoint.keep_every=2"]  # fmt: skip


def start(overrides: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "asyncpp.train", *overrides], cwd=ROOT, stdout=subprocess.DEVNULL)


def score(run: Path, data_root: Path, which: str) -> list[dict]:
    command = [sys.executable, str(ROOT / "eval" / "run.py"), f"ckpt={run}", f"eval.data_root={data_root}",
               "tasks=[piqa]", "limit=4", f"checkpoints={which}", "num_threads=1", "json=true"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def losses(run: Path) -> list[dict]:
    """What the run computed, without what it took."""
    computed = ("step", "train/loss", "val/loss", "optim/grad_norm")
    return [{key: row[key] for key in computed if key in row} for row in read_metrics(run / "metrics.jsonl")]


def kept(run: Path, step: int) -> dict:
    return json.loads((run / "eval" / f"step-{step:08d}-x.json").read_text())


def test_a_watched_pipeline_trains_as_an_unwatched_simulation_and_is_scored_alike(token_root, data_root, tmp_path):
    two_processes = overrides_of(token_root, tmp_path / "watched", "pipeline=2bw", "pipeline.num_stages=2")
    simulated = overrides_of(token_root, tmp_path / "alone", "delay=one_step")
    watched, alone = config_of(*two_processes).folder, config_of(*simulated).folder
    with start(two_processes) as training:
        while not (watched / "config.yaml").exists():
            assert training.poll() is None
            time.sleep(0.1)
        scored = score(watched, data_root, "watch")
        assert training.wait() == 0
    with start(simulated) as training:
        assert training.wait() == 0
    score(alone, data_root, "all")
    assert [Path(document["file"]).name for document in scored] == [f"step-{step:08d}-x.json" for step in STEPS]
    for step in STEPS:
        ours, theirs = kept(watched, step), kept(alone, step)
        assert ours["model_digest"] == theirs["model_digest"] and ours["results"] == theirs["results"]
    assert losses(watched) == losses(alone)
