"""What an update depends on is in the weight versions, Optimizer.state_dict and Correction.state, and nowhere else.

Six updates, or three, a checkpoint on disk, new objects from other weights, and three more: equal to the last bit, for
every optimizer with every correction.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from optimizer_cases import SMALL_MODEL, draw, load_config
from options import CONF, CORRECTIONS, OPTIMIZERS

from asyncpp.optim.groups import build_optimizer
from asyncpp.trainer.checkpoint.config import CheckpointConfig
from asyncpp.trainer.checkpoint.manifest import CheckpointInfo
from asyncpp.trainer.checkpoint.names import correction_name, optimizer_name, weight_name
from asyncpp.trainer.checkpoint.reader import newest_valid
from asyncpp.trainer.checkpoint.writer import CheckpointWriter

NUM_STEPS = 6
# Of a correction that is not here, its own values alone.
VARIANTS = {
    "ef": [{"decay_form": "A"}, {"decay_form": "C"}],
    "dc_asgd": [{"adaptive": False}, {"adaptive": True}],
    "lr_damping": [{"horizon_fraction": 1.0}],
    # The switch comes after the cut, or before it.
    "sync_start": [{"sync_fraction": 0.67, "strength": 0.0}, {"sync_fraction": 0.34, "strength": 1.0}],
}
CASES = [(name, overrides) for name in ("none", *CORRECTIONS) for overrides in VARIANTS.get(name, [{}])]


class Training:
    """One stage, in the order of asyncpp.pipeline.update, on gradients that depend on the weights."""

    def __init__(self, optimizer_name: str, correction: tuple[str, dict], delay: int, seed: int) -> None:
        weights = draw(SMALL_MODEL, seed)
        overrides = {"precondition_frequency": 2} if optimizer_name == "soap" else {}
        self.optimizer = build_optimizer(load_config(optimizer_name, **overrides), SMALL_MODEL, weights)
        config = load_correction(*correction)
        self.correction = get_class(config.correction)(config, weights, delay, NUM_STEPS)
        self.delay = delay
        self.num_updates = 0
        self.versions = deque([weights], maxlen=delay + 1)

    def update(self) -> None:
        step, newest = self.num_updates, self.versions[-1]
        staleness = step - max(step - self.correction.delay(step, self.delay), 0)
        stale = self.versions[-1 - staleness]
        gradients = [torch.add(g, x, alpha=0.1) for g, x in zip(draw(SMALL_MODEL, seed=100 + step), stale, strict=True)]
        if self.correction.corrects_gradients:
            gradients = self.correction.correct_gradients(gradients, newest, stale)
        weights = [weight.clone() for weight in newest]
        for group in self.optimizer.groups:
            lr = group.peak_lr * self.correction.lr_factor(step, staleness)
            selected = group.select(gradients), group.select(weights)
            self.correction.apply(group.rule, group.indices, *selected, lr, staleness)
        self.versions.append(weights)
        self.num_updates += 1

    def state(self) -> dict[str, torch.Tensor]:
        tensors = {optimizer_name(key): tensor for key, tensor in self.optimizer.state_dict().items()}
        for age, weights in enumerate(reversed(self.versions)):
            version = self.num_updates - age if age else None
            tensors |= {weight_name(i.name, version): w for i, w in zip(SMALL_MODEL, weights, strict=True)}
        for kind, states in self.correction.state.items():
            tensors |= {correction_name(i.name, kind): s for i, s in zip(SMALL_MODEL, states, strict=True)}
        return tensors

    def load(self, root: Path) -> None:
        checkpoint = newest_valid(root, pytest.fail)
        self.num_updates = checkpoint.info.step
        read = checkpoint.read
        while len(self.versions) < min(self.num_updates, self.delay) + 1:
            self.versions.append([weight.clone() for weight in self.versions[-1]])
        for age, weights in enumerate(reversed(self.versions)):
            version = self.num_updates - age if age else None
            for info, weight in zip(SMALL_MODEL, weights, strict=True):
                weight.copy_(read(weight_name(info.name, version)))
        prefix = optimizer_name("")
        names = [name for name in checkpoint.names if name.startswith(prefix)]
        self.optimizer.load_state_dict({name.removeprefix(prefix): read(name) for name in names})
        for kind, states in self.correction.state.items():
            for info, tensor in zip(SMALL_MODEL, states, strict=True):
                tensor.copy_(read(correction_name(info.name, kind)))


def load_correction(name: str, overrides: dict):
    values = OmegaConf.to_container(OmegaConf.load(CONF / "correction" / f"{name}.yaml"))
    schema = get_class(values.pop("_target_"))
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values, overrides))
    config.check("correction")
    return config


@pytest.mark.parametrize("delay", [1, 2])
@pytest.mark.parametrize("correction", CASES, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_is_uninterrupted(name, correction, delay, tmp_path):
    whole = Training(name, correction, delay, seed=0)
    for _ in range(3):
        whole.update()
    keep_one = CheckpointConfig(keep_last=1, keep_every=None, keep_best=0, asynchronous=False)
    with CheckpointWriter(tmp_path, keep_one) as writer:
        writer.save(CheckpointInfo(3, config={}), whole.state())
    resumed = Training(name, correction, delay, seed=1)
    resumed.load(tmp_path)
    for _ in range(3):
        whole.update()
        resumed.update()
    expected, state = whole.state(), resumed.state()
    assert state.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(state[key], tensor), key
    assert not any(torch.equal(old, new) for old, new in zip(draw(SMALL_MODEL, 0), whole.versions[-1], strict=True))
