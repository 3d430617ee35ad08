"""What a source of documents is: an order of documents that can be entered anywhere.

A source yields blocks of documents, each with a cursor: where the next block begins. Reading from a cursor gives the
same documents as reading past it in one go. How documents are cut into blocks changes nothing but speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from asyncpp.data.config import SourceConfig

Cursor = dict[str, Any]
"""A place in a source, as plain JSON values that only the source understands."""

BLOCK_CHARACTERS = 2**19  # enough to keep a thread busy for a tenth of a second, little enough to share out evenly


@dataclass(frozen=True)
class Document:
    """A document's text. repaired: it had characters that are not Unicode, which were replaced."""

    text: str
    repaired: bool = False


@dataclass(frozen=True)
class Block:
    """Consecutive documents. after: the cursor behind the last one. fraction: of the source that lies before it."""

    documents: list[Document]
    after: Cursor
    fraction: float | None


class Source(ABC):
    """The documents that a config names."""

    def __init__(self, config: SourceConfig) -> None:
        self.config = config

    @abstractmethod
    def open(self, revision: str | None) -> str:
        """Fix the version of the documents, before anything else: ``revision``, or the newest if that is None.

        Returns what identifies the version. ConfigError if it is not to be had.
        """

    @abstractmethod
    def documents(self, start: Cursor | None) -> Iterator[Document]:
        """The documents behind ``start``, or all of them, always in the same order."""

    @abstractmethod
    def cursor(self) -> Cursor:
        """The place behind the document that ``documents`` yielded last."""

    @abstractmethod
    def fraction(self) -> float | None:
        """Which part of the source lies before that place, about; None if that is not known."""

    def expected_bytes(self) -> int | None:
        """About how many bytes of text there are; None if that is not known."""
        return None

    def blocks(self, start: Cursor | None) -> Iterator[Block]:
        """The documents behind ``start`` in blocks of about BLOCK_CHARACTERS."""
        block: list[Document] = []
        num_characters = 0
        for document in self.documents(start):
            block.append(document)
            num_characters += len(document.text) + 1
            if num_characters >= BLOCK_CHARACTERS:
                yield Block(block, self.cursor(), self.fraction())
                block, num_characters = [], 0
        if block:
            yield Block(block, self.cursor(), self.fraction())


def decode(raw: bytes) -> tuple[str, bool]:
    """Text of UTF-8 bytes, and whether bytes that are not UTF-8 had to become U+FFFD."""
    try:
        return raw.decode(), False
    except UnicodeDecodeError:
        return raw.decode(errors="replace"), True


def repair(text: str) -> tuple[str, bool]:
    """``text`` with lone surrogates, which JSON can express and UTF-8 cannot, as U+FFFD; and whether it had any."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), True
    return text, False
