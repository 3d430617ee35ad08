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
from planted import DELAY_AND_CORRECTION

import make_tables
from asyncpp.errors import ConfigError
from command_line import run_command
from downstream import difference, make_rows, marks_of, scores_of
from eval.results import packed_marks

NUM_ITEMS = 200


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
    assert row.record()["paper_sync"] == 0.775


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
    assert run_command(make_tables.main, make_tables.TablesOptions, arguments, "") == 0
    assert "### Table 4" not in capsys.readouterr().out and not (tmp_path / "out" / "table4.md").exists()
    for condition, run in runs.items():
        score(run, "hellaswag", right(60 if condition == "async" else 100), metric="acc_norm")
    assert run_command(make_tables.main, make_tables.TablesOptions, arguments, "") == 0
    printed = capsys.readouterr().out
    assert "| AdamW     | HellaSwag |   200 | 0.500 | 0.300 |      0.500 |    +0.000 |" in printed
    assert max(len(line) for line in printed.splitlines() if line.startswith("|")) <= 100
    assert "Chance is 0.25" in printed and "table4" in printed
    table = pd.read_csv(tmp_path / "out" / "table4.csv")
    assert table.loc[0, "async"] == 0.3 and table.loc[0, "paper_async_ef"] == 0.673
    assert "HellaSwag" in (tmp_path / "out" / "table4.tex").read_text()
    assert run_command(make_tables.main, make_tables.TablesOptions, [*arguments, "json=true"], "") == 0
    assert json.loads(capsys.readouterr().out)["table4"]["rows"][0]["sync"] == 0.5
