"""A run's tokens: prepared if need be, opened, and the held-out sequences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncpp.data.batches import Batches, validation_windows
from asyncpp.data.config import DataConfig
from asyncpp.data.prepare import prepare
from asyncpp.data.status import display
from asyncpp.data.tokens import open_tokens


def prepare_data(data: DataConfig) -> None:
    """Make the tokens of ``data``, unless they are there. One process of a run does so."""
    with display() as report:
        prepare(data, report)


def open_data(data: DataConfig, batch_size: int, seed: int) -> tuple[Batches, NDArray[np.int64]]:
    """The batches, and the held-out sequences as int64 (sequences, sequence_length + 1)."""
    tokens = open_tokens(data)
    batches = Batches(tokens, data.sequence_length, batch_size, seed)
    return batches, validation_windows(tokens, data.sequence_length, data.num_validation_sequences)
