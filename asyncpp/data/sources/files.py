"""Documents in local files: parquet and JSON lines with a text column, and plain text, one document a file."""

from __future__ import annotations

import gzip
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar

from asyncpp.data.config import LocalConfig
from asyncpp.data.sources.base import Cursor, Document, Source, decode, repair
from asyncpp.errors import ConfigError, require

ROWS_PER_BATCH = 1024


class Reader(ABC):
    """Reads the documents of one kind of file."""

    text_expansion: ClassVar[float] = 1.0  # bytes of text for a byte of the file, about

    def __init__(self, path: Path, text_column: str) -> None:
        self.path = path
        self.text_column = text_column
        self.end = int(path.stat().st_size * self.text_expansion)  # the position at the end of the file, about

    @abstractmethod
    def documents(self, position: int) -> Iterator[tuple[Document, int]]:
        """The documents from ``position`` on, each with the position behind it; a file begins at 0."""

    def _missing_column(self, columns: list[str]) -> ConfigError:
        accepted = f"{self.path} has the columns {', '.join(columns)}"
        return ConfigError("data.text_column", self.text_column, accepted)

    def _damaged(self, what: str) -> ConfigError:
        return ConfigError("data.path", self.path, what)


class ParquetReader(Reader):
    """A document a row; positions count rows."""

    text_expansion = 2.0  # FineWeb's files

    def documents(self, position: int) -> Iterator[tuple[Document, int]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path) as file:
                if self.text_column not in file.schema_arrow.names:
                    raise self._missing_column(file.schema_arrow.names)
                self.end = file.metadata.num_rows
                first_row = 0
                for group in range(file.num_row_groups):
                    next_row = first_row + file.metadata.row_group(group).num_rows
                    if position < next_row:
                        yield from self._group(file, group, first_row, position, pa.large_binary())
                    first_row = next_row
        except pa.ArrowException as error:
            raise self._damaged(f"expected a readable parquet file ({str(error).splitlines()[0]})") from None

    def _group(self, file, group: int, row: int, position: int, binary) -> Iterator[tuple[Document, int]]:
        for batch in file.iter_batches(ROWS_PER_BATCH, row_groups=[group], columns=[self.text_column]):
            skipped = max(position - row, 0)
            row += min(skipped, batch.num_rows)
            # As bytes, because Arrow does not check that a string is UTF-8.
            for raw in batch.column(0).slice(skipped).cast(binary).to_pylist():
                row += 1
                yield Document(*decode(raw or b"")), row


class JsonLinesReader(Reader):
    """A document a line; positions count bytes, of the text before compression."""

    def open(self) -> BinaryIO:
        return self.path.open("rb")

    def documents(self, position: int) -> Iterator[tuple[Document, int]]:
        with self.open() as file:
            file.seek(position)
            try:
                for line in file:
                    start, position = position, position + len(line)
                    if line.strip():
                        yield self._document(line, start), position
            except (EOFError, gzip.BadGzipFile) as error:
                raise self._damaged(f"expected a whole gzip file ({error})") from None

    def _document(self, line: bytes, start: int) -> Document:
        text, replaced = decode(line)
        try:
            row = json.loads(text)
        except ValueError as error:
            raise self._damaged(f"expected one JSON object a line; byte {start}: {error}") from None
        if not isinstance(row, dict):
            raise self._damaged(f"expected one JSON object a line; byte {start} begins a {type(row).__name__}")
        if self.text_column not in row:
            raise self._missing_column(list(row))
        value = row[self.text_column]
        if not isinstance(value, str | None):
            raise self._damaged(f"expected text in {self.text_column}; byte {start} has a {type(value).__name__}")
        text, unpaired = repair(value or "")
        return Document(text, replaced or unpaired)


class GzipJsonLinesReader(JsonLinesReader):
    text_expansion = 2.5

    def open(self) -> BinaryIO:
        return gzip.open(self.path, "rb")  # type: ignore[return-value]  # a BinaryIO in all but name


class TextReader(Reader):
    """The file is one document."""

    def documents(self, position: int) -> Iterator[tuple[Document, int]]:
        self.end = 1
        if position == 0:
            yield Document(*decode(self.path.read_bytes())), 1


READERS: dict[str, type[Reader]] = {
    ".parquet": ParquetReader,
    ".jsonl": JsonLinesReader,
    ".jsonl.gz": GzipJsonLinesReader,
    ".txt": TextReader,
}


class FileSource(Source):
    """All files of known kinds at ``data.path``, in the order of their names."""

    config: LocalConfig

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config)
        self._files: list[Path] = []
        self._sizes: list[int] = []
        self._file, self._position, self._end = 0, 0, 1

    def open(self, revision: str | None) -> str:
        path = self.config.path
        accepted = f"expected a file or folder with {', '.join(READERS)}"
        if path is None:
            raise ConfigError("data.path", "null", accepted)
        root = Path(path)
        require(root.exists(), "data.path", path, f"no such file or folder; {accepted}")
        found = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
        self._files = [file for file in found if file.name.endswith(tuple(READERS))]
        self._sizes = [file.stat().st_size for file in self._files]
        require(bool(self._files), "data.path", path, f"{accepted}; found {len(found)} files of other kinds")
        current = fingerprint(root.parent if root.is_file() else root, self._files)
        require(revision in (None, current), "data.path", path, changed(self.config.folder))
        return current

    def documents(self, start: Cursor | None) -> Iterator[Document]:
        first, position = (start["file"], start["position"]) if start else (0, 0)
        for number, path in enumerate(self._files[first:], first):
            self._file = number
            try:
                reader = _reader_type(path)(path, self.config.text_column)
                for document, self._position in reader.documents(position):
                    self._end = reader.end
                    yield document
            except OSError as error:
                raise ConfigError("data.path", path, f"cannot be read ({error.strerror or error})") from None
            position = 0

    def cursor(self) -> Cursor:
        return {"file": self._file, "position": self._position}

    def fraction(self) -> float:
        within = self._sizes[self._file] * min(self._position / max(self._end, 1), 1.0)
        return (sum(self._sizes[: self._file]) + within) / max(sum(self._sizes), 1)

    def expected_bytes(self) -> int:
        sizes = zip(self._files, self._sizes, strict=True)
        return int(sum(size * _reader_type(path).text_expansion for path, size in sizes))


def fingerprint(folder: Path, files: list[Path]) -> str:
    """A hash of the names and sizes of ``files`` below ``folder``."""
    listing = [(file.relative_to(folder).as_posix(), file.stat().st_size) for file in files]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()


def changed(prepared: Path) -> str:
    """Says that the files are not those that ``prepared`` was made of."""
    return f"{prepared} was prepared from other files; give another data.root or data.name, or remove it"


def _reader_type(path: Path) -> type[Reader]:
    return next(reader for suffix, reader in READERS.items() if path.name.endswith(suffix))
