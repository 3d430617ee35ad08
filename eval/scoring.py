"""Log-likelihoods of continuations, where requests that share a context share its computation.

The choices of one item have the same context: HellaSwag's four endings are a third of the tokens of four whole texts.
Such requests become one row, the context followed by every continuation, in which a continuation sees the context and
itself only, at the positions that it would have alone:

    tokens      c c c c  a a a  b b  d        the last token of a continuation is only predicted, never read
    positions   0 1 2 3  4 5 6  4 5  4
    branches    0 0 0 0  1 1 1  2 2  3        a token sees what stands before it in branch 0 and in its own

A choice of one token needs no token of its own. Only rows of the hidden state that predict something go to the output
head. Scores do not depend on what else is in a batch but for rounding.
Shapes: B rows, S tokens, D hidden_size, R predicting positions, T scored tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from asyncpp.errors import ConfigError
from asyncpp.model.llama import Decoder

AUTO_TOKENS = {"cpu": 2**12, "cuda": 2**16}  # of a batch: enough to keep the device busy, padding and memory small
LOGITS_AT_ONCE = 2**25  # numbers: 128 MiB in fp32

Pair = tuple[Sequence[int], Sequence[int]]  # context and continuation


@dataclass
class Row:
    """A context, at least one token long, and its continuations, each with the number of its request."""

    context: tuple[int, ...]
    continuations: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    num_tokens: int = 0

    def __post_init__(self) -> None:
        self.num_tokens = len(self.context)

    def add(self, request: int, continuation: Sequence[int]) -> None:
        self.continuations.append((request, continuation))
        self.num_tokens += num_read(continuation)


def num_read(continuation: Sequence[int]) -> int:
    """The tokens of a continuation that the model reads: all but the last."""
    return max(len(continuation) - 1, 0)


def rows_of(pairs: Sequence[Pair], max_length: int) -> list[Row]:
    """The requests as rows of at most ``max_length`` tokens, longest first.

    A context is cut on its left to leave room for its continuation; requests share a row if what is left is the same.
    Raises ConfigError for a continuation that has no room for one token before it.
    """
    rows: list[Row] = []
    open_rows: dict[tuple[int, ...], Row] = {}
    for request, (context, continuation) in enumerate(pairs):
        num_kept = max_length - num_read(continuation)
        if num_kept < 1:
            accepted = f"expected {num_read(continuation) + 1} or more: a continuation has {len(continuation)} tokens"
            raise ConfigError("max_length", max_length, accepted)
        kept = tuple(context[-num_kept:])
        row = open_rows.get(kept)
        if row is None or row.num_tokens + num_read(continuation) > max_length:
            row = open_rows[kept] = Row(kept)
            rows.append(row)
        row.add(request, continuation)
    return sorted(rows, key=lambda row: -row.num_tokens)


@dataclass(frozen=True)
class Batch:
    """Rows as arrays. predicting (R): places in the flattened (B S) that predict a scored token.

    scored_from (T): the number of the predicting place of each scored token; targets (T); requests (T).
    branches is None where every token sees all that stands before it.
    """

    tokens: Tensor
    positions: Tensor
    branches: Tensor | None
    predicting: Tensor
    scored_from: Tensor
    targets: Tensor
    requests: np.ndarray


def collate(rows: Sequence[Row]) -> Batch:
    """Pad on the right: nothing sees what stands behind it. Rows must be sorted, the longest first."""
    length = rows[0].num_tokens
    tokens = np.zeros((len(rows), length), np.int64)
    positions, branches = np.zeros_like(tokens), np.zeros_like(tokens)
    predicting: list[int] = []
    scored_from: list[int] = []
    targets: list[int] = []
    requests: list[int] = []
    for index, row in enumerate(rows):
        end = len(row.context)
        tokens[index, :end] = row.context
        positions[index, :end] = np.arange(end)
        after_context = len(predicting)
        predicting.append(index * length + end - 1)
        for branch, (request, continuation) in enumerate(row.continuations, start=1):
            read = slice(end, end := end + num_read(continuation))
            tokens[index, read] = continuation[:-1]
            positions[index, read] = len(row.context) + np.arange(num_read(continuation))
            branches[index, read] = branch
            inner = range(len(predicting), len(predicting) + num_read(continuation))
            scored_from += [after_context, *inner] if continuation else []
            predicting += range(index * length + read.start, index * length + read.stop)
            targets += continuation
            requests += [request] * len(continuation)
    # a single branch goes on as if it were its context
    as_tensor = partial(torch.tensor, dtype=torch.int64)
    shared = any(sum(num_read(continuation) > 0 for _, continuation in row.continuations) > 1 for row in rows)
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.from_numpy(branches) if shared else None,
        as_tensor(predicting),
        as_tensor(scored_from),
        as_tensor(targets),
        np.array(requests, np.int64),
    )


class Scorer:
    """Scores with a whole model that holds its weights. batch_size: rows of a forward; None: as AUTO_TOKENS says."""

    def __init__(self, model: Decoder, vocab_size: int, max_length: int, batch_size: int | None = None) -> None:
        self.model = model
        self.max_length = max_length
        self.batch_size = batch_size
        weight = next(model.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.rows_of_logits = max(1, LOGITS_AT_ONCE // vocab_size)

    @torch.inference_mode()
    def score(
        self, pairs: Sequence[Pair], advance: Callable[[int], object] = lambda _: None
    ) -> list[tuple[float, bool]]:
        """For each pair the log-probability in nats of the continuation, and whether greedy decoding would give it.

        Contexts have at least one token. advance: told how many requests every batch has done.
        """
        sums, misses = np.zeros(len(pairs)), np.zeros(len(pairs), np.int64)
        for rows in self._batches(rows_of(pairs, self.max_length)):
            batch = collate(rows)
            logprobs, is_best = self._token_scores(batch)
            sums += np.bincount(batch.requests, logprobs, len(pairs))
            misses += np.bincount(batch.requests, ~is_best, len(pairs)).astype(np.int64)
            advance(sum(len(row.continuations) for row in rows))
        return [(float(score), bool(missed == 0)) for score, missed in zip(sums, misses, strict=True)]

    @torch.inference_mode()
    def next_tokens(self, contexts: Sequence[Sequence[int]]) -> list[int]:
        """The likeliest token after each context, of which the last ``max_length`` tokens are read."""
        rows = [Row(tuple(context[-self.max_length :])) for context in contexts]
        order = sorted(range(len(rows)), key=lambda index: -rows[index].num_tokens)
        batch = collate([rows[index] for index in order])
        best = self._logits(self._hidden(batch)[batch.predicting.to(self.device)]).argmax(-1).tolist()
        return [token for _, token in sorted(zip(order, best, strict=True))]

    def _logits(self, hidden: Tensor) -> Tensor:
        """(R, D) to logits (R, vocab_size), in fp32 at least."""
        assert self.model.norm is not None and self.model.head is not None
        logits = self.model.head(self.model.norm(hidden))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _batches(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        start = 0
        while start < len(rows):
            budget = AUTO_TOKENS.get(self.device.type, AUTO_TOKENS["cuda"])
            size = self.batch_size or max(1, budget // rows[start].num_tokens)
            yield rows[start : start + size]
            start += size

    def _token_scores(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Of every scored token, (T,): its log-probability, and whether no other token is likelier."""
        hidden = self._hidden(batch)[batch.predicting.to(self.device)]
        scored_from, targets = batch.scored_from.to(self.device), batch.targets.to(self.device)
        logprobs = torch.empty(len(targets), dtype=torch.promote_types(self.dtype, torch.float32), device=self.device)
        is_best = torch.empty(len(targets), dtype=torch.bool, device=self.device)
        for start in range(0, len(hidden), self.rows_of_logits):
            logits = self._logits(hidden[start : start + self.rows_of_logits])
            here = (scored_from >= start) & (scored_from < start + len(logits))
            row, target = scored_from[here] - start, targets[here]
            logprobs[here] = logits[row, target] - logits.logsumexp(-1)[row]
            is_best[here] = logits.argmax(-1)[row] == target
        return logprobs.double().cpu().numpy(), is_best.cpu().numpy()

    def _hidden(self, batch: Batch) -> Tensor:
        """The stream after the last layer, (B S, D)."""
        model, device = self.model, self.device
        assert model.embedding is not None
        tables = model.rotary.tables(self.max_length, device, self.dtype)
        positions = batch.positions.to(device)
        mask = None if batch.branches is None else _mask(batch.branches.to(device), self.dtype)
        rotary = (tables[0][positions].unsqueeze(1), tables[1][positions].unsqueeze(1))  # (B, 1, S, head_dim)
        hidden = model.embedding(batch.tokens.to(device))
        for layer in model.layers.values():
            hidden = layer(hidden, rotary, mask, None)
        return hidden.flatten(0, 1)


def _mask(branches: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of a query for each key, (B, S) to (B, 1, S, S): 0 or -inf."""
    own = (branches.unsqueeze(1) == 0) | (branches.unsqueeze(1) == branches.unsqueeze(2))
    seen = own.tril().unsqueeze(1)
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)
