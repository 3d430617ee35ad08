"""Compiling what a rank computes before the others wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncpp.model.auxiliary import Auxiliary
from asyncpp.pipeline.part import Part
from asyncpp.trainer.setup import build_compute

if TYPE_CHECKING:
    from asyncpp.config import Config


def compile_ahead(config: Config, parts: Sequence[Part], validation: Tensor) -> None:
    """Run ``parts`` on zeros as training and validation will run them, if ``config`` has the model compiled.

    A stage that compiled in its first action would look to the others as if it hung, for a minute and one by one.
    validation: the held-out sequences, int64 (sequences, sequence_length + 1).
    """
    trainer = config.trainer
    if not trainer.compile:
        return
    rows = trainer.batch_size // (config.pipeline.data_parallel * trainer.num_micro_batches)
    sizes = {len(batch) for batch in validation.split(trainer.eval_batch_size)}
    for part in parts:
        _train(config, part, validation.new_zeros(rows, validation.shape[1]))
        for size in sizes:
            _validate(config, part, validation.new_zeros(size, validation.shape[1]))


def _train(config: Config, part: Part, windows: Tensor) -> None:
    version, compute = part.state.versions.newest, build_compute(config)
    module = part.modules.at(version)
    leaves: list[Tensor] = [*part.modules.leaves(version)]
    auxiliary = Auxiliary()
    inputs = _inputs(config, part, windows)
    if not part.is_first:
        leaves.append(inputs.requires_grad_())
    if config.pipeline.recompute and not part.is_last:
        with torch.no_grad():
            compute.call_part(module, inputs, windows, is_last=False)
    outputs = compute.call_part(module, inputs, windows, is_last=part.is_last, auxiliary=auxiliary)
    roots = [outputs] if auxiliary.loss is None else [outputs, auxiliary.loss]
    torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots])


@torch.no_grad()
def _validate(config: Config, part: Part, windows: Tensor) -> None:
    weights = part.modules.named(part.state.versions.current)
    inputs = _inputs(config, part, windows)
    build_compute(config).call_part(part.modules.skeleton, inputs, windows, is_last=part.is_last, weights=weights)


def _inputs(config: Config, part: Part, windows: Tensor) -> Tensor:
    """Of ``part`` for these tokens: the first reads them, any other has activations, here zeros."""
    inputs = windows[:, :-1]
    if part.is_first:
        return inputs
    return part.state.versions.current[0].new_zeros(*inputs.shape, config.model.hidden_size)
