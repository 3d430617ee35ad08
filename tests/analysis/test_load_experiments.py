"""Which sweeps become which experiment, by scale, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from loading import only_frame
from planted import PlantRun

from asyncpp.errors import ConfigError
from claims import judge_claims
from load_experiments import load_experiments
from loss_tables import optimizer_tables


def test_sweeps_below_one_root_are_told_apart(plant: PlantRun) -> None:
    plant(sweep="table1_optimizers")
    plant(sweep="figure4_momentum", folder="a", config={"optimizer.betas": [0.8, 0.95]})
    root = plant(sweep="figure4_momentum", folder="b", config={"optimizer.betas": [0.98, 0.95]}).parent
    loaded = load_experiments(root)
    assert {name: list(frames) for name, frames in loaded.frames.items() if frames} == {
        "optimizers": ["tiny"],
        "momentum": ["tiny"],
        "corrections": ["tiny"],
    }
    assert sorted(only_frame(loaded, "momentum")["optimizer.betas"]) == [(0.8, 0.95), (0.98, 0.95)]
    assert loaded.frames["moe"] == {}
    assert loaded.passed_over == []


def test_two_sweeps_of_one_experiment_count_a_shared_run_once(plant: PlantRun) -> None:
    first = plant(sweep="table1_optimizers", folder="table1/sync")
    plant(sweep="table2_error_feedback", folder="table2/sync")
    plant(sweep="table2_error_feedback", folder="table2/ef", delay="one_step", correction="ef")
    loaded = load_experiments(first.parents[1])
    assert sorted(only_frame(loaded, "optimizers")["condition"]) == ["async_ef", "sync"]
    (repeated,) = loaded.passed_over
    assert repeated.reason == "sync of adamw, seed 0 is counted once, from sync"


@pytest.mark.parametrize("sweep", ["table1_optimizers", "table3_moe", "figure6_pipedream"])
def test_conditions_that_nothing_is_made_of_are_listed_once_each(plant: PlantRun, sweep: str) -> None:
    """Of table3_moe, too, which two experiments take their runs from."""
    plant(sweep=sweep)
    plant(sweep=sweep, delay="one_step")
    plant(sweep=sweep, delay="constant")
    for seed in range(3):
        root = plant(sweep=sweep, delay="one_step", correction="lr_damping", seed=seed).parent
    assert sorted((entry.folder, entry.reason) for entry in load_experiments(root).passed_over) == [
        (root, "condition async_lr_damping: 3 runs, in no table, figure or claim"),
        (root, "condition staleness_2: 1 run, in no table, figure or claim"),
    ]


def test_a_varied_delay_counts_in_its_own_experiment_only(plant: PlantRun) -> None:
    plant(sweep="figure6_pipedream", delay="pipedream")
    root = plant(sweep="table1_optimizers", delay="pipedream", folder="other/a").parents[1]
    assert [(entry.folder, entry.reason) for entry in load_experiments(root).passed_over] == [
        (root / "other", "condition pipedream: 1 run, in no table, figure or claim")
    ]


def test_scales_are_frames_of_their_own(plant: PlantRun) -> None:
    plant(sweep="table1_optimizers")
    larger = {"model.name": "360m", "model.num_layers": 32, "trainer.num_steps": 27605}
    root = plant(sweep="table1_optimizers", summary={"model": "360m"}, config=larger).parent
    loaded = load_experiments(root)
    assert sorted(loaded.frames["optimizers"]) == ["360m", "tiny"]
    assert list(loaded.frames["optimizers"]["360m"]["model"]) == ["360m"]
    assert list(load_experiments(root, scale="tiny").frames["optimizers"]) == ["tiny"]
    with pytest.raises(ConfigError, match=r"^scale=10b: expected one of 360m, tiny"):
        load_experiments(root, scale="10b")


def test_one_sweep_of_ones_own_stands_for_tables_1_and_2(planted_demo: Path) -> None:
    loaded = load_experiments(planted_demo)
    assert len(only_frame(loaded, "optimizers")) == 18


def test_of_several_other_sweeps_the_demo_does(plant: PlantRun) -> None:
    plant(sweep="default", folder="default/a")
    plant(sweep="default", folder="default/b", seed=1)
    root = plant(sweep="demo", folder="demo/a").parents[1]
    loaded = load_experiments(root)
    assert len(only_frame(loaded, "optimizers")) == 1
    (left_out,) = loaded.passed_over
    assert left_out.folder == root / "default"
    assert left_out.reason == "2 runs of the sweep default, which no table, figure or claim is made of"


def test_the_demo_is_left_out_where_the_tables_own_runs_are(plant: PlantRun) -> None:
    plant(sweep="table1_optimizers", folder="table1_optimizers/a")
    root = plant(sweep="demo", folder="demo/a", seed=1).parents[1]
    assert list(only_frame(load_experiments(root), "optimizers")["seed"]) == [0]


def test_nothing_that_is_known_is_refused(plant: PlantRun) -> None:
    plant(sweep="one")
    root = plant(sweep="two", seed=1).parent
    with pytest.raises(ConfigError, match=r"expected runs of one of the sweeps table1_optimizers.*found one, two"):
        load_experiments(root)


def test_runs_that_differ_in_more_than_the_axes_of_their_experiment_are_refused(plant: PlantRun) -> None:
    plant(sweep="figure4_momentum", config={"optimizer.betas": [0.8, 0.95]})
    root = plant(sweep="figure4_momentum", config={"optimizer.betas": [0.9, 0.95], "trainer.num_steps": 800}).parent
    with pytest.raises(ConfigError, match=r"in trainer\.num_steps "):
        load_experiments(root)


def test_seeds_whose_losses_are_all_the_same_count_as_one(plant: PlantRun) -> None:
    """Of AdamW's four seeds the third and the fourth do what the first does; Muon's late runs alone are the same."""
    for seed, shift in enumerate((0.0, 0.01, 0.0, 0.0)):
        for delay, loss in (("sync", 4.4), ("one_step", 5.2)):
            own = {"sweep": "table1_optimizers", "delay": delay, "seed": seed}
            plant(optimizer="adamw", val_loss=loss + shift, **own)
            muon = 4.4 + 0.01 * seed if delay == "sync" else 7.6
            root = plant(optimizer="muon", val_loss=muon, **own).parent
    loaded = load_experiments(root)
    counts = only_frame(loaded, "optimizers").groupby(["optimizer", "condition"])["seed"].count()
    assert counts.to_dict() == {
        ("adamw", "sync"): 2,
        ("adamw", "async"): 2,
        ("muon", "sync"): 4,
        ("muon", "async"): 4,
    }
    reasons = [entry.reason for entry in loaded.passed_over]
    told = "the losses of adamw, seed {}, are those of seed 0 to the last digit: the two count as one"
    assert sorted(reasons) == [told.format(2)] * 2 + [told.format(3)] * 2
    (table1, _) = optimizer_tables(loaded)
    assert [row.ours.gap.num_seeds for row in table1.rows if row.ours and row.ours.gap] == [2, 4]
    (c1, *_) = judge_claims(loaded)
    adamw = next(statement for statement in c1.statements if statement.text.startswith("AdamW: degrades"))
    assert (adamw.num_seeds, adamw.reason) == (2, "2 of at least 3 seeds")


def test_error_feedback_of_another_strength_is_another_condition(plant: PlantRun) -> None:
    """C3 and Table 2 are of the paper's strength; the sweep over the strength takes any."""
    plant(sweep="table2_error_feedback", val_loss=4.4)
    plant(sweep="table2_error_feedback", delay="one_step", val_loss=5.2)
    weak = {"delay": "one_step", "correction": "ef", "config": {"correction.strength": 0.5}}
    failed = {"status": "failed", "val_loss": None, "error": "the validation loss is nan after 20 updates"}
    plant(sweep="table2_error_feedback", seed=1, summary=failed, **weak)
    plant(sweep="strength", folder="strength/a", val_loss=4.8, **weak)
    root = plant(sweep="table2_error_feedback", val_loss=4.8, **weak).parent
    loaded = load_experiments(root)
    assert sorted(only_frame(loaded, "optimizers")["condition"]) == ["async", "async_ef_0.5", "sync"]
    assert [run.condition for run in loaded.failed["optimizers"]] == ["async_ef_0.5"]
    assert list(only_frame(loaded, "strength")["condition"]) == ["async_ef"]
    reasons = [entry.reason for entry in loaded.passed_over]
    assert "condition async_ef_0.5: 1 run, in no table, figure or claim" in reasons
    c3 = next(claim for claim in judge_claims(loaded) if claim.name == "C3")
    assert {statement.num_seeds for statement in c3.statements} == {0}


def test_batches_are_compared_over_as_many_tokens(plant: PlantRun) -> None:
    for batch_size, num_steps in ((4, 1600), (64, 100)):
        config = {"trainer.batch_size": batch_size, "trainer.num_steps": num_steps}
        root = plant(sweep="appendix_a_batch_size", config=config).parent
    assert len(load_experiments(root).frames["batch_size"]["tiny"]) == 2
    config = {"trainer.batch_size": 16, "trainer.num_steps": 1600}
    plant(sweep="appendix_a_batch_size", config=config)
    with pytest.raises(ConfigError, match=r"expected as many tokens for every batch size.*409,600.*1,638,400"):
        load_experiments(root)


@pytest.mark.parametrize(
    ("sweep", "configs", "keys"),
    [
        (
            "figure4_momentum",
            [{"optimizer.betas": [0.9, 0.95]}, {"optimizer.betas": [0.9, 0.99]}],
            r"optimizer\.betas \(\[0\.9, 0\.95\] in 2 runs, \[0\.9, 0\.99\] in 2 runs\).*; 0\.9 of adamw is one point",
        ),
        (
            "appendix_a_batch_size",
            [{"trainer.num_micro_batches": 1}, {"trainer.num_micro_batches": 4}],
            r"trainer\.num_micro_batches \(1 in 2 runs, 4 in 2 runs\).*; 1024 of adamw is one point",
        ),
    ],
)
def test_two_configurations_at_one_point_are_refused_by_name(
    plant: PlantRun, sweep: str, configs: list[dict], keys: str
) -> None:
    for config in configs:
        for delay in ("sync", "one_step"):
            root = plant(sweep=sweep, delay=delay, config=config).parent
    with pytest.raises(ConfigError, match=keys):
        load_experiments(root)


def test_a_delayed_run_and_its_baseline_are_one_configuration_whatever_the_seed(plant: PlantRun) -> None:
    plant(sweep="figure4_momentum", config={"optimizer.betas": [0.9, 0.95]})
    plant(sweep="figure4_momentum", delay="one_step", config={"optimizer.betas": [0.95, 0.95]})
    root = plant(sweep="figure4_momentum", delay="one_step", seed=1, config={"optimizer.betas": [0.9, 0.99]}).parent
    with pytest.raises(ConfigError, match=r"optimizer\.betas \(.* 0\.9 of adamw is one point"):
        load_experiments(root)


def test_an_experiment_of_which_nothing_counts_has_no_frame(plant: PlantRun) -> None:
    plant(sweep="table1_optimizers", folder="kept")
    plant(sweep="probes", folder="a", val_loss=4.0)
    root = plant(sweep="probes", folder="b", correction="ef", val_loss=5.0).parent
    loaded = load_experiments(root)
    assert loaded.frames["probes"] == {}
    assert {entry.folder.name for entry in loaded.passed_over} == {"a", "b"}
