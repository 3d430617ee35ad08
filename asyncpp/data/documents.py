"""Where documents begin inside a sequence, for attention that does not look across."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def document_numbers(inputs: NDArray[np.int64], end_of_document: int) -> NDArray[np.int64]:
    """The document that each input token belongs to, counted from 0 in each sequence: (..., T) -> (..., T).

    The end-of-document token is the last of its document. A query may look at the keys of its own number.
    """
    begins = np.zeros_like(inputs)
    begins[..., 1:] = inputs[..., :-1] == end_of_document
    return np.cumsum(begins, axis=-1)


def document_positions(inputs: NDArray[np.int64], end_of_document: int) -> NDArray[np.int64]:
    """The position of each input token in what the sequence holds of its document: (..., T) -> (..., T)."""
    begins = np.zeros(inputs.shape, bool)
    begins[..., 1:] = inputs[..., :-1] == end_of_document
    places = np.broadcast_to(np.arange(inputs.shape[-1]), inputs.shape)
    return places - np.maximum.accumulate(np.where(begins, places, 0), axis=-1)


def document_mask(inputs: NDArray[np.int64], end_of_document: int) -> NDArray[np.bool_]:
    """Which keys each query may look at, itself and what came before in its document: (..., T) -> (..., T, T)."""
    numbers = document_numbers(inputs, end_of_document)
    same = numbers[..., :, None] == numbers[..., None, :]
    return np.tril(same)
