"""How a part of the model is called, the same in the simulator, in a stage's own process and in a validation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from asyncpp.model.auxiliary import Auxiliary
from asyncpp.model.documents import documents_of


@dataclass(frozen=True)
class Autocast:
    """Mixed precision: matrix products in ``dtype``, weights, sums of gradients and state as they are.

    dtype: None computes in the weights' own. device: cpu or cuda.
    """

    device: str
    dtype: torch.dtype | None = None

    def __call__(self) -> AbstractContextManager[object]:
        """The context of a forward."""
        return nullcontext() if self.dtype is None else torch.autocast(self.device, self.dtype)


@dataclass(frozen=True)
class Compute:
    """What all calls of a run have in common.

    end_of_document: the token that attention does not look past; None looks at the whole sequence.
    """

    autocast: Autocast
    end_of_document: int | None

    def reads_tokens(self, is_last: bool) -> bool:
        """Whether a part is called with more of the tokens than its inputs: with labels or documents."""
        return is_last or self.end_of_document is not None

    def call_part(
        self,
        module: nn.Module,
        inputs: Tensor,
        windows: Tensor | None,
        *,
        is_last: bool,
        auxiliary: Auxiliary | None = None,
        weights: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """The mean cross-entropy, 0-dim, of the model's last part; of any other its activations.

        module: of the part. inputs: what the part before gave, (rows, sequence_length, hidden_size), or the token ids
        where there is none, int64 (rows, sequence_length). windows: of the tokens, int64 (rows, sequence_length + 1);
        None where the part does not read them. weights: by the module's names, instead of the module's own.
        """
        labels = documents = None
        if windows is not None:
            labels = windows[:, 1:] if is_last else None
            documents = documents_of(windows[:, :-1], self.end_of_document)
        arguments = inputs, labels, auxiliary, documents
        with self.autocast():
            return module(*arguments) if weights is None else functional_call(module, weights, arguments)
