"""Which sweeps an experiment is made of, and the command that makes its runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import experiments
from comparable_runs import AXES
from experiments import EXPERIMENTS, Experiments


def test_only_sweeps_whose_runs_are_shared_belong_to_two_experiments() -> None:
    counts = Counter(sweep for experiment in EXPERIMENTS.values() for sweep in experiment.sweeps)
    assert {sweep for sweep, count in counts.items() if count > 1} == {
        "table1_optimizers",
        "table2_error_feedback",  # AdamW and Muon, for the corrections
        "table3_moe",  # which Table 4 scores
    }
    assert all(set(AXES) <= set(experiment.axes) for experiment in EXPERIMENTS.values())


def test_a_command_makes_more_runs() -> None:
    assert EXPERIMENTS["moe"].command(seeds=[0, 1, 2]) == "python -m asyncpp.sweep run table3_moe seeds=[0,1,2]"


def test_a_command_names_the_scale_that_is_not_the_sweeps_first(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "moments.yaml").write_text("scales: {tiny: {model: tiny}, small: {model: 135m}}\n")
    monkeypatch.setattr(experiments, "SWEEPS", tmp_path)
    moments = EXPERIMENTS["moments"]
    assert moments.command("135m", [0]) == "python -m asyncpp.sweep run moments scale=small seeds=[0]"
    assert moments.command("tiny") == moments.command() == "python -m asyncpp.sweep run moments"


def test_a_size_that_a_sweep_does_not_have_is_never_another_one() -> None:
    moments = EXPERIMENTS["moments"]
    assert moments.command("1b", [0]) == "# no sweep of this size: moments has tiny, 135m, 360m, not 1b"
    assert moments.command("135m_moe") == "python -m asyncpp.sweep run moments scale=135m"


@pytest.mark.parametrize(
    ("models", "command"),
    [
        (["135m"], "python -m asyncpp.sweep run table3_moe scale=135m"),
        (["135m_moe", "135m"], "python -m asyncpp.sweep run table3_moe scale=135m"),
        (["360m", "tiny_moe"], "python -m asyncpp.sweep run table3_moe"),
        (["1b"], "# no sweep of this size: table3_moe has tiny, 135m, 360m, 2b, 10b, not 1b"),
    ],
)
def test_what_has_no_runs_is_made_at_the_size_of_those_that_there_are(models: list[str], command: str) -> None:
    assert Experiments({}, models, [], {}).command("moe") == command
