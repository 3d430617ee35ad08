"""Which tokens a step reads: a pure function of (seed, step), so a run resumes from its step number alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncpp.data.mixture import assign, shares
from asyncpp.data.permutation import permute
from asyncpp.data.tokens import Tokens
from asyncpp.errors import require

SAMPLES_PER_PLAN = 4096


class Batches:
    """Batches of training windows. An epoch of a source shows every window of it once, in an order of its own.

    Sample number n = step * batch_size + row of a run belongs to one source, of which it is number k. It is window
    permute(k mod W) of that source's epoch k // W, where W counts the source's windows. There is no other state: the
    simulator, a stage, a data-parallel rank or a worker reads the rows that it needs, in any order, at any step.

    digest: names the tokens that the sources hold; a run that resumes must find the same.
    """

    def __init__(self, tokens: Tokens, sequence_length: int, batch_size: int, seed: int) -> None:
        self.sequence_length = sequence_length
        self.batch_size = batch_size
        self.seed = seed
        self.digest = tokens.digest
        self.num_windows = [source.train.num_windows(sequence_length) for source in tokens.sources]
        self._streams = [source.train for source in tokens.sources]
        self._weights = [source.weight for source in tokens.sources]
        for source, num_windows in zip(tokens.sources, self.num_windows, strict=True):
            accepted = f"expected less than {source.train.num_tokens}, the training tokens of {source.name}"
            require(num_windows > 0, "data.sequence_length", sequence_length, accepted)
        self._plan = (-1, np.empty(0, np.int64), np.empty(0, np.int64))

    def batch(self, step: int) -> NDArray[np.int64]:
        """The batch of ``step``, int64 (batch_size, sequence_length + 1): [:, :-1] are inputs, [:, 1:] labels."""
        return self.rows(step, 0, self.batch_size)

    def rows(self, step: int, start: int, stop: int) -> NDArray[np.int64]:
        """Rows start to stop of the batch of ``step``."""
        first = step * self.batch_size
        sources, windows = self._windows(first + start, first + stop)
        if len(self._streams) == 1:
            return self._streams[0].windows(windows, self.sequence_length)
        result = np.empty((stop - start, self.sequence_length + 1), np.int64)
        for number, stream in enumerate(self._streams):
            mine = np.flatnonzero(sources == number)
            result[mine] = stream.windows(windows[mine], self.sequence_length)
        return result

    def micro_batch(
        self, step: int, micro_batch: int, num_micro_batches: int, rank: int = 0, num_ranks: int = 1
    ) -> NDArray[np.int64]:
        """What data-parallel rank ``rank`` reads for one of its micro-batches: its part of its part of the batch.

        A rank has the consecutive rows rank * batch_size / num_ranks onwards and cuts them into consecutive
        micro-batches, so all layouts of a batch read the same rows. batch_size must divide evenly.
        """
        num_rows, rest = divmod(self.batch_size, num_ranks * num_micro_batches)
        accepted = f"expected a multiple of {num_ranks} ranks x {num_micro_batches} micro-batches"
        require(rest == 0, "trainer.batch_size", self.batch_size, accepted)
        start = (rank * num_micro_batches + micro_batch) * num_rows
        return self.rows(step, start, start + num_rows)

    def _windows(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Source and window of samples start to stop. A stretch of samples is planned at once and kept."""
        number = start // SAMPLES_PER_PLAN
        begin = number * SAMPLES_PER_PLAN
        if stop > begin + SAMPLES_PER_PLAN:
            return self._planned(np.arange(start, stop))
        plan = self._plan  # once: another thread may be reading elsewhere
        if plan[0] != number:
            plan = self._plan = (number, *self._planned(np.arange(begin, begin + SAMPLES_PER_PLAN)))
        _, sources, windows = plan
        return sources[start - begin : stop - begin], windows[start - begin : stop - begin]

    def _planned(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        sources, numbers = assign(samples, self._weights)
        windows = np.empty_like(numbers)
        for source, num_windows in enumerate(self.num_windows):
            mine = np.flatnonzero(sources == source)
            epochs, positions = np.divmod(numbers[mine], num_windows)
            windows[mine] = permute(positions, num_windows, self.seed, source, epochs)
        return sources, windows


def validation_windows(tokens: Tokens, sequence_length: int, num_sequences: int) -> NDArray[np.int64]:
    """Held-out sequences, always the same: int64 (num_sequences, sequence_length + 1).

    They are evenly spaced over the held-out documents; of a mixture each source gives its share.
    """
    parts = []
    weights = [source.weight for source in tokens.sources]
    for source, share in zip(tokens.sources, shares(num_sequences, weights), strict=True):
        held_out = source.validation
        num_windows = held_out.num_windows(sequence_length)
        accepted = (
            f"{share} of them from {source.name}, whose {held_out.num_documents} held-out documents have only "
            f"{num_windows}; a larger data.validation_fraction holds out more"
        )
        require(share <= num_windows, "data.num_validation_sequences", num_sequences, accepted)
        parts.append(held_out.windows(np.arange(share) * num_windows // share, sequence_length))
    return np.concatenate(parts)
