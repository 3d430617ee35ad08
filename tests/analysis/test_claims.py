"""The rules against worlds whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted import PlantRun
from worlds import GAPS, SHARE, plant_world

import claims as command
from asyncpp.arguments import run_command
from asyncpp.errors import ConfigError
from gaps import Estimate, paper
from load_experiments import load_experiments
from rules import (
    c1_optimizer,
    c2_momentum,
    c3_error_feedback,
    c4_mixture_of_experts,
    c5_downstream,
    c6_depth,
    c7_batch_size,
    c8_moments,
)
from rules.markdown import statement_cells
from rules.verdicts import Statement, Verdict, judge, losses_by_seed, more_seeds, overall, verdict_of
from significance import OVER_ITEMS, OVER_SEEDS, STUDENT, Difference, Interval
from table_text import MISSING

HOLDS, FAILS, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN
INFINITE = float("inf")  # the loss of a run that diverged


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant_world(tmp_path_factory.mktemp("world"))


def run(*arguments: str) -> int:
    return run_command(command.__doc__, arguments, command.ClaimsOptions, command.main)


def frame(cells: list[dict[str, Any]], seeds: int = 3, noise: float = 0.002) -> pd.DataFrame:
    """A frame as comparable_runs makes it: each cell with ``seeds`` seeds, whose losses differ by a little noise."""
    generator = np.random.default_rng(0)
    rows = []
    for cell in cells:
        for seed in range(seeds):
            loss = cell["loss"] + 0.05 * seed + generator.normal(0.0, noise)
            own = {"model": "tiny", "seed": seed, "val_loss": loss, "folder": Path(f"sweep/run{len(rows)}")}
            rows.append(own | {key: value for key, value in cell.items() if key != "loss"})
    return pd.DataFrame(rows)


def conditions(optimizer: str, gap: float, ef_gap: float | None = None, **values: Any) -> list[dict[str, Any]]:
    losses = {"sync": 4.0, "async": 4.0 + gap} | ({} if ef_gap is None else {"async_ef": 4.0 + ef_gap})
    return [{"optimizer": optimizer, "condition": name, "loss": loss, **values} for name, loss in losses.items()]


def depths(constant: float, pipedream: float, num_stages: int = 8) -> list[dict[str, Any]]:
    """What a constant delay costs more with ``num_stages`` than with one, and PipeDream's more than sync."""
    cells = [
        {"condition": "sync", "pipeline.num_stages": 1, "loss": 4.0},
        {"condition": "async", "pipeline.num_stages": 1, "loss": 4.1},
        {"condition": "async", "pipeline.num_stages": num_stages, "loss": 4.1 + constant},
        {"condition": "pipedream", "pipeline.num_stages": num_stages, "loss": 4.0 + pipedream},
    ]
    return [{"optimizer": "muon"} | cell for cell in cells]


def batches(small: tuple[float, float], large: tuple[float, float]) -> list[dict[str, Any]]:
    """Gap and synchronous loss of the smallest batch and of the largest; the one between them is not asked."""
    return [
        {"optimizer": "muon", "condition": condition, "trainer.batch_size": size, "loss": loss}
        for size, (gap, sync) in ((4, small), (16, (9.0, 9.0)), (64, large))
        for condition, loss in (("sync", sync), ("async", sync + gap))
    ]


def moments(first: float, second: float) -> list[dict[str, Any]]:
    """What each late moment costs alone."""
    cells = conditions("adamw", 0.75, **{"optimizer.delayed_moment": None})
    for moment, gap in (("first", first), ("second", second)):
        own = {"optimizer": "adamw_split", "condition": "async", "optimizer.delayed_moment": moment}
        cells.append(own | {"loss": 4.0 + gap})
    return cells


def verdicts(statements: list[Statement]) -> dict[str, Verdict]:
    return {statement.text: statement.verdict for statement in statements}


def of(judge_frame: Callable[[pd.DataFrame], list[Statement]], cells: list[dict[str, Any]], **options: Any) -> Verdict:
    return overall(statement.verdict for statement in judge_frame(frame(cells, **options)) if statement.counts)


def test_every_claim_that_was_planted_holds(world: Path) -> None:
    claims = command.judge_claims(load_experiments(world))
    found = {claim.name: (claim.scale, claim.verdict) for claim in claims}
    assert found == {
        "C1": ("tiny", HOLDS),
        "C2": ("tiny", HOLDS),
        "C3": ("tiny", HOLDS),
        "C4": ("tiny_moe", HOLDS),
        "C5": (None, OPEN),  # nothing was scored
        "C6": ("tiny", HOLDS),
        "C7": ("tiny", HOLDS),
        "C8": ("tiny", HOLDS),
    }


def test_planted_effects_come_back_with_intervals_runs_and_a_command(world: Path) -> None:
    claims = {claim.name: claim for claim in command.judge_claims(load_experiments(world))}
    gaps = {statement.text: statement for statement in claims["C1"].statements}
    for text, optimizer in (("AdamW: degrades badly", "adamw"), ("SOAP: robust", "soap"), ("Lion: close", "lion")):
        effect = gaps[text].effect
        assert effect.mean == pytest.approx(GAPS[optimizer], abs=0.005)
        assert effect.interval.low < GAPS[optimizer] < effect.interval.high
        assert effect.num_seeds == 3
        assert len(gaps[text].runs) == 6
    assert gaps["AdamW: degrades badly"].p_value < 0.001
    assert claims["C3"].statements[0].effect.mean == pytest.approx(SHARE, abs=0.01)
    assert claims["C2"].statements[0].effect.mean == pytest.approx(0.568 - 0.9, abs=0.005)
    first_and_second = claims["C8"].statements
    assert [statement.effect.mean for statement in first_and_second] == pytest.approx([0.6, 0.8, 0.1], abs=0.02)
    assert claims["C8"].command == "python -m asyncpp.sweep run moments seeds=[0,1,2,3,4,5]"
    assert claims["C5"].command.startswith("python -m asyncpp.sweep run table4_downstream && python -m eval.fetch ")


def test_a_statement_has_one_p_value_and_says_which_interval_it_shows(world: Path, tmp_path: Path) -> None:
    assert run(f"runs={world}", f"out={tmp_path}") == 0
    claims = {claim["name"]: claim for claim in json.loads((tmp_path / "claims.json").read_text())["claims"]}
    effects = [statement["effect"] for claim in claims.values() for statement in claim["statements"]]
    assert effects and not any("p_value" in effect for effect in effects if effect)
    share = claims["C3"]["statements"][0]
    assert share["effect"]["interval"]["method"] == OVER_SEEDS
    assert claims["C1"]["statements"][0]["effect"]["interval"]["method"] == STUDENT
    shares = (tmp_path / "claims.md").read_text().partition("## C3")[2].partition("## C4")[0]
    assert f"] ({OVER_SEEDS}) of the gap" in shares
    c5 = Statement("", OPEN, Estimate(0.0, None, 1, Interval(-0.1, 0.1, OVER_ITEMS)), "accuracy", "", None, [])
    assert statement_cells(c5)[2] == f"+0 [-0.1, 0.1] ({OVER_ITEMS}) accuracy"


def test_an_effect_that_is_not_defined_is_over_as_many_seeds_as_its_p_value() -> None:
    statements = c3_error_feedback.judge_error_feedback(frame(conditions("adan", -0.1, 0.5)))
    adan = next(statement for statement in statements if statement.text.startswith("Adan"))
    assert adan.effect is None and adan.p_value is not None
    *_, num_seeds, p_value = statement_cells(adan)
    assert (num_seeds, p_value) == ("3", f"{adan.p_value:.2g}")


def test_a_claim_without_runs_names_the_size_of_those_that_there_are(plant: PlantRun) -> None:
    large = {"summary": {"model": "135m"}, "config": {"model.name": "135m"}}
    runs_dir = plant(sweep="table1_optimizers", **large).parent
    claims = {claim.name: claim for claim in command.judge_claims(load_experiments(runs_dir))}
    assert claims["C8"].command == "python -m asyncpp.sweep run moments scale=135m"


def test_the_command_writes_markdown_and_json(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"runs={world}", f"out={tmp_path}", "json=true") == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "claims.json").read_text())
    assert [claim["name"] for claim in document["claims"]] == [f"C{number}" for number in range(1, 9)]
    assert {claim["verdict"] for claim in document["claims"]} == {"holds", "not enough evidence"}
    markdown = (tmp_path / "claims.md").read_text()
    for claim in document["claims"]:
        assert f"## {claim['name']}. {claim['text']}" in markdown
        for statement in claim["statements"]:
            assert statement["text"] in markdown
            assert all(f"- `{name}`" in markdown for name in statement["runs"])
    assert run(f"runs={world}", f"out={tmp_path}", "scale=tiny_moe") == 0
    printed = capsys.readouterr().out
    assert "| C4    | tiny_moe | **holds**" in printed
    assert f"| C1    | {MISSING}        | **not enough evidence** | no runs" in printed


def test_the_claims_name_runs_that_failed(plant: PlantRun, tmp_path: Path) -> None:
    failed = {"status": "failed", "error": "validation loss is nan"}
    plant(sweep="table1_optimizers", delay="one_step", summary=failed)
    root = plant(sweep="table1_optimizers").parent
    assert run(f"runs={root}", f"out={tmp_path / 'out'}") == 0
    markdown = " ".join((tmp_path / "out" / "claims.md").read_text().split())
    assert "In no mean, as it failed: table1_optimizers, AdamW async, tiny, seed 0: validation loss is nan" in markdown


def test_a_claim_holds_where_all_parts_do() -> None:
    assert overall([HOLDS, HOLDS]) is HOLDS
    assert overall([HOLDS, OPEN]) is OPEN
    assert overall([HOLDS, OPEN, FAILS]) is FAILS
    assert overall([]) is OPEN


@pytest.mark.parametrize(
    ("support", "verdict", "reason"),
    [
        ([0.1, 0.11, 0.09], HOLDS, None),
        ([-0.1, -0.11, -0.09], FAILS, None),
        ([0.1, -0.1, 0.05], OPEN, "the interval contains the threshold"),
        ([0.1, 0.11], OPEN, "2 of at least 3 seeds"),
        ([0.1, 0.11, float("nan")], OPEN, "2 of at least 3 seeds"),
        ([], OPEN, "0 of at least 3 seeds"),
        ([0.0, 0.0, 0.0], OPEN, "the interval contains the threshold"),
    ],
)
def test_judge(support: list[float], verdict: Verdict, reason: str | None) -> None:
    series = pd.Series(support, dtype=float)
    runs = frame(conditions("muon", 0.1), seeds=1).iloc[::-1]
    statement = judge("", series, series, unit="nats", threshold="> 0", runs=runs)
    assert (statement.verdict, statement.reason, statement.runs) == (verdict, reason, ["sweep/run0", "sweep/run1"])


@pytest.mark.parametrize(
    ("support", "verdict"),
    [
        ([INFINITE, INFINITE, INFINITE], HOLDS),
        ([-INFINITE, -INFINITE, 0.1], FAILS),
        ([INFINITE, INFINITE], OPEN),  # fewer than three seeds
        ([0.1, 0.11, 0.09, -INFINITE], OPEN),  # one that diverged forbids the opposite
        ([-0.1, -0.11, -0.09, INFINITE], OPEN),
        ([0.1, 0.11, 0.09, INFINITE], HOLDS),  # and takes nothing from what the others say
        ([-0.1, -0.11, -0.09, -INFINITE], FAILS),
        ([0.1, -0.1, 0.05, 0.0, INFINITE, INFINITE], OPEN),
        ([INFINITE, -INFINITE, float("nan")], OPEN),
    ],
)
def test_seeds_that_diverged_decide_where_they_are_most_and_forbid_the_opposite(
    support: list[float], verdict: Verdict
) -> None:
    assert verdict_of(pd.Series(support)) is verdict


def test_two_runs_of_one_place_are_refused_by_name() -> None:
    cell = {"optimizer": "muon", "condition": "sync", "trainer.batch_size": 4, "loss": 4.0}
    with pytest.raises(ConfigError, match=r"sweep/run0 and sweep/run3: expected one run for each seed and condition"):
        losses_by_seed(frame([cell, cell])[lambda runs: runs["seed"] == 0], ["condition", "trainer.batch_size"])


def test_more_seeds() -> None:
    assert more_seeds([0]) == [0, 1, 2]
    assert more_seeds([0, 1, 2]) == [0, 1, 2, 3, 4, 5]


def test_c1_takes_the_papers_words_and_a_threshold_between_them() -> None:
    assert c1_optimizer.gap_between_words() == pytest.approx(np.sqrt(0.027 * 0.278))
    cells = [
        cell for optimizer, gap in (GAPS | {"adan": 0.6, "lion": 0.087}).items() for cell in conditions(optimizer, gap)
    ]
    found = verdicts(c1_optimizer.judge_optimizers(frame(cells)))
    assert found["AdamW: degrades badly"] is HOLDS
    assert found["Adan: robust"] is FAILS
    assert found["Lion: close"] is OPEN
    assert found["AdamW loses more by a delay than Muon"] is HOLDS
    assert verdicts(c1_optimizer.judge_optimizers(frame(conditions("adamw", 0.02))))["AdamW: degrades badly"] is FAILS


def test_c1_shows_other_optimizers_without_counting_them() -> None:
    statements = c1_optimizer.judge_optimizers(frame(conditions("nadam", 0.9)))
    nadam = next(statement for statement in statements if statement.text.startswith("NAdam"))
    assert (nadam.verdict, nadam.counts) == (FAILS, False)
    assert next(statement for statement in statements if statement.text.startswith("MARS")).effect is None


def momenta(gaps: dict[float, float], **values: Any) -> list[dict[str, Any]]:
    """Muon's gaps by momentum."""
    own = {"optimizer.betas": (0.9, 0.95)} | values
    return [
        cell | {"optimizer.momentum": momentum}
        for momentum, gap in gaps.items()
        for cell in conditions("muon", gap, **own)
    ]


@pytest.mark.parametrize(
    ("gaps", "verdict", "reason"),
    [
        ({0.8: 0.9, 0.95: 0.6}, HOLDS, None),
        ({0.8: 0.6, 0.95: 0.9}, FAILS, None),
        ({0.8: 0.6, 0.95: 0.6}, FAILS, None),  # no change is no more robustness
        ({0.8: 0.6, 0.95: 0.589}, OPEN, "the interval contains the threshold"),
        ({0.9: 0.1, 0.95: 0.1, 0.98: 0.0999}, FAILS, None),
        ({0.9: 0.004, 0.95: 0.003, 0.98: 0.002}, OPEN, "no gap of more than 0.01 that could fall"),
        ({0.9: 0.004, 0.98: 0.04}, FAILS, None),
        ({0.8: 0.3, 0.9: 0.9, 0.95: 0.6, 0.98: 0.2}, FAILS, "it rises from 0.8 to 0.9"),  # a line through it falls
        ({0.8: 0.7, 0.9: 0.705, 0.95: 0.6, 0.98: 0.4}, HOLDS, None),  # it rises, but by less than noise
        ({0.8: 0.9, 0.98: INFINITE}, FAILS, None),
    ],
)
def test_c2(gaps: dict[float, float], verdict: Verdict, reason: str | None) -> None:
    (statement,) = c2_momentum.judge_momentum(frame(momenta(gaps), noise=0.0005))
    told = "3 of 6 async runs diverged" if INFINITE in gaps.values() else reason
    assert (statement.verdict, statement.reason) == (verdict, told)
    assert of(c2_momentum.judge_momentum, momenta(gaps), seeds=1) is OPEN


def test_c2_takes_the_seeds_that_have_all_momenta() -> None:
    whole = frame(momenta({0.8: 0.9, 0.9: 0.3, 0.95: 0.3, 0.98: 0.3}), seeds=4)
    partial = whole[(whole["seed"] < 3) | whole["optimizer.momentum"].isin([0.95, 0.98])]
    (statement,) = c2_momentum.judge_momentum(partial)
    (expected,) = c2_momentum.judge_momentum(whole[whole["seed"] < 3])
    assert statement.effect == expected.effect
    assert statement.effect.num_seeds == 3


def test_c2_refuses_two_runs_of_one_momentum_by_name() -> None:
    cells = momenta({0.9: 0.3}) + momenta({0.9: 0.3}, **{"optimizer.betas": (0.9, 0.99)})
    with pytest.raises(ConfigError, match=r"^runs=sweep/run\d+ and sweep/run\d+: .* seed and condition, momentum"):
        c2_momentum.judge_momentum(frame(cells))


@pytest.mark.parametrize(
    ("ef_gap", "verdict"), [(0.2, HOLDS), (0.02, HOLDS), (-0.1, HOLDS), (0.6, FAILS), (0.9, FAILS), (0.4, OPEN)]
)
def test_c3(ef_gap: float, verdict: Verdict) -> None:
    others = conditions("muon", 0.05, 0.01) + conditions("soap", 0.05, 0.01)
    assert of(c3_error_feedback.judge_error_feedback, conditions("adamw", 0.8, ef_gap) + others) is verdict


def test_c3_does_not_judge_an_optimizer_without_a_gap_and_waits_for_one_that_was_not_run() -> None:
    cells = conditions("adamw", 0.8, 0.1) + conditions("muon", 0.05, 0.01)
    no_gap = conditions("adan", -0.1, 0.5)
    assert of(c3_error_feedback.judge_error_feedback, cells + no_gap) is OPEN  # SOAP's share is known, and not ours
    assert of(c3_error_feedback.judge_error_feedback, cells + no_gap + conditions("soap", 0.05, 0.01)) is HOLDS
    adan = c3_error_feedback.judge_error_feedback(frame(cells + no_gap))[-1]
    assert (adan.verdict, adan.reason, adan.counts) == (OPEN, "nothing to recover: no gap", False)
    in_noise = c3_error_feedback.judge_error_feedback(frame(conditions("adan", 0.005, 0.001)))[-1]
    assert (in_noise.verdict, in_noise.reason, in_noise.counts) == (OPEN, "nothing to recover: in noise", True)


@pytest.mark.parametrize(("ef_gap", "verdict"), [(0.0, HOLDS), (-0.05, HOLDS), (0.02, FAILS), (0.0025, OPEN)])
def test_c4(ef_gap: float, verdict: Verdict) -> None:
    assert c4_mixture_of_experts.margin() == pytest.approx(0.0025)
    cells = conditions("muon", 0.06, ef_gap) + conditions("adamw", 0.6, 0.3)
    assert of(c4_mixture_of_experts.judge_mixture, cells, noise=0.0003) is verdict


def scored(sync: float, ef: float, low: float, high: float, num_seeds: int = 3) -> Any:
    change = Difference(low, high, OVER_ITEMS, mean=ef - sync, num_seeds=num_seeds)
    scores = {"sync": Estimate(sync, None, num_seeds), "async_ef": Estimate(ef, None, num_seeds)}
    seeds = {name: set(range(num_seeds)) for name in scores}
    return c5_downstream.downstream_table.Row("muon", "piqa", "acc", 1838, scores, change, seeds)


@pytest.mark.parametrize(
    ("row", "loss_difference", "verdict", "reason"),
    [
        (scored(0.70, 0.705, -0.005, 0.015), 0.001, HOLDS, None),
        (scored(0.70, 0.65, -0.07, -0.03), 0.001, FAILS, None),
        (scored(0.70, 0.71, -0.015, 0.03), 0.001, OPEN, "the interval contains the threshold"),
        (scored(0.51, 0.505, -0.01, 0.01), 0.001, OPEN, "neither is above chance (0.5)"),
        (scored(0.70, 0.65, -0.07, -0.03), 0.3, OPEN, "losses of one seed differ by 0.300 nats"),
        (scored(0.70, 0.705, -0.005, 0.015, num_seeds=2), 0.001, OPEN, "2 of at least 3 seeds"),
        (
            scored(0.522, 0.52, -0.01, 0.01),
            0.001,
            OPEN,
            "neither is above chance (0.5)",
        ),  # 0.499 to 0.545 by 1,838 items
        (scored(0.525, 0.52, -0.01, 0.01), 0.001, HOLDS, None),
    ],
)
def test_c5(row: Any, loss_difference: float, verdict: Verdict, reason: str | None) -> None:
    assert c5_downstream.decide(row, loss_difference) == (verdict, reason)


def test_c5_reads_scored_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c5_downstream.downstream_table, "make_rows", lambda _: [scored(0.70, 0.705, -0.005, 0.015)])
    (statement,) = c5_downstream.judge_downstream(frame(conditions("muon", 0.06, 0.001)))
    assert statement.verdict is HOLDS
    assert statement.effect.interval == Interval(-0.005, 0.015, OVER_ITEMS)
    assert len(statement.runs) == 6


@pytest.mark.parametrize(
    ("constant", "pipedream", "num_stages", "expected"),
    [
        (0.0, 0.1, 8, HOLDS),
        (0.1, 0.1, 8, FAILS),
        (0.0, 0.01, 8, OPEN),  # too shallow to say that it loses nothing
        (0.0, 0.01, 16, FAILS),
    ],
)
def test_c6(constant: float, pipedream: float, num_stages: int, expected: Verdict) -> None:
    assert of(c6_depth.judge_depth, depths(constant, pipedream, num_stages)) is expected


def test_c6_says_where_depth_cannot_matter() -> None:
    cells = [{"condition": "async", "pipeline.num_stages": stages, "loss": 4.1} for stages in (1, 8)]
    same = pd.concat([frame([{"optimizer": "muon"} | cell]) for cell in cells])
    (statement,) = c6_depth.judge_depth(same)
    assert (statement.verdict, statement.p_value, statement.effect.mean) == (Verdict.IDENTITY, None, 0.0)
    assert statement.reason == "the same to the last bit, as a constant delay computes the same at every depth"


def test_what_is_true_by_construction_is_counted_apart_and_decides_nothing(plant: PlantRun, tmp_path: Path) -> None:
    for seed in range(3):
        for stages in (1, 8):
            config, own = {"pipeline.num_stages": stages}, {"sweep": "figure6_pipedream", "seed": seed}
            plant(delay="one_step", val_loss=4.5 + 0.05 * seed, config=config, **own)
            late = {"staleness_updates": stages - 1}
            loss = 4.4 + 0.05 * seed + (stages - 1) * (0.1 + 0.01 * seed)
            root = plant(delay="pipedream", val_loss=loss, config=config, summary=late, **own).parent
    assert run(f"runs={root}", f"out={tmp_path / 'out'}") == 0
    summary = (tmp_path / "out" / "claims.md").read_text()
    assert "| C6    | tiny  | **holds**               | 1 hold, 1 by construction |" in summary
    assert overall([Verdict.IDENTITY]) is OPEN
    assert overall([Verdict.IDENTITY, FAILS]) is FAILS


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [((0.2, 4.6), (0.5, 4.3), HOLDS), ((0.5, 4.6), (0.2, 4.3), FAILS), ((0.2, 4.2), (0.5, 4.3), FAILS)],
)
def test_c7(small: tuple[float, float], large: tuple[float, float], expected: Verdict) -> None:
    assert of(c7_batch_size.judge_batch_size, batches(small, large)) is expected


@pytest.mark.parametrize(("first", "second", "expected"), [(0.8, 0.1, HOLDS), (0.8, 0.7, FAILS), (0.8, 0.4, OPEN)])
def test_c8(first: float, second: float, expected: Verdict) -> None:
    assert of(c8_moments.judge_moments, moments(first, second)) is expected


@pytest.mark.parametrize(
    ("judge_frame", "cells", "expected"),
    [
        (c1_optimizer.judge_optimizers, conditions("adan", INFINITE), FAILS),
        (c3_error_feedback.judge_error_feedback, conditions("adan", 0.6, INFINITE), FAILS),
        (c3_error_feedback.judge_error_feedback, conditions("adan", INFINITE, INFINITE), FAILS),
        (c3_error_feedback.judge_error_feedback, conditions("adan", INFINITE, 0.1), OPEN),
        (c4_mixture_of_experts.judge_mixture, conditions("muon", 0.06, INFINITE), FAILS),
        (c4_mixture_of_experts.judge_mixture, conditions("muon", INFINITE, -0.05), HOLDS),
        (c6_depth.judge_depth, depths(constant=INFINITE, pipedream=0.1), FAILS),
        (c6_depth.judge_depth, depths(constant=0.0, pipedream=INFINITE), HOLDS),
        (c7_batch_size.judge_batch_size, batches((INFINITE, 4.6), (0.2, 4.3)), FAILS),
        (c7_batch_size.judge_batch_size, batches((0.2, 4.6), (INFINITE, 4.3)), HOLDS),
        (c7_batch_size.judge_batch_size, batches((0.2, 4.6), (0.5, INFINITE)), FAILS),
        (c8_moments.judge_moments, moments(first=INFINITE, second=0.1), HOLDS),
        (c8_moments.judge_moments, moments(first=0.8, second=INFINITE), FAILS),
        (c8_moments.judge_moments, moments(first=INFINITE, second=INFINITE), OPEN),
    ],
)
def test_divergence_counts_in_every_claim_that_compares_losses(
    judge_frame: Callable[[pd.DataFrame], list[Statement]], cells: list[dict[str, Any]], expected: Verdict
) -> None:
    assert of(judge_frame, cells) is expected


def test_every_claim_has_a_rule_and_a_text() -> None:
    assert [rule.name for rule in command.RULES] == list(paper()["claims"])
    assert all(rule.text and rule.rule for rule in command.RULES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs=/nonexistent"], "error: runs=/nonexistent: expected a folder that holds run folders"),
        (["claim=C1"], "error: claim=C1: no such key"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert capsys.readouterr().err.startswith(message)
