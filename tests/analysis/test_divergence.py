"""Worlds in which runs diverged: they are in no mean, but a verdict takes them for what they are."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planted import DELAY_AND_CORRECTION, PlantRun

from asyncpp.trainer import loop
from asyncpp.trainer.ending import TrainingFailed
from asyncpp.trainer.sinks import NoSinks
from claims import judge_claims
from load_experiments import load_experiments
from rules.markdown import statement_cells
from rules.verdicts import Claim, Statement, Verdict
from runs import FailedRun

HOLDS, FAILS, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN
SWEEP = "table2_error_feedback"
LOSSES = {"sync": 4.4, "async": 4.43, "async_ef": 4.41}
WORDS = "no finite gradient in 10 steps in a row, the last at step 37 (trainer.max_skipped_steps=10)"
DIVERGED = {"status": "failed", "val_loss": None, "error": WORDS}
KILLED = DIVERGED | {"error": "OSError: [Errno 28] No space left on device"}


def plant_optimizer(
    plant: PlantRun,
    optimizer: str,
    lost: dict[str, tuple[int, ...]] | None = None,
    ending: dict[str, Any] = DIVERGED,
    seeds: int = 5,
    losses: dict[str, float] = LOSSES,
) -> Path:
    """Runs of ``losses``. ``lost``: by condition the seeds whose runs end as ``ending`` says."""
    for condition, loss in losses.items():
        delay, correction = DELAY_AND_CORRECTION[condition]
        for seed in range(seeds):
            summary = {"val_loss": loss + 0.05 * seed + (0.001 * (seed % 2) if condition == "async" else 0.0)}
            summary = ending if lost and seed in lost.get(condition, ()) else summary
            kind = {"optimizer": optimizer, "delay": delay, "correction": correction, "sweep": SWEEP}
            folder = plant(seed=seed, summary=summary, **kind)
    return folder.parent


def judged(root: Path, name: str) -> Claim:
    return next(claim for claim in judge_claims(load_experiments(root)) if claim.name == name)


def statement(root: Path, name: str, text: str) -> Statement:
    return next(own for own in judged(root, name).statements if own.text.startswith(text))


def test_an_optimizer_is_not_robust_by_the_seeds_that_survive(plant: PlantRun) -> None:
    root = plant_optimizer(plant, "muon", {"async": (3, 4), "async_ef": (2, 3, 4)})
    muon = statement(root, "C1", "Muon: robust")
    assert (muon.verdict, muon.reason, muon.num_seeds, muon.p_value) == (OPEN, "2 of 5 async runs diverged", 5, None)
    assert muon.effect is not None
    assert (muon.effect.mean, muon.effect.num_seeds) == (pytest.approx(0.03, abs=0.001), 3)
    assert statement_cells(muon)[2].endswith(" nats (n=3)")
    assert len(muon.runs) == 10
    fed_back = statement(root, "C3", "Muon")
    reason = "2 of 5 async runs diverged; 3 of 5 async + EF runs diverged"
    assert (fed_back.verdict, fed_back.reason) == (FAILS, reason)
    json.dumps(judged(root, "C1").as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("delay", "config", "summary"),
    [
        ("one_step", {}, {}),
        ("constant", {"delay.updates": 1}, {}),
        ("pipedream", {"delay.name": "from_schedule", "delay.schedule": "two_bw"}, {"staleness_updates": 1}),
        ("pipedream", {"delay.name": "auto", "delay.schedule": "two_bw"}, {"delay": "one_step"}),
    ],
)
def test_a_verdict_is_the_same_whatever_the_delay_is_called(
    plant: PlantRun, delay: str, config: dict[str, Any], summary: dict[str, Any]
) -> None:
    for seed in range(5):
        plant(optimizer="muon", seed=seed, sweep=SWEEP, summary={"val_loss": 4.4 + 0.05 * seed})
        finished = {"val_loss": 4.43 + 0.05 * seed, "staleness_updates": 1}
        ending = DIVERGED if seed in (3, 4) else finished
        kind = {"optimizer": "muon", "seed": seed, "sweep": SWEEP}
        root = plant(delay=delay, config=config, summary=summary | ending, **kind).parent
    muon = statement(root, "C1", "Muon: robust")
    assert (muon.verdict, muon.reason, muon.num_seeds) == (OPEN, "2 of 5 async runs diverged", 5)


def test_a_pipedream_of_one_stage_that_diverged_is_a_lost_reference(plant: PlantRun) -> None:
    """It has no delay, and stands for sync as one that finished does."""
    for seed in range(5):
        kind = {"optimizer": "muon", "seed": seed, "sweep": SWEEP}
        plant(delay="one_step", summary={"val_loss": 4.43 + 0.05 * seed}, **kind)
        finished = {"val_loss": 4.4 + 0.05 * seed, "staleness_updates": 0}
        ending = DIVERGED if seed in (3, 4) else finished
        config = {"delay.schedule": "pipedream"}
        root = plant(delay="pipedream", config=config, summary={"delay_varies": False} | ending, **kind).parent
    muon = statement(root, "C1", "Muon: robust")
    assert (muon.verdict, muon.reason, muon.num_seeds) == (HOLDS, "2 of 5 sync runs diverged", 3)


def test_an_optimizer_whose_delayed_runs_all_diverge_degrades_badly(plant: PlantRun) -> None:
    root = plant_optimizer(plant, "adamw", {"async": (0, 1, 2)}, seeds=3)
    adamw = statement(root, "C1", "AdamW: degrades badly")
    assert (adamw.verdict, adamw.reason, adamw.effect) == (HOLDS, "3 of 3 async runs diverged", None)
    recovers = statement(root, "C3", "AdamW")  # an infinite gap has no half
    assert (recovers.verdict, recovers.reason) == (OPEN, "0 of at least 3 seeds; 3 of 3 async runs diverged")


def test_seeds_without_a_gap_do_not_take_an_optimizer_that_diverges_out_of_the_claim(plant: PlantRun) -> None:
    losses = {"sync": 4.4, "async": 4.395, "async_ef": 4.39}
    root = plant_optimizer(plant, "muon", {"async": (3, 4)}, losses=losses)
    muon = statement(root, "C3", "Muon")
    reason = "nothing to recover: no gap; 2 of 5 async runs diverged"
    assert (muon.verdict, muon.reason, muon.counts) == (OPEN, reason, True)


@pytest.mark.parametrize(
    ("lost", "ending", "reason"),
    [
        ({"async": (3, 4)}, KILLED, None),
        ({"sync": (3, 4)}, DIVERGED, "2 of 5 sync runs diverged"),  # nothing to compare with
        ({"sync": (3,), "async": (3,)}, DIVERGED, "1 of 5 async runs diverged; 1 of 5 sync runs diverged"),
    ],
)
def test_a_seed_that_failed_otherwise_or_has_no_reference_says_nothing(
    plant: PlantRun, lost: dict[str, tuple[int, ...]], ending: dict[str, Any], reason: str | None
) -> None:
    muon = statement(plant_optimizer(plant, "muon", lost, ending), "C1", "Muon: robust")
    assert (muon.verdict, muon.reason) == (HOLDS, reason)
    assert muon.num_seeds == 5 - len(next(iter(lost.values())))


def test_a_run_that_was_made_again_or_had_other_settings_is_no_evidence(plant: PlantRun) -> None:
    root = plant_optimizer(plant, "muon", seeds=3)
    late = {"optimizer": "muon", "delay": "one_step", "sweep": SWEEP, "summary": DIVERGED}
    plant(seed=0, folder="first-try", **late)
    plant(seed=3, folder="other", config={"optimizer.lr": 1.0}, **late)
    plant(seed=4, folder="half-written", **late)
    (root / "half-written" / "config.yaml").write_text("model: [")
    muon = statement(root, "C1", "Muon: robust")
    assert (muon.verdict, muon.reason, muon.num_seeds) == (HOLDS, None, 3)


def test_a_run_of_an_axis_of_its_own_experiment_stands_where_it_belongs(plant: PlantRun) -> None:
    """Momentum 0.98 diverges under delay, 0.8 does not: higher momentum is no help."""
    for momentum in (0.8, 0.98):
        for seed in range(3):
            for delay in ("sync", "one_step"):
                ending = DIVERGED if (momentum, delay) == (0.98, "one_step") else {"val_loss": 4.4 + 0.01 * seed}
                config = {"optimizer.betas": [momentum, 0.95]}
                root = plant(delay=delay, seed=seed, config=config, summary=ending, sweep="figure4_momentum").parent
    (falls,) = judged(root, "C2").statements
    assert (falls.verdict, falls.reason) == (FAILS, "3 of 6 async runs diverged")


def test_the_trainers_own_words_say_which_runs_diverged() -> None:
    skipped: Any = SimpleNamespace(update=SimpleNamespace(skipped=True))
    trainer: Any = SimpleNamespace(max_skipped_steps=1)
    with pytest.raises(TrainingFailed) as no_gradient:
        loop._count_skipped(0, 37, skipped, trainer)
    pipeline: Any = SimpleNamespace(validation_losses=lambda: {"val/loss": float("nan")})
    with pytest.raises(TrainingFailed) as no_loss:
        loop._validate(pipeline, NoSinks(), 20)
    unsaved = "the state after 400 updates could not be saved; run again to repeat the rest"
    others = [KILLED["error"], "rank 1 died: it was killed", unsaved, "val_loss is None"]
    reasons = [str(no_gradient.value), str(no_loss.value), "val_loss is nan", *others]
    failed = [FailedRun(SWEEP, "tiny", "muon", "async", 0, Path("run"), reason) for reason in reasons]
    assert [run.diverged for run in failed] == [True, True, True, False, False, False, False]
