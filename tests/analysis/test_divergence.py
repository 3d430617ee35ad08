"""Worlds in which runs diverged: they are in no mean, but a verdict takes them for what they are."""

from __future__ import annotations

import json
import math
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
WORDS = (
    "no finite gradient in 10 steps in a row, the last at step 37 (trainer.max_skipped_steps=10); "
    "try a smaller optimizer.lr"
)
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


def plant_axis(
    plant: PlantRun, sweep: str, configs: list[dict[str, Any]], gaps: list[float], seeds: range, lost: bool = False
) -> Path:
    """Sync and async runs of AdamW at every configuration, whose delay costs ``gaps``. lost: the last one's delayed
    runs are not there."""
    for seed in seeds:
        for config, gap in zip(configs, gaps, strict=True):
            sync = 4.4 + 0.05 * seed
            root = plant(seed=seed, config=config, summary={"val_loss": sync}, sweep=sweep).parent
            if not (lost and config is configs[-1]):
                summary = {"val_loss": sync + gap + 0.001 * (seed % 2)}
                plant(delay="one_step", seed=seed, config=config, summary=summary, sweep=sweep)
    return root


def test_a_run_of_an_axis_of_its_own_experiment_stands_where_it_belongs(plant: PlantRun) -> None:
    """Momentum 0.98 diverges under delay, 0.8 does not: higher momentum is no help."""
    betas = [{"optimizer.betas": [momentum, 0.95]} for momentum in (0.8, 0.98)]
    root = plant_axis(plant, "figure4_momentum", betas, [0.0, 0.0], range(3), lost=True)
    for seed in range(3):
        plant(delay="one_step", seed=seed, config=betas[1], summary=DIVERGED, sweep="figure4_momentum")
    (falls,) = judged(root, "C2").statements
    assert (falls.verdict, falls.reason) == (FAILS, "3 of 6 async runs diverged")


def test_a_run_of_another_configuration_at_one_point_is_no_evidence(plant: PlantRun) -> None:
    betas = [{"optimizer.betas": [momentum, 0.95]} for momentum in (0.8, 0.98)]
    root = plant_axis(plant, "figure4_momentum", betas, [0.8, 0.5], range(3))
    plant_axis(plant, "figure4_momentum", betas, [0.8, 0.5], range(3, 7), lost=True)
    late = {"delay": "one_step", "summary": DIVERGED, "sweep": "figure4_momentum"}
    for seed in range(7):  # in the seeds of finished runs, too
        plant(seed=seed, folder=f"other{seed}", config={"optimizer.betas": [0.98, 0.5]}, **late)
    (falls,) = judged(root, "C2").statements
    assert (falls.verdict, falls.reason, falls.num_seeds) == (HOLDS, None, 3)
    for seed in range(3, 7):
        plant(seed=seed, folder=f"alike{seed}", config=betas[1], **late)
    (falls,) = judged(root, "C2").statements
    assert (falls.verdict, falls.reason, falls.num_seeds) == (FAILS, "4 of 14 async runs diverged", 7)


def test_a_run_over_more_tokens_is_no_evidence(plant: PlantRun) -> None:
    sweep = "appendix_a_batch_size"
    batches = [{"trainer.batch_size": size, "trainer.num_steps": 1600 // size} for size in (4, 16)]
    root = plant_axis(plant, sweep, batches, [0.3, 0.1], range(3))
    plant_axis(plant, sweep, batches[::-1], [0.1, 0.3], range(3, 7), lost=True)
    late = {"delay": "one_step", "summary": DIVERGED, "sweep": sweep}
    for seed in range(7):
        longer = {"trainer.batch_size": 4, "trainer.num_steps": 4000}
        plant(seed=seed, folder=f"longer{seed}", config=longer, **late)
        larger = {"trainer.batch_size": 64, "trainer.num_steps": 250}  # a point of its own
        plant(seed=seed, folder=f"larger{seed}", config=larger, **late)
    shrinks = judged(root, "C7").statements[0]
    assert (shrinks.verdict, shrinks.reason, shrinks.num_seeds) == (FAILS, None, 3)
    for seed in range(3, 7):
        plant(seed=seed, folder=f"alike{seed}", config=batches[0], **late)
    shrinks = judged(root, "C7").statements[0]
    assert (shrinks.reason, shrinks.num_seeds) == ("4 of 14 async runs diverged", 7)


@pytest.mark.parametrize(("forms", "told"), [("xxx", "3 of 3 async + EF runs diverged"), ("xyz", None), ("xxy", None)])
def test_runs_that_all_diverged_agree_among_themselves(plant: PlantRun, forms: str, told: str | None) -> None:
    root = plant_optimizer(plant, "muon", seeds=3, losses={"sync": 4.4, "async": 4.43})
    late = {"optimizer": "muon", "delay": "one_step", "correction": "ef", "summary": DIVERGED, "sweep": SWEEP}
    for seed, form in enumerate(forms):
        plant(seed=seed, config={"correction.decay_form": form}, **late)
    muon = statement(root, "C3", "Muon")
    assert (muon.verdict, muon.reason) == (FAILS if told else OPEN, told or "0 of at least 3 seeds")


def test_a_run_of_other_data_is_no_evidence(plant: PlantRun) -> None:
    """Also where some of the finished runs do not say what they read."""
    kind = {"optimizer": "muon", "sweep": SWEEP}
    for seed in range(3):
        digest = {"data_digest": "a" * 64} if seed else {}
        for delay, loss in (("sync", 4.4), ("one_step", 4.43)):
            plant(delay=delay, seed=seed, summary={"val_loss": loss + 0.05 * seed} | digest, **kind)
    for seed, data in ((3, "b"), (4, "a")):
        root = plant(seed=seed, summary={"val_loss": 4.4 + 0.05 * seed}, **kind).parent
        plant(delay="one_step", seed=seed, summary=DIVERGED | {"data_digest": data * 64}, **kind)
    muon = statement(root, "C1", "Muon: robust")
    assert (muon.verdict, muon.reason, muon.num_seeds) == (OPEN, "1 of 4 async runs diverged", 4)


def test_the_trainers_own_words_say_which_runs_diverged() -> None:
    skipped: Any = SimpleNamespace(update=SimpleNamespace(skipped=True))
    trainer: Any = SimpleNamespace(max_skipped_steps=1)
    with pytest.raises(TrainingFailed) as no_gradient:
        loop._count_skipped(0, 37, skipped, trainer)
    validations = [
        {"val/loss": math.nan},
        {"val/loss": -math.inf},
        {"val/loss": 4.4, "val/loss_z": math.inf},
        {"val/loss": math.nan, "val/loss_z": 4.4},
    ]
    reasons = [str(no_gradient.value), *(str(_failed_validation(losses)) for losses in validations), "val_loss is nan"]
    assert [_has_diverged(reason) for reason in reasons] == [True] * len(reasons)


def _failed_validation(losses: dict[str, float]) -> TrainingFailed:
    pipeline: Any = SimpleNamespace(validation_losses=lambda: losses)
    with pytest.raises(TrainingFailed) as no_loss:
        loop._validate(pipeline, NoSinks(), 20)
    return no_loss.value


def _has_diverged(reason: str) -> bool:
    return FailedRun(SWEEP, "tiny", "muon", "async", 0, Path("run"), reason).diverged


@pytest.mark.parametrize(
    "reason",
    [
        KILLED["error"],
        "rank 1 died: it was killed",
        "the state after 400 updates could not be saved; run again to repeat the rest",
        "val_loss is None",
        "RuntimeError: CUDA error: the loss is recomputed; disk /data/nan is full",
        "ValueError: logger: val loss is reported to /inf/nan",
        "OSError: [Errno 28] No space left on device: loss is nan",
        f"RuntimeError: {WORDS}",
        "the validation loss is {'val/loss': 4.4} after 20 updates",
    ],
)
def test_other_words_are_no_divergence(reason: str) -> None:
    assert not _has_diverged(reason)
