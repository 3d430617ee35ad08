"""Compiling what a rank computes before the others wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

from asyncpp.model.auxiliary import Auxiliary
from asyncpp.model.documents import documents_of
from asyncpp.pipeline.interpreter import Part
from asyncpp.trainer.setup import build_autocast, masked_end_of_document

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
    version = part.state.versions.newest
    module = part.replicas.at(version)
    leaves: list[Tensor] = [*part.replicas.leaves(version)]
    auxiliary = Auxiliary()
    inputs, labels, documents = _arguments(config, part, windows)
    if not part.is_first:
        leaves.append(inputs.requires_grad_())
    with build_autocast(config)():
        if config.pipeline.recompute and not part.is_last:
            with torch.no_grad():
                module(inputs, labels, None, documents)
        outputs = module(inputs, labels, auxiliary, documents)
    roots = [outputs] if auxiliary.loss is None else [outputs, auxiliary.loss]
    torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots])


@torch.no_grad()
def _validate(config: Config, part: Part, windows: Tensor) -> None:
    named = part.replicas.named(part.state.versions.current)
    inputs, labels, documents = _arguments(config, part, windows)
    with build_autocast(config)():
        functional_call(part.replicas.skeleton, named, (inputs, labels, None, documents))


def _arguments(config: Config, part: Part, windows: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Inputs, labels and documents of ``part`` for these tokens."""
    inputs = windows[:, :-1]
    documents = documents_of(inputs, masked_end_of_document(config))
    if not part.is_first:
        inputs = part.state.versions.current[0].new_zeros(*inputs.shape, config.model.hidden_size)
    return inputs, windows[:, 1:] if part.is_last else None, documents
