"""Documents to token ids, on as many threads as there are cores: the tokenizer works outside Python's lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from asyncpp.data.sources.base import Block
from asyncpp.data.split import is_held_out

PIECE_CHARACTERS = 2**20


@dataclass(frozen=True)
class EncodedDocument:
    """tokens: with the end-of-document token, or empty if the text gave none."""

    tokens: NDArray[np.unsignedinteger]
    held_out: bool


@dataclass(frozen=True)
class Encoder:
    """How a document becomes tokens: its ids and then ``end_of_document``, as ``dtype``; and whether it is held out."""

    tokenizer: Tokenizer
    end_of_document: int
    dtype: np.dtype
    validation_fraction: float

    def encode_block(self, block: Block) -> list[EncodedDocument]:
        texts = [document.text for document in block.documents]
        if max(map(len, texts)) <= PIECE_CHARACTERS:
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            return [self._document(text, encoding.ids) for text, encoding in zip(texts, encodings, strict=True)]
        return [self._long_document(text) for text in texts]

    def encode_blocks(
        self, blocks: Iterable[Block], num_workers: int
    ) -> Generator[tuple[Block, list[EncodedDocument]]]:
        """Every block with its encoded documents, in order. A few blocks are read ahead."""
        pending: deque[tuple[Block, Future[list[EncodedDocument]]]] = deque()
        with _one_thread_a_call(), ThreadPoolExecutor(num_workers) as workers:
            for block in blocks:
                pending.append((block, workers.submit(self.encode_block, block)))
                if len(pending) > 2 * num_workers:
                    first, encoded = pending.popleft()
                    yield first, encoded.result()
            while pending:
                first, encoded = pending.popleft()
                yield first, encoded.result()

    def _document(self, text: str, ids: list[int]) -> EncodedDocument:
        tokens = np.array([*ids, self.end_of_document] if ids else [], self.dtype)
        return EncodedDocument(tokens, is_held_out(text, self.validation_fraction))

    def _long_document(self, text: str) -> EncodedDocument:
        """A text of any length, a piece at a time: an encoding takes a hundred times the memory of its tokens."""
        encoded = []
        for piece in pieces(text, PIECE_CHARACTERS):
            (encoding,) = self.tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            encoded.append(np.array(encoding.ids, self.dtype))
        if any(map(len, encoded)):
            encoded.append(np.array([self.end_of_document], self.dtype))
        return EncodedDocument(np.concatenate(encoded), is_held_out(text, self.validation_fraction))


def pieces(text: str, size: int) -> Iterator[str]:
    """Cut ``text`` into pieces of at most ``size`` characters, before the space in front of a word where there is one.

    A byte-level tokenizer keeps that space with the word, and apart from what stands before it, so such a cut changes
    no token.
    """
    start = 0
    while len(text) - start > size:
        cut = start + size
        while (cut := text.rfind(" ", start + 1, cut)) > 0:
            if not text[cut + 1].isspace():
                break
        else:
            cut = start + size
        yield text[start:cut]
        start = cut
    yield text[start:]


@contextmanager
def _one_thread_a_call() -> Iterator[None]:
    """The tokenizer's own threads off: whole blocks in parallel take less time and exactly the cores they are given."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
