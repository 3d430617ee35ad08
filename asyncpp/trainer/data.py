"""A run's tokens: prepared if need be, opened, and the held-out sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asyncpp.data.batches import Batches, validation_windows
from asyncpp.data.prepare import prepare
from asyncpp.data.status import display
from asyncpp.data.tokens import open_tokens

if TYPE_CHECKING:
    from asyncpp.config import Config


def prepare_data(config: Config) -> None:
    """Make the tokens that ``config`` reads, unless they are there. One process of a run does so."""
    with display() as report:
        prepare(config.data, report)


def open_data(config: Config) -> tuple[Batches, NDArray[np.int64]]:
    """The batches, and the held-out sequences as int64 (sequences, sequence_length + 1)."""
    data = config.data
    tokens = open_tokens(data)
    batches = Batches(tokens, data.sequence_length, config.trainer.batch_size, config.seed)
    return batches, validation_windows(tokens, data.sequence_length, data.num_validation_sequences)
