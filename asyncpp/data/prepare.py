"""Text to tokens, once: documents -> token ids with an end -> shards of a fixed size and a manifest.

    python -m asyncpp.data.prepare data=fineweb_edu data.budget_tokens=7.2e9
    python -m asyncpp.data.prepare data=local data.path=<file or folder> data.name=mine

    num_workers=<threads>   json=true

It can be broken off at any moment and run again: it goes on, and the files come out the same byte for byte.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from hydra.utils import get_class

from asyncpp.data.config import DataConfig, MixtureConfig, SourceConfig
from asyncpp.data.journal import Journal
from asyncpp.data.manifest import MANIFEST_FILE, TOKENIZER_FILE, Manifest, file_sha256
from asyncpp.data.options import Options, print_json, run_data_command
from asyncpp.data.sources.base import Source
from asyncpp.data.status import Report, Status, display, silent
from asyncpp.data.verify import verify
from asyncpp.errors import EXIT_DONE, ConfigError, require

BYTES_PER_TOKEN = 3.0  # of text, to foresee a size: English has 3.6 with 2,048 entries, 4.5 with 49,152


def prepare(config: DataConfig, report: Report = silent, num_workers: int | None = None) -> None:
    """Prepare the tokens of ``config`` unless they are there. A second process that asks meanwhile waits.

    The folder of the tokens appears complete or not at all. num_workers: threads; None takes every core.
    ConfigError if the source, the tokenizer or the place cannot be used, or the tokens were made otherwise.
    """
    if isinstance(config, MixtureConfig):
        for name in config.weights:
            Manifest.read(config.folder_of(name))
        return
    if not isinstance(config, SourceConfig):
        raise TypeError(f"{type(config).__name__} is neither a source nor a mixture")
    if not config.folder.exists():
        preparation = _Preparation(config, report)
        preparation.check()
        with _locked(config, report):
            if not config.folder.exists():
                preparation.run(num_workers or len(os.sched_getaffinity(0)))
    manifest = Manifest.read(config.folder)
    manifest.check(config)
    if config.path is not None:
        _source(config).open(manifest.revision)


class _Preparation:
    """One attempt to prepare a source, in a folder of its own beside the final one."""

    def __init__(self, config: SourceConfig, report: Report) -> None:
        self.config = config
        self.report = report
        self.source = _source(config)
        self.folder = config.folder_of(f".{config.name}.partial")

    def check(self) -> None:
        """ConfigError for what can be seen before anything is created."""
        from asyncpp.data.tokenizer import find_tokenizer

        journal = self._journal()
        self.source.open(None if journal is None else journal.revision)
        if journal is None:
            find_tokenizer(self.config)
        self._check_space()

    def run(self, num_workers: int) -> None:
        """Begin, or go on, and finish."""
        from asyncpp.data.tokenize import Tokenization

        try:
            if not (self.folder / MANIFEST_FILE).exists():  # else an attempt was killed just before its last act
                journal = self._resume() or self._begin()
                tokenization = Tokenization(self.config, self.folder, journal, self.report)
                tokenization.run(self.source, num_workers).write(self.folder)
            self._remove_leftovers()
            self.folder.rename(self.config.folder)
        except OSError as error:
            accepted = f"{error.strerror or error}; what is done is kept, and running it again goes on from there"
            raise ConfigError("data.root", self.config.root, accepted) from error

    def _journal(self) -> Journal | None:
        """The journal of an earlier attempt with the same settings; None if there is nothing to go on from."""
        journal = Journal.read(self.folder)
        if journal is None or journal.cursor is None:
            return None
        journal.check(self.config, self.folder)
        return journal

    def _resume(self) -> Journal | None:
        """That journal, with the source open at its revision."""
        journal = self._journal()
        if journal is not None:
            self.source.open(journal.revision)
        return journal

    def _begin(self) -> Journal:
        """A folder with the tokenizer and the first journal in it."""
        from asyncpp.data.tokenizer import find_tokenizer, train_on_source

        revision = self.source.open(None)
        original = find_tokenizer(self.config)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        path = self.folder / TOKENIZER_FILE
        if original is None:
            self.report(Status(f"{self.config.name}: training a tokenizer of {self.config.vocab_size} entries"))
            tokenizer = train_on_source(self.config, self.source)
            path.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")  # its own save raises no OSError
        else:
            shutil.copyfile(original, path)
        journal = Journal.begin(self.config, revision, file_sha256(path))
        journal.write(self.folder)
        return journal

    def _remove_leftovers(self) -> None:
        """The journal, and half-written files of attempts that were killed."""
        kept = Manifest.read(self.folder).file_names()
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink()

    def _check_space(self) -> None:
        expected = self._expected_tokens()
        if expected is None:
            return
        needed = expected * (2 if self.config.vocab_size <= 2**16 else 4)
        needed -= sum(file.stat().st_size for file in self.folder.glob("*.npy"))
        place = Path(self.config.root).absolute()
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        accepted = (
            f"about {expected:.2g} tokens need {_size(needed)}, and {_size(free)} are free; "
            "give another folder or a smaller data.budget_tokens"
        )
        require(needed <= free, "data.root", self.config.root, accepted)

    def _expected_tokens(self) -> float | None:
        """How many tokens there will be, about; None if nothing tells."""
        num_bytes = self.source.expected_bytes()
        of_source = None if num_bytes is None else num_bytes / BYTES_PER_TOKEN
        of_config = self.config.expected_tokens()
        of_config = None if of_config is None else of_config / (1.0 - self.config.validation_fraction)
        return min((known for known in (of_source, of_config) if known is not None), default=None)


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"


def _source(config: SourceConfig) -> Source:
    return get_class(config.source)(config)


@contextmanager
def _locked(config: SourceConfig, report: Report) -> Iterator[None]:
    """Hold the lock of the folder of ``config``; a process that dies lets it go."""
    try:
        Path(config.root).mkdir(parents=True, exist_ok=True)
        file = config.folder_of(f".{config.name}.lock").open("w")
    except OSError as error:
        raise ConfigError("data.root", config.root, f"expected a writable folder ({error.strerror})") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(Status(f"{config.name}: waiting for the process that prepares it"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _command(config: DataConfig, options: Options) -> int:
    with display() as report:
        prepare(config, report, options["num_workers"])
    sources = list(config.weights) if isinstance(config, MixtureConfig) else [config.name]
    manifests = {name: Manifest.read(config.folder_of(name)) for name in sources}
    for name, manifest in manifests.items():
        verify(config.folder_of(name), manifest)
    if options["json"]:
        print_json({name: {"folder": str(config.folder_of(name)), **asdict(manifests[name])} for name in sources})
    else:
        for name, manifest in manifests.items():
            print(f"{config.folder_of(name)}: {manifest.summary()}")
    return EXIT_DONE


def main() -> int:
    return run_data_command("prepare", __doc__ or "", {"num_workers": int, "json": bool}, _command)


if __name__ == "__main__":
    sys.exit(main())
