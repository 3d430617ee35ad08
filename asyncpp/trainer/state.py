"""The training state of any part of the model as a checkpoint's tensors, and back.

Tensors are named by parameter, so what the simulator saved opens in a pipeline of any depth, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncpp.pipeline.part import PartState
from asyncpp.trainer.checkpoint.names import correction_name, optimizer_name, weight_name
from asyncpp.trainer.checkpoint.reader import Checkpoint


def state_tensors(states: Sequence[PartState], names: Sequence[str]) -> dict[str, Tensor]:
    """What ``states`` hold between two updates, live, by the checkpoint's names. names: of all parameters.

    Of replicas, which hold the same weights, the first gives those; each gives the state that it updates.
    """
    tensors: dict[str, Tensor] = {}
    for state in states:
        held = [names[index] for index in state.indices]
        versions = state.versions
        if state.replica == 0:
            for version in range(versions.oldest, versions.newest + 1):
                label = None if version == versions.newest else version
                tensors |= {weight_name(n, label): w for n, w in zip(held, versions.at(version), strict=True)}
        if state.replica == 0 or state.owners is not None:
            own = state.own(held)
            tensors |= {optimizer_name(key): tensor for key, tensor in state.optimizer.state_dict().items()}
            for kind, kept in state.correction.state.items():
                tensors |= {correction_name(n, kind): tensor for n, tensor in zip(own, kept, strict=True)}
    return tensors


@torch.no_grad()
def load_state(states: Sequence[PartState], names: Sequence[str], checkpoint: Checkpoint) -> None:
    """Bring ``states`` to the step of ``checkpoint``. Raises ConfigError where it lacks a tensor, CheckpointDamaged."""
    step = checkpoint.info.step
    for state in states:
        held = [names[index] for index in state.indices]
        own = state.own(held)

        def read_version(version: int, held: list[str] = held) -> list[Tensor]:
            label = None if version == step else version
            return [checkpoint.read(weight_name(name, label)) for name in held]

        state.versions.restore(step, read_version)
        wanted = state.optimizer.state_dict()
        state.optimizer.load_state_dict({key: checkpoint.read(optimizer_name(key)) for key in wanted})
        for kind, kept in state.correction.state.items():
            for name, tensor in zip(own, kept, strict=True):
                tensor.copy_(checkpoint.read(correction_name(name, kind)))
