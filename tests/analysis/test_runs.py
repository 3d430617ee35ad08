"""Loading run folders: what counts, what is passed over with its reason, what is refused."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from loading import load_runs
from planted import PlantRun, plant_run

from all_tables import make_all_tables
from asyncpp.errors import ConfigError
from asyncpp.pipeline.config import PipelineConfig
from asyncpp.schedule.builders import BUILDERS
from claims import judge_claims
from comparable_runs import AXES
from load_experiments import load_experiments
from runs import condition, read_runs


def reasons(runs_dir: Path) -> dict[str, str]:
    return {entry.folder.name: entry.reason for entry in load_runs(runs_dir).passed_over}


def test_planted_runs_become_one_row_each(planted_demo: Path) -> None:
    loaded = load_runs(planted_demo)
    assert loaded.passed_over == []
    assert len(loaded.frame) == 18
    counts = loaded.frame.groupby(["optimizer", "condition"]).size()
    assert set(counts) == {3}
    assert set(loaded.frame["condition"]) == {"sync", "async", "async_ef"}
    assert all((folder / "summary.json").is_file() for folder in loaded.frame["folder"])


@pytest.mark.parametrize(
    ("staleness_updates", "correction", "expected"),
    [
        (0, "none", "sync"),
        (0, "ef", "sync"),
        (0, "nesterov", "sync_nesterov"),
        (1, "none", "async"),
        (1.0, "ef", "async_ef"),
        (1, "weight_prediction", "async_weight_prediction"),
        (2, "none", "staleness_2"),
        (1.5, "ef", "staleness_1.5_ef"),
    ],
)
def test_condition(staleness_updates: float, correction: str, expected: str) -> None:
    assert condition(staleness_updates, correction) == expected


@pytest.mark.parametrize(("staleness_updates", "expected"), [(0, "sync"), (1, "pipedream_ef"), (7, "pipedream_ef")])
def test_a_delay_that_varies_goes_by_its_name(staleness_updates: float, expected: str) -> None:
    assert condition(staleness_updates, "ef", "pipedream") == expected


def test_a_summary_says_whether_its_delay_varies(plant: PlantRun) -> None:
    """Staleness that is 1 on average is not a delay of one update."""
    jitter = {"delay": "pipedream", "config": {"delay.name": "jitter"}}
    runs_dir = plant(**jitter, summary={"delay_varies": True, "staleness_updates": 1.0}).parent
    plant(**jitter, seed=1, summary={"delay_varies": False, "staleness_updates": 1.0})
    assert list(load_runs(runs_dir).frame.set_index("seed")["condition"].sort_index()) == ["jitter", "async"]


def test_a_summary_from_before_it_said_so_goes_by_the_delays_name(plant: PlantRun) -> None:
    path = plant(delay="pipedream")
    summary = json.loads((path / "summary.json").read_text())
    del summary["delay_varies"]
    (path / "summary.json").write_text(json.dumps(summary))
    assert list(load_runs(path.parent).frame["condition"]) == ["pipedream"]


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        ({"status": "failed", "error": "ValueError: too hot"}, "failed: ValueError: too hot"),
        ({"status": "interrupted"}, "interrupted"),
        ({"val_loss": None}, "val_loss is None, not a finite number"),
        ({"val_loss": float("nan")}, "val_loss is nan, not a finite number"),
        ({"val_loss": float("inf")}, "val_loss is inf, not a finite number"),
        ({"val_loss": "4.4"}, "val_loss is 4.4, not a finite number"),
        ({"val_loss": True}, "val_loss is True, not a finite number"),
        ({"model": 3}, "foreign: model is 3, not a text"),
        ({"tokens_seen": 10**400}, f"tokens_seen is {10**400}, not a finite number"),
        ({"val_loss": -3.0}, "val_loss is -3, not a loss in nats per token"),
        ({"val_loss": 1e308}, "val_loss is 1e+308, not a loss in nats per token"),
        ({"val_loss_z": "4.4"}, "val_loss_z is 4.4, not a finite number"),
        ({"duration_s": "abc"}, "duration_s is abc, not a finite number"),
        ({"commit": 5}, "foreign: commit is 5, not a text"),
        ({"seed": 1.5}, "seed is 1.5, not a whole number"),
        ({"staleness_updates": 1}, "contradiction: delay is sync, but the measured staleness 1"),
        ({"seed": 7}, "contradiction: seed is 7 in summary.json, but seed 0 in config.yaml"),
        (
            {"optimizer": "sgd"},
            "contradiction: optimizer is sgd in summary.json, but optimizer.name adamw in config.yaml",
        ),
        ({"model": "1b"}, "contradiction: model is 1b in summary.json, but model.name tiny in config.yaml"),
        ({"num_steps": 20}, "contradiction: num_steps is 20 in summary.json, but trainer.num_steps 400 in config.yaml"),
        (
            {"tokens_seen": 0},
            "contradiction: tokens_seen is 0 in summary.json, "
            "but trainer.num_steps x trainer.batch_size x data.sequence_length 409600 in config.yaml",
        ),
    ],
)
def test_unusable_summaries_are_passed_over(plant: PlantRun, summary: dict, reason: str) -> None:
    kept = plant(optimizer="muon")
    bad = plant(summary=summary, folder="bad")
    assert reasons(bad.parent) == {"bad": reason}
    assert list(load_runs(bad.parent).frame["folder"]) == [kept]


def test_a_delay_that_was_not_the_configurations_is_passed_over(plant: PlantRun) -> None:
    plant(optimizer="muon")
    late = plant(delay="one_step", config={"delay.updates": 3}, summary={"staleness_updates": 1}, folder="late")
    told = "contradiction: delay.updates is 3 in config.yaml, but the measured staleness 1"
    assert reasons(late.parent) == {"late": told}


def test_a_run_too_short_for_its_delay_may_have_measured_less(plant: PlantRun) -> None:
    runs_dir = plant(delay="constant", config={"trainer.num_steps": 2}, summary={"staleness_updates": 1}).parent
    assert reasons(runs_dir) == {}


@pytest.mark.parametrize("delay", ["one_step", "constant"])
def test_a_run_that_starts_in_sync_may_have_measured_less(plant: PlantRun, delay: str) -> None:
    kept = plant(delay=delay, correction="sync_start", summary={"staleness_updates": 0.5}, folder="kept")
    more = plant(delay=delay, correction="sync_start", summary={"staleness_updates": 3}, folder="more", seed=1)
    assert list(load_runs(kept.parent).frame["folder"]) == [kept]
    assert reasons(more.parent)["more"].endswith("but the measured staleness 3")


def test_the_delay_of_a_schedule_goes_by_what_it_came_to(plant: PlantRun) -> None:
    runs_dir = plant(delay="one_step", config={"delay.name": "auto"}, summary={"delay": "one_step"}).parent
    assert list(load_runs(runs_dir).frame["condition"]) == ["async"]


@pytest.mark.parametrize(
    ("delay", "config", "summary", "expected"),
    [
        ("sync", {}, {}, "sync"),
        ("one_step", {}, {}, "async"),
        ("constant", {"delay.updates": 0}, {}, "sync"),
        ("constant", {"delay.updates": 1}, {}, "async"),
        ("constant", {"delay.updates": 2}, {}, "staleness_2"),
        ("pipedream", {"delay.schedule": "pipedream"}, {"delay_varies": False}, "sync"),
        ("pipedream", {"delay.schedule": "pipedream", "pipeline.num_stages": 4}, {}, "pipedream"),
        ("pipedream", {"delay.name": "from_schedule", "delay.schedule": "two_bw"}, {}, "async"),
        ("pipedream", {"delay.name": "from_schedule", "delay.schedule": "one_f_one_b"}, {}, "sync"),
        ("pipedream", {"delay.name": "auto", "delay.schedule": "two_bw"}, {"delay": "one_step"}, "async"),
        ("pipedream", {"delay.name": "sampled"}, {"delay_varies": True}, "sampled"),
        ("pipedream", {"delay.name": "from_schedule"}, {}, "staleness_nan"),
        ("pipedream", {"delay.name": "from_schedule", "delay.schedule": "none"}, {}, "staleness_nan"),
        (
            "pipedream",
            {"delay.name": "from_schedule", "delay.schedule": "two_bw", "pipeline.num_stages": 0},
            {},
            "staleness_nan",
        ),
    ],
)
def test_a_failed_run_counts_as_what_it_was_to_be(
    plant: PlantRun, delay: str, config: dict, summary: dict, expected: str
) -> None:
    plant(optimizer="muon")
    failed = {"status": "failed", "val_loss": None, "staleness_updates": None}
    runs_dir = plant(delay=delay, config=config, summary=failed | summary).parent
    assert [run.condition for run in read_runs(runs_dir).failed] == [expected]


@pytest.mark.parametrize("schedule", BUILDERS)
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_a_failed_run_was_to_be_as_late_as_training_makes_it(plant: PlantRun, schedule: str, num_stages: int) -> None:
    plant(optimizer="muon")
    config = {"delay.name": "from_schedule", "delay.schedule": schedule, "pipeline.num_stages": num_stages}
    summary = {"status": "failed", "val_loss": None, "delay_varies": False}
    (failed,) = read_runs(plant(delay="pipedream", config=config, summary=summary).parent).failed
    delays = PipelineConfig(num_stages=num_stages, num_chunks=None).steady_delays(schedule).delays
    assert failed.condition == condition(max(delays), "none")


@pytest.mark.parametrize(
    "summary",
    [
        {"seed": float("inf")},
        {"seed": float("nan")},
        {"seed": 10**400},
        {"seed": "0"},
        {"seed": 0.5},
        {"seed": None},
        {"seed": True},
        {"optimizer": ["a"]},
        {"model": 3},
        {"delay": {"name": "sync"}},
        {"correction": None},
        {"sweep_name": ["a"]},
        {"data_digest": 5},
        {"optimizer": "muon"},  # of a configuration with adamw
        {"seed": 7},
    ],
)
def test_a_failed_run_that_does_not_say_what_it_was_is_listed_alone(plant: PlantRun, summary: dict) -> None:
    kept = plant(sweep="table1_optimizers", folder="kept")
    failed = {"status": "failed", "val_loss": None, "error": "too hot"}
    plant(sweep="table1_optimizers", delay="one_step", folder="bad", summary=failed | summary)
    read = read_runs(kept.parent)
    assert read.failed == []
    assert [(entry.folder.name, entry.reason) for entry in read.passed_over] == [("bad", "failed: too hot")]
    assert judge_claims(load_experiments(kept.parent))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"step": 400, "val/loss": 6.1}, "val_loss is 4.0 in summary.json, but val/loss 6.1 in metrics.jsonl"),
        ({"step": 400, "val/loss": None}, "val_loss is 4.0 in summary.json, but val/loss None in metrics.jsonl"),
        (
            {"step": 400, "val/loss": 4.0, "val/loss_z": 3.0},
            "val_loss_z is 3.5 in summary.json, but val/loss_z 3.0 in metrics.jsonl",
        ),
        ({"step": 400, "val/loss": 4.0, "val/loss_z": 3.5}, None),
        ({"step": 300, "val/loss": 6.1}, None),  # the rest was cut: how it ended is not known
        (["val/loss"], None),
    ],
)
def test_the_last_validation_is_the_summarys(plant: PlantRun, row: dict, told: str | None) -> None:
    plant(optimizer="muon")
    run = plant(folder="run", metrics=[{"step": 200, "val/loss": 7.0}, row], summary={"val_loss_z": 3.5})
    assert reasons(run.parent) == ({"run": f"contradiction: {told}"} if told else {})


def test_runs_of_other_tokens_are_refused(plant: PlantRun) -> None:
    plant(summary={"data_digest": "a" * 64})
    runs_dir = plant(seed=1).parent  # from before a summary said it
    assert len(load_runs(runs_dir).frame) == 2
    plant(seed=2, folder="other", summary={"data_digest": "b" * 64})
    with pytest.raises(ConfigError, match=r"data_digest \(b{12} in 1 run, a{12} in 1 run\), as other has it"):
        load_runs(runs_dir)


def test_half_written_and_foreign_folders_are_passed_over(plant: PlantRun) -> None:
    runs_dir = plant(optimizer="muon").parent
    (plant(folder="running") / "summary.json").unlink()
    (plant(folder="cut") / "summary.json").write_text('{"status": "finis')
    (plant(folder="bare") / "config.yaml").unlink()
    (plant(folder="torn") / "config.yaml").write_text("model: {name: tiny")
    (plant(folder="list") / "config.yaml").write_text("- 1\n")
    (plant(folder="other") / "summary.json").write_text('{"accuracy": 1.0}')
    (plant(folder="older") / "summary.json").write_text('{"status": "finished", "val_loss": 4.0}')
    found = reasons(runs_dir)
    older = found.pop("older")
    assert found == {
        "running": "not finished: no summary.json",
        "cut": "summary.json cannot be read",
        "bare": "no config.yaml",
        "torn": "config.yaml cannot be read",
        "list": "foreign: config.yaml holds no configuration",
        "other": "foreign: summary.json has no status",
    }
    assert older.startswith("foreign: summary.json has no model, optimizer, ")
    assert len(load_runs(runs_dir).frame) == 1


def test_a_copied_run_counts_once(plant: PlantRun) -> None:
    first = plant(folder="a", val_loss=4.0)
    shutil.copytree(first, first.with_name("b"))
    loaded = load_runs(first.parent)
    assert list(loaded.frame["folder"]) == [first]
    assert reasons(first.parent) == {"b": "duplicate of a"}


def test_two_losses_of_one_experiment_count_neither(plant: PlantRun) -> None:
    """Which of them is right no name of a folder can say."""
    first = plant(folder="b", val_loss=4.0)
    other = plant(folder="seed1", seed=1)
    changed = shutil.copytree(first, first.with_name("a"))
    summary = json.loads((changed / "summary.json").read_text())
    (changed / "summary.json").write_text(json.dumps(summary | {"val_loss": 5.0}))
    assert list(load_runs(first.parent).frame["folder"]) == [other]
    told = "contradiction: one configuration and seed with val_loss 5 (a) and 4 (b); keep the one that is right"
    assert reasons(first.parent) == {"a": told, "b": told}


def test_two_losses_of_one_cell_count_neither_whatever_they_were_configured_as(plant: PlantRun) -> None:
    kept = plant(folder="muon", optimizer="muon")
    first = plant(folder="a", val_loss=4.0)
    plant(folder="b", val_loss=5.0, config={"trainer.probe_every": 7})
    assert list(load_runs(first.parent).frame["folder"]) == [kept]
    told = "contradiction: sync of adamw, seed 0 with val_loss 4 (a) and 5 (b); keep the one that is right"
    assert reasons(first.parent) == {"a": told, "b": told}


def test_a_configuration_that_was_cut_is_listed(plant: PlantRun) -> None:
    cut = plant(folder="cut")
    kept = plant(folder="kept", seed=1)
    (cut / "config.yaml").write_text("model:\n  name: tiny\n")
    assert list(load_runs(kept.parent).frame["folder"]) == [kept]
    assert reasons(kept.parent)["cut"].startswith("half-written or foreign: config.yaml has no data, optimizer, ")


def test_a_stray_configuration_hides_no_runs(plant: PlantRun) -> None:
    run = plant(folder="moments/run")
    (run.parent / "config.yaml").write_text("a: 1\n")
    (run.parent / ".sweep" / "code").mkdir(parents=True)
    (run.parent / ".sweep" / "code" / "config.yaml").write_text("a: 1\n")
    assert list(load_runs(run.parents[1]).frame["folder"]) == [run]
    assert reasons(run.parents[1]) == {"moments": "not finished: no summary.json"}


def test_error_feedback_without_a_delay_is_sync_and_counts_once(plant: PlantRun) -> None:
    plant(folder="a", correction="ef", val_loss=4.1)
    plain = plant(folder="b", correction="none", val_loss=4.1)
    loaded = load_runs(plain.parent)
    assert list(loaded.frame["folder"]) == [plain]
    assert reasons(plain.parent) == {"a": "sync of adamw, seed 0 is counted once, from b"}


def test_error_feedback_without_a_delay_stands_for_sync(plant: PlantRun) -> None:
    runs_dir = plant(correction="ef").parent
    assert list(load_runs(runs_dir).frame["condition"]) == ["sync"]


def test_one_delay_by_two_names_counts_once(plant: PlantRun) -> None:
    one_step = plant(folder="a", delay="one_step")
    plant(folder="b", delay="constant", config={"delay.updates": 1}, summary={"staleness_updates": 1})
    assert list(load_runs(one_step.parent).frame["folder"]) == [one_step]


def test_other_settings_of_the_run_are_refused_by_name(plant: PlantRun) -> None:
    plant(seed=0)
    plant(seed=1)
    runs_dir = plant(optimizer="muon", config={"trainer.num_steps": 800, "data.sequence_length": 128}).parent
    with pytest.raises(ConfigError) as refused:
        load_runs(runs_dir)
    message = str(refused.value)
    assert "\n" not in message
    assert "trainer.num_steps (400 in 2 runs, 800 in 1 run)" in message
    assert "data.sequence_length (64 in 2 runs, 128 in 1 run)" in message


def test_a_key_that_some_runs_lack_is_refused(plant: PlantRun) -> None:
    plant()
    runs_dir = plant(seed=1, config={"trainer.label_smoothing": 0.1}).parent
    with pytest.raises(ConfigError, match=r"trainer.label_smoothing \(absent in 1 run, 0.1 in 1 run\)"):
        load_runs(runs_dir)


@pytest.mark.parametrize(
    ("correction", "config", "message"),
    [
        ("none", {"optimizer.lr": 1e-3}, r"optimizer\.lr \(0\.003 in 1 run, 0\.001 in 1 run\) of optimizer=adamw"),
        ("ef", {"correction.strength": 0.5}, r"correction\.strength \(1\.0 in 1 run, 0\.5 in 1 run\) of correction=ef"),
    ],
)
def test_an_optimizer_and_a_correction_keep_their_settings(
    plant: PlantRun, correction: str, config: dict, message: str
) -> None:
    plant(folder="a", delay="one_step", correction=correction)
    runs_dir = plant(folder="b", delay="one_step", correction=correction, seed=1, config=config).parent
    with pytest.raises(ConfigError, match=message):
        load_runs(runs_dir)


def test_a_key_that_is_an_axis_may_differ_and_is_a_column(plant: PlantRun) -> None:
    for betas in ([0.9, 0.95], [0.98, 0.95]):
        runs_dir = plant(config={"optimizer.betas": betas}).parent
    with pytest.raises(ConfigError, match=r"optimizer\.betas"):
        load_runs(runs_dir)
    frame = load_runs(runs_dir, (*AXES, "optimizer.betas", "optimizer.momentum")).frame
    assert sorted(frame["optimizer.betas"]) == [(0.9, 0.95), (0.98, 0.95)]
    assert list(frame["optimizer.momentum"]) == [None, None]
    with pytest.raises(ConfigError, match=r"optimizer\.betas"):
        load_runs(runs_dir, (*AXES, "optimizer.lr"))


def test_a_section_that_is_an_axis_may_differ(plant: PlantRun) -> None:
    plant()
    other = {"model.num_layers": 8, "model.name": "larger"}
    runs_dir = plant(summary={"model": "larger"}, config=other).parent
    with pytest.raises(ConfigError, match=r"model\.num_layers "):
        load_runs(runs_dir)
    assert sorted(load_runs(runs_dir, (*AXES, "model")).frame["model"]) == ["larger", "tiny"]


def test_one_run_a_value_of_an_axis(plant: PlantRun) -> None:
    for num_stages in (2, 4):
        for delay in ("one_step", "pipedream"):
            plant(delay=delay, config={"pipeline.num_stages": num_stages}, summary={"staleness_updates": 1})
    runs_dir = plant(correction="ef", config={"pipeline.num_stages": 2}).parent
    loaded = load_runs(runs_dir, (*AXES, "pipeline.num_stages"))
    assert loaded.passed_over == []
    assert sorted(zip(loaded.frame["condition"], loaded.frame["pipeline.num_stages"], strict=True)) == [
        ("async", 2),
        ("async", 4),
        ("pipedream", 2),
        ("pipedream", 4),
        ("sync", 2),
    ]


def test_optimizers_may_differ_from_each_other(plant: PlantRun) -> None:
    plant(optimizer="adamw", config={"optimizer.lr": 3e-3})
    runs_dir = plant(optimizer="muon", config={"optimizer.lr": 1e-2, "optimizer.momentum": 0.95}).parent
    assert len(load_runs(runs_dir).frame) == 2


def test_how_processes_go_about_a_pipeline_may_differ(plant: PlantRun) -> None:
    """It changes no number, and no run's hash."""
    plant()
    runs_dir = plant(seed=1, config={"pipeline.timeout_s": 7.0, "pipeline.trace_batches": 2}).parent
    assert len(load_runs(runs_dir).frame) == 2


def test_bookkeeping_may_differ(plant: PlantRun) -> None:
    plant()
    bookkeeping = {
        "runs_dir": "elsewhere",
        "sweep_name": "s",
        "logger.name": "wandb",
        "data.root": "/tmp",
        "trainer.eval_every": 7,
    }
    runs_dir = plant(seed=1, config=bookkeeping).parent
    assert len(load_runs(runs_dir).frame) == 2


def test_a_delay_may_come_from_a_real_pipeline_or_a_simulated_one(plant: PlantRun) -> None:
    plant()
    runs_dir = plant(delay="one_step", config={"pipeline.name": "two_bw", "pipeline.schedule": "two_bw"}).parent
    assert len(load_runs(runs_dir).frame) == 2
    plant(seed=1, config={"pipeline.num_stages": 2})
    with pytest.raises(ConfigError, match=r"in pipeline\.num_stages "):
        load_runs(runs_dir)


def test_a_run_that_is_passed_over_may_have_any_settings(plant: PlantRun) -> None:
    plant()
    runs_dir = plant(seed=1, summary={"status": "failed"}, config={"trainer.num_steps": 800}).parent
    assert len(load_runs(runs_dir).frame) == 1


@pytest.mark.parametrize("name", ["missing", "a_file", "empty"])
def test_a_folder_without_runs_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a_file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=rf"^runs=.*{name}: expected"):
        load_runs(tmp_path / name)


def test_the_refusal_says_why_no_run_counts(plant: PlantRun) -> None:
    runs_dir = plant(folder="bad", val_loss=None).parent
    with pytest.raises(ConfigError, match=r"passed over 1 \(bad: val_loss is None, not a finite number\)"):
        load_runs(runs_dir)


def test_a_thousand_runs_become_tables_and_claims_in_ten_seconds(tmp_path: Path) -> None:
    for seed in range(500):
        for delay, loss in (("sync", 4.0), ("one_step", 4.1)):
            loss += 1e-4 * seed
            rows = [{"step": step, "val/loss": loss + 10.0 / step} for step in range(50, 401, 50)]
            plant_run(tmp_path, seed=seed, delay=delay, val_loss=loss + 0.025, metrics=rows, folder=f"{delay}-{seed}")
    start = time.process_time()  # other programs do not count
    experiments = load_experiments(tmp_path)
    tables, *_, time_to_loss = make_all_tables(experiments, num_stages=4, num_micro_batches=4).tables
    assert tables.records[0]["gap_num_seeds"] == 500
    assert time_to_loss.records[0]["num_seeds"] == 500
    assert judge_claims(experiments)[0].statements
    assert time.process_time() - start <= 10.0
