"""Which tokens a step reads: a pure function of (seed, step), so a run resumes from its step number alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncpp.data.permutation import permute
from asyncpp.data.tokens import Tokens
from asyncpp.errors import require


class Batches:
    """Batches of training windows. An epoch shows every window once, in an order of its own.

    Sample number n = step * batch_size + row of a run is window permute(n mod W) of epoch n // W, where W is the
    number of windows. No state: ranks, workers and micro-batches read the rows that they need, in any order.
    """

    def __init__(self, tokens: Tokens, sequence_length: int, batch_size: int, seed: int) -> None:
        self.sequence_length = sequence_length
        self.batch_size = batch_size
        self.seed = seed
        self.num_windows = tokens.train.num_windows(sequence_length)
        self._stream = tokens.train
        require(
            self.num_windows > 0,
            "data.sequence_length",
            sequence_length,
            f"expected less than {tokens.train.num_tokens}, the number of training tokens",
        )

    def batch(self, step: int) -> NDArray[np.int64]:
        """The batch of ``step``, int64 (batch_size, sequence_length + 1): [:, :-1] are inputs, [:, 1:] labels."""
        return self.rows(step, 0, self.batch_size)

    def rows(self, step: int, start: int, stop: int) -> NDArray[np.int64]:
        """Rows start to stop of the batch of ``step``: what one micro-batch or one data-parallel rank reads."""
        samples = np.arange(start, stop, dtype=np.int64) + step * self.batch_size
        epochs, positions = np.divmod(samples, self.num_windows)
        return self._stream.windows(permute(positions, self.num_windows, self.seed, epochs), self.sequence_length)


def validation_windows(tokens: Tokens, sequence_length: int, num_sequences: int) -> NDArray[np.int64]:
    """Held-out sequences, evenly spaced over the held-out documents: int64 (num_sequences, sequence_length + 1)."""
    num_windows = tokens.validation.num_windows(sequence_length)
    require(
        num_sequences <= num_windows,
        "data.num_validation_sequences",
        num_sequences,
        f"expected at most {num_windows}, as the {tokens.validation.num_documents} held-out documents have "
        f"{tokens.validation.num_tokens} tokens; a larger data.validation_fraction holds out more",
    )
    return tokens.validation.windows(np.arange(num_sequences) * num_windows // num_sequences, sequence_length)
