"""Table 4: accuracies from what eval/run.py leaves, and a difference that is paired by item."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loading import load_runs
from omegaconf import OmegaConf
from planted import DELAY_AND_CORRECTION

import make_tables
from asyncpp.arguments import run_command
from asyncpp.errors import ConfigError
from downstream_table import make_rows, make_table, to_latex, to_markdown
from eval import benchmarks
from eval.results import packed_marks
from labels import BENCHMARKS
from runs import UnusableRun
from scores import marks_of, scores_of
from significance import difference
from table_text import MISSING

NUM_ITEMS = 200
CONF = Path(__file__).parents[2] / "conf"


def test_the_benchmarks_of_the_table_are_those_that_are_fetched_and_by_default_scored():
    scored = list(OmegaConf.load(CONF / "eval.yaml").tasks)
    assert scored == [benchmark.task for benchmark in benchmarks.BENCHMARKS] == list(BENCHMARKS)


def score(run: Path, task: str, marks: str, metric: str = "acc", step: int = 400, **settings) -> None:
    """Add an entry to the run's scores, as eval/run.py does."""
    path = run / "eval" / f"step-{step:08d}-x.json"
    path.parent.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {"results": []}
    entry = {"task": task, "num_fewshot": None, "limit": None, "max_length": 64, "dtype": "float32",
             "items_sha256": "a", "n": len(marks), "correct": {metric: packed(marks)}} | settings  # fmt: skip
    path.write_text(json.dumps({"results": [*kept["results"], entry]}))


def packed(marks: str) -> str:
    """As hexadecimal digits, filled up with zeros to whole bytes."""
    bits = marks + "0" * (-len(marks) % 8)
    return "".join(f"{int(bits[start : start + 4], 2):x}" for start in range(0, len(bits), 4))


def right(num_right: int, first: int = 0) -> str:
    """``num_right`` right answers, from item ``first`` on."""
    return "".join("1" if first <= item < first + num_right else "0" for item in range(NUM_ITEMS))


@pytest.fixture
def runs(plant, tmp_path) -> dict[str, Path]:
    """A run of AdamW for each condition."""
    return {
        condition: plant(delay=delay, correction=correction)
        for condition, (delay, correction) in DELAY_AND_CORRECTION.items()
    }


def test_accuracies_and_the_paired_difference(runs, tmp_path):
    score(runs["sync"], "piqa", right(100))
    score(runs["async"], "piqa", right(80))
    score(runs["async_ef"], "piqa", right(101))
    (row,) = make_rows(load_runs(tmp_path / "runs").frame)
    assert row.accuracies == {"sync": 0.5, "async": 0.4, "async_ef": 0.505} and row.num_items == NUM_ITEMS
    assert row.difference is not None and row.difference.mean == pytest.approx(0.005)
    assert row.difference.low == 0.0 and 0.005 < row.difference.high < 0.03  # one item differs, of 200


def test_a_pairing_sees_what_two_accuracies_hide():
    """Equal accuracies on other items are a wide interval, a few more right answers on the same items a narrow one."""
    sync = np.array([1] * 100 + [0] * 100)
    opposite = difference([(sync, 1 - sync)])
    better = difference([(sync, np.array([1] * 115 + [0] * 85))])
    assert opposite is not None and opposite.mean == 0.0 and opposite.low < -0.1 and opposite.high > 0.1
    assert better is not None and better.mean == pytest.approx(0.075) and better.low > 0.03


def test_the_interval_covers_as_often_as_it_says():
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        sync, other = generator.random((2, 300)) < np.array([[0.5], [0.6]])
        found = difference([(sync.astype(int), other.astype(int))])
        assert found is not None
        covered += found.low <= 0.1 <= found.high
    assert 180 <= covered <= 199


def test_seeds_are_averaged_item_by_item():
    one, two = np.array([1, 0, 0, 0] * 50), np.array([0, 1, 0, 0] * 50)
    zero = np.zeros(200, int)
    both = difference([(zero, one), (zero, two)])
    assert both is not None and both.mean == 0.25 and both.num_seeds == 2


def test_without_its_partner_there_is_no_difference(runs, tmp_path):
    score(runs["sync"], "boolq", right(100))
    (row,) = make_rows(load_runs(tmp_path / "runs").frame)
    assert row.accuracies == {"sync": 0.5, "async": None, "async_ef": None} and row.difference is None
    assert difference([]) is None


def test_scores_of_the_last_step_count_and_of_these_the_entry_with_most_items(runs):
    for step, num_right in ((200, 1), (400, 2), (800, 3)):
        score(runs["sync"], "piqa", right(num_right), step=step)
    score(runs["sync"], "piqa", "11", step=400, limit=2)
    assert marks_of(scores_of(runs["sync"], 400)["piqa"], "acc").tolist() == [1, 1] + [0] * (NUM_ITEMS - 2)
    assert scores_of(runs["sync"], 300) == {}


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_marks_are_the_bits_that_evaluation_kept(marks):
    entry = {"n": len(marks), "correct": {"acc": packed_marks([{"acc": mark} for mark in marks], "acc")}}
    assert marks_of(entry, "acc").tolist() == marks


@pytest.mark.parametrize("setting", [{"items_sha256": "b"}, {"max_length": 128}, {"num_fewshot": 5}])
def test_scores_of_other_items_or_settings_are_never_paired(setting, runs, tmp_path):
    score(runs["sync"], "piqa", right(100))
    score(runs["async_ef"], "piqa", right(100), **setting)
    with pytest.raises(ConfigError, match=f"expected scores of piqa with one {next(iter(setting))} for all"):
        make_rows(load_runs(tmp_path / "runs").frame)


def test_make_tables_writes_table_4_where_runs_were_scored(runs, tmp_path, capsys):
    arguments = [f"runs={tmp_path / 'runs'}", f"out={tmp_path / 'out'}"]
    assert run_command("", arguments, make_tables.TablesOptions, make_tables.main) == 0
    assert "### Table 4" not in capsys.readouterr().out and not (tmp_path / "out" / "table4.md").exists()
    for condition, run in runs.items():
        score(run, "hellaswag", right(60 if condition == "async" else 100), metric="acc_norm")
    assert run_command("", arguments, make_tables.TablesOptions, make_tables.main) == 0
    printed = capsys.readouterr().out
    assert "| HellaSwag | AdamW n=1 |   200 | 0.500 | 0.300 |      0.500 | +0.000 [+0.000, +0.000] |" in printed
    assert "PIQA acc (0.5)" in printed and "table4" in printed
    table = pd.read_csv(tmp_path / "out" / "table4.csv")
    assert table.loc[0, "async"] == 0.3 and table.loc[1, "paper_async_ef"] == 0.673
    assert pd.isna(table.loc[0, "paper_async_ef"]) and pd.isna(table.loc[1, "optimizer"])
    assert run_command("", [*arguments, "json=true"], make_tables.TablesOptions, make_tables.main) == 0
    assert json.loads(capsys.readouterr().out)["table4"]["rows"][0]["sync"] == 0.5


@pytest.mark.parametrize(
    "text",
    [
        '{"resu',
        "[]",
        '{"results": [1]}',
        '{"results": [{"task": "piqa"}]}',
        '{"results": [{"task": "piqa", "n": 3}]}',
        '{"results": [{"task": "piqa", "n": 30, "correct": {"acc": "ff"}}]}',
        '{"results": [{"task": "piqa", "n": 8, "correct": {"acc": "ff"}}]}',
    ],
)
def test_scores_that_cannot_be_read_are_listed_and_the_other_runs_count(runs, tmp_path, capsys, text):
    score(runs["sync"], "piqa", right(100))
    score(runs["async"], "piqa", right(80))
    (runs["async"] / "eval" / "step-00000400-x.json").write_text(text)
    with pytest.raises(UnusableRun, match=r"eval/step-00000400-x\.json holds no scores that can be read"):
        scores_of(runs["async"], 400)
    arguments = [f"runs={tmp_path / 'runs'}", f"out={tmp_path / 'out'}"]
    assert run_command("", arguments, make_tables.TablesOptions, make_tables.main) == 0
    told = capsys.readouterr()
    assert f"{runs['async']}: eval/step-00000400-x.json holds no" in told.err
    table = pd.read_csv(tmp_path / "out" / "table4.csv")
    assert table.loc[0, "sync"] == 0.5 and pd.isna(table.loc[0, "async"])
    assert pd.read_csv(tmp_path / "out" / "table1.csv").loc[0, "async_num_seeds"] == 1


def scored_seeds(plant, optimizer: str = "adamw", seeds: int = 3, **values) -> Path:
    """A run for each condition and seed, on PIQA: seed s of sync has 100 + 10 s right answers, others 10 less."""
    for condition, (delay, correction) in DELAY_AND_CORRECTION.items():
        for seed in range(seeds):
            run = plant(optimizer=optimizer, delay=delay, correction=correction, seed=seed, **values)
            score(run, "piqa", right(100 + 10 * seed - (0 if condition == "sync" else 10)))
    return run.parent


def test_cells_have_their_spread_and_seeds_and_the_paper_one_line_a_benchmark(plant):
    scored_seeds(plant, "muon")
    table = make_table(load_runs(scored_seeds(plant)).frame)
    assert table is not None
    markdown = to_markdown(table)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if "|" in line]
    assert [line[:4] for line in lines[2:]] == [
        ["PIQA", "AdamW n=3", "200", "0.550 ±0.050"],
        ["", "Muon n=3", "200", "0.550 ±0.050"],
        ["", "paper [S]", MISSING, "0.775"],
    ]
    assert lines[-1][-1] == "+0.003"
    assert max(len(line) for line in markdown.splitlines()) <= 110
    latex = to_latex(table)
    assert r"PIQA & AdamW n=3 & 200 & 0.550 $\pm$0.050" in latex and latex.count("paper [S]") == 1
    assert [record["paper_sync"] for record in table.records()] == [None, None, 0.775]
    assert table.records()[0]["sync_spread"] == pytest.approx(0.05)


def test_the_legend_says_whose_runs_were_scored(plant):
    table = make_table(load_runs(scored_seeds(plant, sweep="table1_optimizers")).frame)
    assert table is not None
    text = " ".join(to_markdown(table).split())
    assert "ours: runs of table1_optimizers, model=tiny, 400 steps" in text


def test_cells_over_fewer_seeds_say_so_and_what_scores_the_rest(plant):
    runs_dir = scored_seeds(plant, seeds=1, sweep="table1_optimizers")
    another = plant(seed=1, sweep="table1_optimizers")
    for task in ("piqa", "boolq"):
        score(another, task, right(140))
    plant(optimizer="muon", sweep="table1_optimizers")
    table = make_table(load_runs(runs_dir).frame)
    assert table is not None
    assert "AdamW n=2/1/1" in to_markdown(table)
    (missing,) = table.missing
    _, cells, command = missing.split(": ")
    others = "MMLU, ARC-Easy, ARC-Challenge, HellaSwag, OpenBookQA"
    assert cells == f"AdamW sync on BoolQ; AdamW async; AdamW async + EF; Muon; all on {others}"
    train = "python -m asyncpp.sweep run table2_error_feedback seeds=[0,1]"
    assert command.startswith(f"{train} && python -m eval.fetch ")
    assert "python eval/run.py 'ckpt=runs/table1_optimizers/*' " in command
    assert "No scores yet: AdamW sync on BoolQ" in " ".join(to_markdown(table).split())
