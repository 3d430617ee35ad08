"""How far an unfinished preparation has come, so that a later process goes on with the same bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncpp import records
from asyncpp.data.config import SourceConfig
from asyncpp.data.manifest import SPLITS, Split, check_recipe, check_tokenizer, splits_from
from asyncpp.data.sources.base import Cursor
from asyncpp.sealed import seal, unseal

JOURNAL_FILE = "journal.json"


@dataclass(frozen=True)
class Journal:
    """recipe, revision: as in the manifest, with the budget in the recipe. cursor: where the source is read on.

    splits: what is written, of which the last shard of each is not finished.
    """

    recipe: dict[str, Any]
    revision: str
    tokenizer_sha256: str
    cursor: Cursor | None
    num_empty_documents: int
    num_repaired_documents: int
    splits: dict[str, Split]

    @classmethod
    def begin(cls, config: SourceConfig, revision: str, tokenizer_sha256: str) -> Journal:
        """The journal of a preparation that has written nothing."""
        return cls(
            _recipe(config), revision, tokenizer_sha256, None, 0, 0, {name: Split(0, 0, 0, ()) for name in SPLITS}
        )

    @property
    def num_tokens(self) -> int:
        return sum(split.num_tokens for split in self.splits.values())

    def check(self, config: SourceConfig, folder: Path) -> None:
        """ConfigError if ``config`` is not what the preparation in ``folder`` was begun with."""
        check_recipe(_recipe(config), self.recipe, folder)
        check_tokenizer(config, self.tokenizer_sha256, folder)

    def write(self, folder: Path) -> None:
        records.write_atomically(folder / JOURNAL_FILE, seal(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Journal | None:
        """The journal in ``folder``; None if there is none that can be trusted, and one must begin anew."""
        try:
            content = unseal((folder / JOURNAL_FILE).read_bytes())
        except OSError:
            return None
        if content is None:
            return None
        return cls(splits=splits_from(content.pop("splits")), **content)


def _recipe(config: SourceConfig) -> dict[str, Any]:
    return {**config.recipe(), "budget_tokens": config.budget_tokens}
