"""data.document_mask, from the configuration to the numbers: in the simulator, and in the processes of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from distributed.ranks import on_ranks, train_many
from torch.func import functional_call

from asyncpp.data.manifest import Manifest, Split
from asyncpp.model.llama import build
from asyncpp.trainer.setup import build_simulator
from asyncpp.trainer.simulated import Simulated

END = 7
NUM_STEPS = 3
COMMON = (
    f"trainer.num_steps={NUM_STEPS}",
    "trainer.batch_size=6",
    "trainer.num_micro_batches=3",
    "trainer.eval_batch_size=2",
    "trainer.dtype=float64",
    "data.sequence_length=12",
)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Where prepared tokens say which one ends a document; a simulator reads nothing else of them."""
    folder = tmp_path / "data" / "sotu"
    folder.mkdir(parents=True)
    splits = {name: Split(0, 0, 0, ()) for name in ("train", "validation")}
    Manifest({}, "", None, True, "uint16", 61, END, "", 0, 0, splits).write(folder)
    return f"data.root={folder.parent}"


def packed(num_rows: int, seed: int) -> torch.Tensor:
    """Windows of random tokens, every sixth or so of which ends a document."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 61, (num_rows, 13), generator=generator)
    return torch.where(torch.rand(tokens.shape, generator=generator) < 1 / 6, END, tokens)


def lengths_of(inputs: torch.Tensor) -> list[int]:
    """Of the documents in one sequence."""
    ends = [place + 1 for place, token in enumerate(inputs.tolist()) if token == END and place + 1 < len(inputs)]
    return [stop - start for start, stop in zip([0, *ends], [*ends, len(inputs)], strict=True)]


def test_a_masked_loss_is_that_of_every_document_alone(make_config, root):
    config, windows = make_config(*COMMON, root, "data.document_mask=true"), packed(6, seed=0)
    simulator = build_simulator(config)
    weights = dict(zip(simulator.names, simulator.newest_weights(), strict=True))
    weights |= {alias: weights[name] for alias, name in simulator.aliases.items()}
    total = 0.0
    for window in windows:
        lengths = lengths_of(window[:-1])
        for inputs, labels in zip(window[:-1].split(lengths), window[1:].split(lengths), strict=True):
            loss = functional_call(build(config.model), weights, (inputs[None], labels[None]))
            total += loss.item() * len(inputs)
    mean = total / windows[:, 1:].numel()
    assert max(len(lengths_of(window[:-1])) for window in windows) > 2
    assert simulator.loss(simulator.newest_weights(), windows) == pytest.approx(mean, rel=1e-12)
    assert simulator.train_batch(0, windows, 1.0).loss == pytest.approx(mean, rel=1e-12)


def test_the_mask_is_off_unless_it_is_asked_for(make_config, root):
    windows = packed(6, seed=0)
    losses = [
        build_simulator(make_config(*COMMON, root, *mask)).train_batch(0, windows, 1.0).loss
        for mask in ([], ["data.document_mask=false"], ["data.document_mask=true"])
    ]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("recompute", ["false", "true"])
def test_every_stage_of_a_real_pipeline_masks_as_the_simulator_does(make_config, root, recompute):
    """Three stages: one of them has neither the inputs nor the labels of its own."""
    masked = (*COMMON, root, "data.document_mask=true")
    windows, validation = packed(6 * NUM_STEPS, seed=1).view(NUM_STEPS, 6, 13), packed(5, seed=2)
    real = make_config(*masked, "pipeline=2bw", "pipeline.num_stages=3", f"pipeline.recompute={recompute}")
    outcomes = [each for (each,) in on_ranks(3, train_many, [real], windows, validation)]
    config = make_config(*masked, "delay=one_step")
    simulator = build_simulator(config)
    schedule = config.lr_schedule
    pipeline = Simulated(
        simulator, enumerate(windows), lambda step: schedule.factor(step, NUM_STEPS), validation, 2, probe_every=None
    )
    losses, validations = [], []
    for record in pipeline.train():
        losses.append(record.loss)
        validations.append(pipeline.validation_losses())
    assert outcomes[0].losses == losses
    assert all(outcome.validation == validations for outcome in outcomes)
    weights = simulator.newest_weights()
    for outcome in outcomes:
        assert all(torch.equal(weight, weights[index]) for index, weight in outcome.weights.items())
