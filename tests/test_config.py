"""What a run's hash covers: what changes the numbers, and nothing else."""

from __future__ import annotations

import pytest

from asyncpp.errors import ConfigError
from asyncpp.records import BOOKKEEPING_KEYS

BOOKKEEPING = {
    "runs_dir": "runs_dir=x",
    "sweep_name": "sweep_name=x",
    "logger": "logger=wandb",
    "data.root": "data.root=x",
    "data.shard_tokens": "data.shard_tokens=1000",
    "trainer.eval_every": "trainer.eval_every=7",
    "trainer.probe_every": "trainer.probe_every=3",
    "trainer.dry_run": "trainer.dry_run=true",
    "trainer.checkpoint_every": "trainer.checkpoint_every=7",
    "trainer.checkpoint": "trainer.checkpoint.keep_last=7",
    "resume": "resume=never",
}


@pytest.mark.parametrize("key", BOOKKEEPING_KEYS)
def test_bookkeeping_changes_no_hash(make_config, key):
    config = make_config(BOOKKEEPING[key])
    assert config != make_config()
    assert config.hash() == make_config().hash()


def test_where_a_delay_is_given_the_schedule_that_is_simulated_changes_no_hash(make_config):
    one_step = make_config("delay=one_step")
    assert make_config("delay=one_step", "pipeline.schedule=gpipe").hash() == one_step.hash()
    assert make_config("pipeline.schedule=gpipe").hash() == make_config("delay=sync").hash() != one_step.hash()


@pytest.mark.parametrize(
    "override",
    ["seed=1", "optimizer.lr=1e-4", "delay=sync", "correction=ef", "trainer.num_steps=7", "model.init_std=0.1",
     "trainer.num_threads=2", "lr_schedule=constant", "data.sequence_length=32"],
)  # fmt: skip
def test_what_changes_a_number_changes_the_hash(make_config, override):
    assert make_config(override).hash() != make_config().hash()


def test_a_delay_goes_by_what_it_comes_to(make_config):
    constant = make_config("delay=constant", "delay.updates=1")
    assert constant.hash() == make_config("delay=auto").hash() == make_config("delay=one_step").hash()
    assert make_config("delay=auto").delay.effective_name(make_config().pipeline) == "one_step"
    gpipe = make_config("pipeline.schedule=gpipe", "pipeline.num_stages=2")
    assert gpipe.delay.effective_name(gpipe.pipeline) == "sync"
    pipedream = make_config("pipeline=pipedream", "pipeline.num_stages=2")
    assert pipedream.delay.effective_name(pipedream.pipeline) == "pipedream"


@pytest.mark.parametrize(
    ("overrides", "varies"),
    [
        (("delay=constant",), False),
        (("delay=pipedream", "pipeline.num_stages=3"), True),
        (("delay=pipedream", "pipeline.num_stages=1"), False),
        (("delay=sampled",), True),
        (("delay=from_schedule", "pipeline.num_stages=3"), False),
        (("pipeline=2bw", "pipeline.num_stages=2", "trainer.num_micro_batches=2"), False),
        (("pipeline=pipedream", "pipeline.num_stages=2", "trainer.num_micro_batches=1"), True),
    ],
)
def test_a_delay_varies_from_stage_to_stage_or_from_batch_to_batch(make_config, overrides, varies):
    assert make_config(*overrides).delay_varies == varies


@pytest.mark.parametrize("correction", ["ef", "weight_prediction", "sync_start"])
def test_a_correction_of_a_constant_delay_refuses_one_that_varies(make_config, correction):
    with pytest.raises(ConfigError, match=f"correction={correction}: expected one that is defined for a delay that"):
        make_config("delay=sampled", f"correction={correction}")


def test_a_note_says_when_a_correction_changes_nothing(make_config):
    assert make_config("delay=sync", "correction=ef").notes() == [
        "correction=ef changes nothing with delay=sync: no update is late"
    ]
    assert make_config("correction=ef").notes() == make_config("delay=sync", "correction=nesterov").notes() == []


def test_autocast_of_float64_is_refused(make_config):
    accepted = "trainer.autocast=bfloat16: expected null with trainer.dtype=float64"
    with pytest.raises(ConfigError, match=accepted):
        make_config("trainer.dtype=float64", "trainer.autocast=bfloat16")
