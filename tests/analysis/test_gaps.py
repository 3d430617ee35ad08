"""Gaps and recovered shares against known answers."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import load_runs
from planted import PlantRun

from gaps import IN_NOISE, NO_GAP, compare, compare_optimizers, paper, paper_comparison

LOSSES = st.floats(1.0, 10.0)


def seeds(**losses: list[float]) -> pd.DataFrame:
    return pd.DataFrame(losses, dtype=float)


def test_planted_gaps_come_back(planted_demo: Path) -> None:
    comparisons = compare_optimizers(load_runs(planted_demo).frame)
    adamw, muon = comparisons["adamw"], comparisons["muon"]
    assert adamw.losses["sync"].mean == pytest.approx(4.4)
    assert adamw.losses["sync"].spread == pytest.approx(0.02)  # sample standard deviation of -0.02, 0, 0.02
    assert adamw.losses["sync"].num_seeds == 3
    assert adamw.gap.mean == pytest.approx(0.8)
    assert adamw.gap.spread == pytest.approx(0.0, abs=1e-12)  # the seeds' shifts cancel in pairs
    assert adamw.recovered.mean == pytest.approx(0.5)
    assert muon.gap.mean == pytest.approx(0.1)
    assert muon.recovered.mean == pytest.approx(0.75)


def test_the_gap_pairs_seeds() -> None:
    """Seeds 0 and 1 have both sides; the mean of all runs would give 3 - 4/3."""
    comparison = compare(seeds(sync=[1.0, 1.0, 2.0], **{"async": [1.5, 1.7, math.nan]}))
    assert comparison.gap.mean == pytest.approx(0.6)
    assert comparison.gap.spread == pytest.approx(math.sqrt(0.02))
    assert comparison.gap.num_seeds == 2
    assert comparison.losses["sync"].num_seeds == 3
    assert comparison.losses["async_ef"] is None
    assert comparison.recovered is None
    assert comparison.undefined is None


def test_the_recovered_share_takes_the_seeds_that_have_all_three() -> None:
    losses = seeds(sync=[1.0, 1.0, 1.0], **{"async": [2.0, 2.0, 9.0]}, async_ef=[1.5, 1.3, math.nan])
    recovered = compare(losses).recovered
    assert recovered.mean == pytest.approx(0.6)
    assert recovered.spread == pytest.approx(math.sqrt(0.02))
    assert recovered.num_seeds == 2


def test_one_seed_has_no_spread() -> None:
    comparison = compare(seeds(sync=[4.0], **{"async": [5.0]}, async_ef=[4.25]))
    assert comparison.losses["async"].spread is None
    assert (comparison.gap.mean, comparison.gap.spread, comparison.gap.num_seeds) == (1.0, None, 1)
    assert (comparison.recovered.mean, comparison.recovered.spread) == (0.75, None)


@pytest.mark.parametrize(
    ("sync", "delayed", "reason"),
    [
        ([4.0], [4.0], NO_GAP),
        ([4.0], [3.9], NO_GAP),
        ([4.0, 4.0], [3.9, 4.05], NO_GAP),
        ([4.0], [4.009], IN_NOISE),
        ([4.0, 4.0], [4.2, 3.9], IN_NOISE),
        ([4.0, 4.0], [4.0015, 4.0015], IN_NOISE),
        ([4.4, 4.41], [4.4025, 4.4126], IN_NOISE),  # clear of zero, but too small
        ([4.0, 4.0, 4.0], [4.02, 4.05, 4.11], IN_NOISE),  # larger than its spread, but not clear of zero
    ],
)
def test_a_share_of_no_gap_is_undefined(sync: list[float], delayed: list[float], reason: str) -> None:
    comparison = compare(seeds(sync=sync, **{"async": delayed}, async_ef=[9.0] * len(sync)))
    assert comparison.recovered is None
    assert comparison.undefined == reason
    assert comparison.gap is not None


def test_an_undefined_gap_without_error_feedback_is_only_missing() -> None:
    assert compare(seeds(sync=[4.0], **{"async": [3.0]})).undefined is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(LOSSES, LOSSES, LOSSES), min_size=1, max_size=5), st.floats(-1.0, 1.0))
def test_shares_do_not_depend_on_the_level_of_losses(losses: list[tuple[float, float, float]], shift: float) -> None:
    frame = pd.DataFrame(losses, columns=["sync", "async", "async_ef"])
    plain, shifted = compare(frame), compare(frame + shift)
    if plain.recovered is not None and shifted.recovered is not None:
        assert shifted.recovered.mean == pytest.approx(plain.recovered.mean, rel=1e-6, abs=1e-6)
    assert plain.gap.mean == pytest.approx(shifted.gap.mean, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(LOSSES, LOSSES), min_size=1, max_size=5), st.floats(-0.5, 1.5))
def test_a_planted_share_is_recovered_or_called_undefined(pairs: list[tuple[float, float]], share: float) -> None:
    frame = pd.DataFrame(pairs, columns=["sync", "async"])
    frame["async_ef"] = frame["async"] - share * (frame["async"] - frame["sync"])
    comparison = compare(frame)
    assert (comparison.recovered is None) == (comparison.undefined is not None)
    if comparison.recovered is not None:
        assert comparison.recovered.mean == pytest.approx(share, abs=1e-6)


def test_the_papers_shares_are_recomputed_from_its_losses() -> None:
    muon, mark = paper_comparison("muon")
    assert mark == "P"
    assert muon.recovered.mean == pytest.approx(7 / 12)  # printed as 71 %
    low, high = muon.recovered.interval.low, muon.recovered.interval.high
    assert (low, high) == (pytest.approx(6 / 12), pytest.approx(8 / 12))  # the gain is off by up to 0.001
    adamw, mark = paper_comparison("adamw")
    assert mark == "S"
    assert adamw.gap.mean == pytest.approx(0.278)
    assert adamw.recovered.mean == pytest.approx(250 / 278)
    adan, _ = paper_comparison("adan")
    assert adan.gap.mean == pytest.approx(0.010)
    assert adan.recovered is None
    assert paper_comparison("lion") is None
    assert paper_comparison("unheard_of") is None


def test_every_number_of_the_paper_has_a_mark() -> None:
    def unmarked(node: object, where: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        if any(isinstance(value, float) for value in node.values()) and node.get("mark") not in paper()["marks"]:
            return [where]
        return [name for key, value in node.items() for name in unmarked(value, f"{where}.{key}")]

    assert unmarked(paper(), "paper") == []


def test_other_conditions_are_not_compared(plant: PlantRun) -> None:
    runs_dir = plant(delay="constant").parent
    assert compare_optimizers(load_runs(runs_dir).frame) == {}
