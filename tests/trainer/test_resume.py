"""A run that was stopped goes on as if it had not been: the same records and the same state, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from options import OPTIMIZERS
from small_run import NUM_STEPS, configured

from asyncpp import records
from asyncpp.config import Config
from asyncpp.trainer import saving
from asyncpp.trainer.checkpoint import writer
from asyncpp.trainer.checkpoint.names import CHECKPOINTS_FOLDER
from asyncpp.trainer.checkpoint.reader import Checkpoint, newest_valid
from asyncpp.trainer.run import run
from asyncpp.trainer.simulated import Simulated


def rows(config: Config) -> list[dict]:
    """All metrics that do not tell the time."""
    return [
        {key: value for key, value in row.items() if not key.startswith(records.TIME_PREFIX)}
        for row in records.read_metrics(config.folder / records.METRICS_FILE)
    ]


def final_state(config: Config) -> dict[str, torch.Tensor]:
    checkpoint = newest_valid(config.folder / CHECKPOINTS_FOLDER, pytest.fail)
    assert checkpoint is not None and checkpoint.info.step == config.trainer.num_steps
    return {name: checkpoint.read(name).clone() for name in checkpoint.names}


def assert_same(config: Config, expected: Config) -> None:
    assert rows(config) == rows(expected)
    ours, theirs = final_state(config), final_state(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    ours, theirs = (records.read_summary(c.folder) for c in (config, expected))
    for key in ("status", "val_loss", "staleness_updates", "tokens_seen"):
        assert ours[key] == theirs[key]


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch):
    """Ask the next run in this process to stop after so many updates, as a signal would; None no longer does."""

    def arrange(num_updates: int | None) -> None:
        def stops_after(self, done: int) -> bool:
            return done == num_updates

        monkeypatch.setattr(Simulated, "stops_after", stops_after)

    return arrange


def cut_and_compare(folder: Path, data: str, stop_at, cuts: tuple[int, ...], *overrides: str) -> None:
    whole, cut = (configured(folder / name, data, *overrides) for name in ("whole", "cut"))
    stop_at(None)
    assert run(whole) == 0
    for step in cuts:
        stop_at(step)
        assert run(cut) == 75
        assert records.read_summary(cut.folder)["status"] == "interrupted"
        assert newest_valid(cut.folder / CHECKPOINTS_FOLDER, pytest.fail).info.step == step
    stop_at(None)
    assert run(cut) == 0
    assert_same(cut, whole)


@pytest.mark.parametrize("correction", ["none", "ef"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_goes_on_where_it_was(tmp_path, data, stop_at, optimizer, correction):
    cut_and_compare(tmp_path, data, stop_at, (3, 4), f"optimizer={optimizer}", f"correction={correction}")


@pytest.mark.parametrize("cut", range(1, NUM_STEPS))
def test_a_cut_at_any_step_shows_nowhere(tmp_path, data, stop_at, cut):
    cut_and_compare(tmp_path, data, stop_at, (cut,), "correction=ef")


@pytest.mark.parametrize(
    "overrides",
    [
        ("correction=sync_start", "correction.sync_fraction=0.5", "correction.strength=1.0"),
        ("correction=dc_asgd", "correction.adaptive=true"),
        ("correction=weight_prediction", "delay=constant", "delay.updates=3"),
        ("delay=pipedream", "pipeline.num_stages=3"),
        ("delay=sampled",),
        ("trainer.clip_by=previous_step", "trainer.max_grad_norm=0.3"),
        ("model=tiny_moe", "model.num_layers=2"),
        ("trainer.checkpoint.asynchronous=false",),
    ],
    ids=lambda overrides: overrides[0],
)
def test_other_state_goes_on_too(tmp_path, data, stop_at, overrides):
    cut_and_compare(tmp_path, data, stop_at, (2, 4, 5), *overrides)


@pytest.mark.parametrize("pipeline", ["simulated", "2bw"])
def test_a_run_cut_after_its_last_checkpoint_only_evaluates(tmp_path, data, stop_at, pipeline):
    stop_at(None)
    whole, cut = (configured(tmp_path / name, data, f"pipeline={pipeline}") for name in ("whole", "cut"))
    assert run(whole) == run(cut) == 0
    (cut.folder / records.SUMMARY_FILE).unlink()
    assert run(cut) == 0
    assert_same(cut, whole)


def test_a_damaged_checkpoint_is_passed_over(tmp_path, data, stop_at, capsys):
    overrides = ("trainer.checkpoint_every=2", "trainer.checkpoint.keep_last=3")
    whole, cut = (configured(tmp_path / name, data, *overrides) for name in ("whole", "cut"))
    stop_at(None)
    assert run(whole) == 0
    stop_at(5)
    assert run(cut) == 75
    newest = cut.folder / CHECKPOINTS_FOLDER / "step-00000005" / "rank-0000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    stop_at(None)
    assert run(cut) == 0
    captured = capsys.readouterr()
    assert "step-00000005" in captured.err and "resuming after 4 updates" in captured.out
    assert rows(cut) == rows(whole)


def test_resume_never_starts_anew(tmp_path, data, stop_at, capsys):
    config = configured(tmp_path, data)
    stop_at(3)
    assert run(config) == 75
    stop_at(None)
    assert run(configured(tmp_path, data, "resume=never")) == 0
    assert "resuming" not in capsys.readouterr().out
    assert [row["step"] for row in rows(config) if "train/loss" in row] == list(range(NUM_STEPS))


def test_a_longer_run_goes_on_from_a_shorter_one(tmp_path, data, stop_at):
    """With a constant learning rate, in which the length does not show."""
    stop_at(None)
    short, long = (
        configured(tmp_path / "a", data, "lr_schedule=constant", f"trainer.num_steps={n}") for n in (4, NUM_STEPS)
    )
    assert run(short) == run(long) == 0
    again = configured(tmp_path / "b", data, "lr_schedule=constant", f"resume={short.folder}", "trainer.eval_every=4")
    assert run(again) == 0
    ours, theirs = final_state(again), final_state(long)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    steps = [row["step"] for row in rows(again) if "train/loss" in row]
    assert steps == list(range(NUM_STEPS))


def test_another_configuration_is_refused_by_name(tmp_path, data, stop_at, capsys):
    stop_at(None)
    first = configured(tmp_path / "a", data)
    assert run(first) == 0
    other = configured(tmp_path / "b", data, "optimizer.lr=0.01", f"resume={first.folder}")
    with pytest.raises(saving.ConfigError, match=r"optimizer\.lr=0\.01: .* was made with optimizer\.lr=0\.003"):
        run(other)
    assert records.read_summary(other.folder) is None


def test_other_tokens_are_refused(tmp_path, data, stop_at, monkeypatch):
    """Prepared again from another text, the tokens are others under the same name."""
    stop_at(3)
    config = configured(tmp_path, data)
    assert run(config) == 75
    monkeypatch.setattr(saving, "data_digest", lambda data: "of another text")
    with pytest.raises(saving.ConfigError, match=r"data\.root=.*: the tokens there are not those of .*step-00000003"):
        run(config)


def test_missing_metrics_are_refused_before_any_rank_starts(tmp_path, data, stop_at):
    stop_at(3)
    config = configured(tmp_path, data)
    assert run(config) == 75
    (config.folder / records.METRICS_FILE).unlink()
    with pytest.raises(saving.ConfigError, match=r"resume=auto: .*metrics\.jsonl has 0 bytes"):
        run(config)


def test_metrics_of_another_run_are_looked_at_before_they_replace_its_own(tmp_path, data, stop_at):
    stop_at(None)
    first = configured(tmp_path / "a", data)
    assert run(first) == 0
    (first.folder / records.METRICS_FILE).write_text("cut\n")
    other = configured(tmp_path / "b", data, f"resume={first.folder}")
    other.folder.mkdir(parents=True)
    (other.folder / records.METRICS_FILE).write_text("its own\n")
    with pytest.raises(saving.ConfigError, match=r"resume=.*a/.*metrics\.jsonl has 4 bytes"):
        run(other)
    assert (other.folder / records.METRICS_FILE).read_text() == "its own\n"


def test_shorter_than_its_checkpoint_is_refused(tmp_path, data, stop_at):
    stop_at(None)
    first = configured(tmp_path / "a", data)
    assert run(first) == 0
    with pytest.raises(saving.ConfigError, match=r"trainer\.num_steps=3: expected at least the 8 steps"):
        run(configured(tmp_path / "b", data, "trainer.num_steps=3", f"resume={first.folder}"))


PIPELINES = [
    ("pipeline=simulated", "delay=one_step"),
    ("pipeline=2bw", "pipeline.num_stages=2"),
    ("pipeline=2bw", "pipeline.num_stages=4"),
    ("pipeline=simulated", "delay=one_step"),
]


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer=muon", "correction=ef", "model.tied_embeddings=true"),
        ("model=tiny_moe", "correction=weight_prediction", "model.num_layers=4"),
    ],
    ids=" ".join,
)
def test_a_run_moves_to_other_numbers_of_stages_and_back(tmp_path, data, stop_at, overrides):
    """Two updates on each: one process, two stages, four stages, one process."""
    stop_at(None)
    common = (*overrides, "lr_schedule=constant", "trainer.eval_every=null")
    whole = configured(tmp_path / "whole", data, *common, *PIPELINES[0])
    assert run(whole) == 0
    last = None
    for number, pipeline in enumerate(PIPELINES):
        resume = () if last is None else (f"resume={last.folder}",)
        steps = f"trainer.num_steps={2 * (number + 1)}"
        last = configured(tmp_path / str(number), data, *common, *pipeline, steps, *resume)
        assert run(last) == 0
    assert last is not None
    ours, theirs = final_state(last), final_state(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    losses = [[row["train/loss"] for row in rows(config) if "train/loss" in row] for config in (last, whole)]
    assert losses[0] == losses[1]


def test_a_pipeline_saves_what_the_simulator_saves(tmp_path, data, stop_at):
    stop_at(None)
    two = configured(tmp_path / "two", data, "pipeline=2bw", "pipeline.num_stages=2", "pipeline.data_parallel=2",
                     "pipeline.shard_optimizer=true", "trainer.num_micro_batches=2", "correction=ef")  # fmt: skip
    one = configured(tmp_path / "one", data, "correction=ef")
    assert run(two) == run(one) == 0
    ours, theirs = final_state(two), final_state(one)
    assert ours.keys() == theirs.keys()
    manifest = json.loads(
        (Checkpoint.open(next(iter((two.folder / CHECKPOINTS_FOLDER).iterdir()))).folder / "manifest.json").read_text()
    )
    assert manifest["info"]["world"] == {"pipeline": "two_bw", "stages": 2, "replicas": 2}
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5)


def test_training_goes_on_when_the_disk_is_full(tmp_path, data, stop_at, monkeypatch, capsys):
    """The checkpoint from before stays as it was, and is what a later launch goes on from."""
    stop_at(None)
    config, whole = (configured(tmp_path / name, data, "trainer.checkpoint_every=2") for name in ("full", "whole"))

    def full_from_the_third_update(root: Path, num_bytes: int) -> None:
        if list(root.glob("step-*2")):
            raise writer.CheckpointFailed(f"{root} has 0 bytes free and a checkpoint takes {num_bytes:,}")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "require_space", full_from_the_third_update)
        assert run(config) == 1
    told = capsys.readouterr().err
    assert told.count("warning: no checkpoint of step") == 3 and "has 0 bytes free" in told
    assert "error: the state after 8 updates could not be saved" in told
    assert newest_valid(config.folder / CHECKPOINTS_FOLDER, pytest.fail).info.step == 2
    assert records.read_summary(config.folder)["status"] == "failed"
    assert run(config) == run(whole) == 0
    assert_same(config, whole)


def test_replicas_that_share_nothing_out_save_the_state_once(tmp_path, data, stop_at):
    stop_at(None)
    config = configured(
        tmp_path,
        data,
        "pipeline=2bw",
        "pipeline.num_stages=1",
        "pipeline.data_parallel=2",
        "trainer.num_micro_batches=2",
    )
    assert run(config) == 0
    checkpoint = newest_valid(config.folder / CHECKPOINTS_FOLDER, pytest.fail)
    first, second = checkpoint.manifest.files
    assert first.tensors and not second.tensors
