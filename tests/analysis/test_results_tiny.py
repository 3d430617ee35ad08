"""What the repository says of its own runs is what the analysis makes of the runs that it keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from all_tables import SUFFIXES, make_all_tables
from claims import judge_claims
from experiments import Experiments
from figures.catalogue import FAMILIES, Drawn, draw
from load_experiments import load_experiments
from loss_table_formats import markdown_table
from loss_tables import optimizer_tables
from rules.markdown import summary
from table_text import csv_text

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results-tiny"
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def experiments() -> Experiments:
    return load_experiments(RESULTS / "runs")


def rows_of(markdown: str) -> list[list[str]]:
    lines = [line.strip("|").split("|") for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if not set("".join(line)) <= set(":- ")]


def test_every_table_that_is_kept_is_made_of_the_runs_that_are_kept(experiments: Experiments) -> None:
    tables = make_all_tables(experiments, num_stages=4, num_micro_batches=4).tables
    made = {f"{table.file_name}{suffix}" for table in tables for suffix in SUFFIXES}
    assert made == {file.name for file in RESULTS.glob("ta*") if file.is_file()} | {
        file.name for file in RESULTS.glob("time_to_loss.*")
    }
    for table in tables:
        for suffix, text in zip(SUFFIXES, table.texts, strict=True):
            assert (RESULTS / f"{table.file_name}{suffix}").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_the_values_of_every_figure_that_are_kept_are_those_of_the_runs_that_are_kept(
    experiments: Experiments, name: str
) -> None:
    (one,) = draw(experiments, name)
    assert isinstance(one, Drawn) and one.frame is not None
    assert (RESULTS / f"{name}.csv").read_text(encoding="utf-8") == csv_text(one.frame)


def test_the_verdicts_that_are_kept_and_those_of_the_readme_are_the_rules_own(experiments: Experiments) -> None:
    claims = judge_claims(experiments)
    kept = json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))["claims"]
    assert kept == json.loads(json.dumps([claim.as_dict() for claim in claims]))
    in_readme = rows_of(README)
    for row in rows_of(summary(claims)):
        assert row in in_readme


def test_the_demos_tables_in_the_readme_are_those_of_its_runs(experiments: Experiments) -> None:
    """The demo's six runs are seed 0 of AdamW and Muon in Table 2."""
    frame: pd.DataFrame = experiments.frames["optimizers"]["tiny"]
    own = frame[(frame["seed"] == 0) & frame["optimizer"].isin(["adamw", "muon"])]
    of_demo = replace(experiments, frames={**experiments.frames, "optimizers": {"tiny": own}})
    in_readme = rows_of(README)
    for table in optimizer_tables(of_demo):
        for row in rows_of(markdown_table(table)):
            assert row in in_readme
