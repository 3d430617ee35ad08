"""Scores that contradict themselves, or that no reader gets through, are listed, and cost no other run its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loading import load_runs
from planted import PlantRun

from asyncpp.errors import ConfigError
from downstream_table import make_rows
from runs import UnusableRun
from scores import marks_of, scores_of, unreadable_scores

FILE = Path("eval") / "step-00000400-x.json"
SETTINGS = {"num_fewshot": None, "limit": None, "max_length": 64, "dtype": "float32", "items_sha256": "a"}


def score(run: Path, marks: str, **changes: Any) -> None:
    """Write scores on PIQA with ``marks``, hexadecimal digits of 4 items each, as eval/run.py does."""
    num_items = 4 * len(marks)
    value = int(marks, 16).bit_count() / num_items
    entry = {"task": "piqa", "n": num_items, "metrics": {"acc": {"value": value}}, "correct": {"acc": marks}} | SETTINGS
    (run / FILE).parent.mkdir()
    (run / FILE).write_text(json.dumps({"results": [entry | changes]}))


@pytest.mark.parametrize(
    ("marks", "changes"),
    [
        ("ffff", {"n": 15}),  # a mark beyond the last item
        ("fff0", {"n": 15}),  # which another mean alone tells
        ("fff0", {"metrics": {"acc": {"value": 0.99}}}),
        ("fff0", {"metrics": {"acc": {"value": None}}}),
        ("fff0", {"metrics": [0.75]}),
    ],
)
def test_scores_that_contradict_their_marks_are_listed_and_not_paired(
    plant: PlantRun, marks: str, changes: dict[str, Any]
) -> None:
    score(plant(), "ff00")
    wrong = plant(delay="one_step", correction="ef")
    score(wrong, marks, **changes)
    frame = load_runs(wrong.parent).frame
    assert [entry.folder for entry in unreadable_scores(frame.to_dict("records"))] == [wrong]
    (row,) = make_rows(frame)
    assert row.accuracies == {"sync": 0.5, "async": None, "async_ef": None}


def test_scores_of_other_numbers_of_items_are_one_refusal(plant: PlantRun) -> None:
    """No answer is right, so that nothing in the scores themselves says how many items there were."""
    score(plant(), "0000")
    other = plant(delay="one_step", correction="ef")
    score(other, "0000", n=15)
    with pytest.raises(ConfigError, match="expected scores of piqa with one n for all"):
        make_rows(load_runs(other.parent).frame)


def test_brackets_within_brackets_are_listed(plant: PlantRun) -> None:
    run = plant()
    score(run, "ff00")
    (run / FILE).write_text("[" * 100_000)
    with pytest.raises(UnusableRun, match="holds no scores that can be read"):
        scores_of(run, 400)


def test_marks_fill_their_last_byte_with_zeros() -> None:
    assert marks_of({"n": 5, "correct": {"acc": "a8"}}, "acc").tolist() == [1, 0, 1, 0, 1]
    with pytest.raises(ValueError, match="a mark beyond the last of 4 items"):
        marks_of({"n": 4, "correct": {"acc": "a8"}}, "acc")
