"""From documents to shards: the part of a preparation that takes the time, broken off and taken up at any block."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from asyncpp.data.config import SourceConfig
from asyncpp.data.encode import EncodedDocument, Encoder
from asyncpp.data.journal import Journal
from asyncpp.data.manifest import TOKENIZER_FILE, Manifest
from asyncpp.data.sources.base import Block, Cursor, Source
from asyncpp.data.status import Report, Status
from asyncpp.data.tokenizer import end_of_document_id, read_tokenizer
from asyncpp.data.writer import SplitWriter

SAVE_EVERY_S = 5.0  # of work: what a kill can cost
REPORT_EVERY_S = 0.1


class Tokenization:
    """Writes the documents behind a journal to its folder, and keeps the journal.

    journal: what is on the disk, for certain; the writers are ahead of it.
    """

    def __init__(self, config: SourceConfig, folder: Path, journal: Journal, report: Report) -> None:
        self.config = config
        self.folder = folder
        self.journal = journal
        tokenizer = read_tokenizer(folder / TOKENIZER_FILE)
        self.vocab_size = tokenizer.get_vocab_size()
        self.end_of_document = end_of_document_id(tokenizer, config.tokenizer.end_of_document)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)
        self._encoder = Encoder(tokenizer, self.end_of_document, self.dtype, config.validation_fraction)
        self._num_empty = journal.num_empty_documents
        self._num_repaired = journal.num_repaired_documents
        self._writers: dict[str, SplitWriter] = {}
        self._pace = _Pace(config, self.journal.num_tokens, report)

    def run(self, source: Source, num_workers: int) -> Manifest:
        """Read ``source`` to its end or to the budget. The manifest of everything written since the beginning."""
        with ExitStack() as stack:
            for name, split in self.journal.splits.items():
                writer = SplitWriter(self.folder, name, self.dtype, self.config.shard_tokens, split)
                self._writers[name] = stack.enter_context(closing(writer))
            budget_reached = self._write_documents(source, num_workers)
            splits = {name: writer.finish() for name, writer in self._writers.items()}
        budget = self.config.budget_tokens
        return Manifest(
            recipe=self.config.recipe(),
            revision=self.journal.revision,
            budget_tokens=None if budget is None else int(budget),
            source_exhausted=not budget_reached,
            dtype=self.dtype.name,
            vocab_size=self.vocab_size,
            end_of_document=self.end_of_document,
            tokenizer_sha256=self.journal.tokenizer_sha256,
            num_empty_documents=self._num_empty,
            num_repaired_documents=self._num_repaired,
            splits=splits,
        )

    def _write_documents(self, source: Source, num_workers: int) -> bool:
        """Whether the budget was reached; otherwise the source has ended."""
        saved_s = time.monotonic()
        blocks = source.blocks(self.journal.cursor)
        with closing(self._encoder.encode_blocks(blocks, num_workers)) as encoded_blocks:
            for block, documents in encoded_blocks:
                if self._write_block(block, documents):
                    return True
                self._pace.report(self._num_tokens, block.fraction)
                if time.monotonic() - saved_s >= SAVE_EVERY_S:
                    self._save(block.after)
                    saved_s = time.monotonic()
        return False

    def _write_block(self, block: Block, encoded: list[EncodedDocument]) -> bool:
        """Write documents until the budget is reached, and whether it was."""
        budget = self.config.budget_tokens or math.inf
        for document, result in zip(block.documents, encoded, strict=True):
            self._num_repaired += document.repaired
            if len(result.tokens):
                self._writers["validation" if result.held_out else "train"].write(result.tokens)
            else:
                self._num_empty += 1
            if self._writers["train"].num_tokens >= budget:
                return True
        return False

    @property
    def _num_tokens(self) -> int:
        return sum(writer.num_tokens for writer in self._writers.values())

    def _save(self, cursor: Cursor) -> None:
        self.journal = replace(
            self.journal,
            cursor=cursor,
            num_empty_documents=self._num_empty,
            num_repaired_documents=self._num_repaired,
            splits={name: writer.save() for name, writer in self._writers.items()},
        )
        self.journal.write(self.folder)


class _Pace:
    """Turns counts into reports, a few a second. Tokens of an earlier attempt don't count as speed."""

    def __init__(self, config: SourceConfig, num_tokens: int, report: Report) -> None:
        self._activity = f"{config.name}: tokenizing"
        self._expected = config.expected_tokens()
        self._report = report
        self._first_tokens = num_tokens
        self._started_s = time.monotonic()
        self._reported_s = -math.inf

    def report(self, num_tokens: int, fraction_of_source: float | None) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s < REPORT_EVERY_S:
            return
        self._reported_s = now_s
        speed = (num_tokens - self._first_tokens) / (now_s - self._started_s)
        of_budget = num_tokens / self._expected if self._expected else 0.0
        fraction = max(of_budget, fraction_of_source or 0.0)
        total = num_tokens / fraction if fraction else None
        self._report(
            Status(
                self._activity,
                num_tokens=num_tokens,
                tokens_per_s=speed,
                fraction=fraction or None,
                left_s=(total - num_tokens) / speed if total else None,
            )
        )
