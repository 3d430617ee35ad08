"""The loader's tokens per second over other ways to the same sequences, in a random order, on one core.

    python benchmarks/loader.py [json=true] [sequence_length=2048 batch_size=16 num_tokens=64e6 num_rounds=7]

over_memmap_copy: a bare loop that copies slices of an np.memmap, the places known beforehand, into uint16.
over_memmap_int64: the same into int64, which a model's embedding wants and what ours gives.
over_datatrove: datatrove's folder dataset behind a shuffling torch DataLoader. over_datasets: a Dataset of sequences of
the library `datasets`, shuffled. A library that is not installed is left out.
open_late_over_open_early: the time to open and read step 10**9 over the time to open and read step 0.
resident_growth_fraction: anonymous memory that opening and reading takes, over the bytes of the tokens.

All in one process on one core, a round of each in turn, in processor time; the fastest rounds are compared.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from asyncpp.data.batches import Batches
from asyncpp.data.config import MixtureConfig
from asyncpp.data.manifest import TOKENIZER_FILE, Manifest, Split, file_sha256
from asyncpp.data.tokens import open_tokens
from asyncpp.data.writer import SplitWriter
from asyncpp.errors import require
from common.command import run_benchmark

VOCAB_SIZE = 49152
SHARD_TOKENS = 2**24


@dataclass
class Options:
    sequence_length: int = 2048
    batch_size: int = 16
    num_tokens: float = 64e6
    num_rounds: int = 7
    json: bool = False


def write_source(root: Path, name: str, num_tokens: int) -> None:
    """A prepared source of random tokens."""
    folder = root / name
    folder.mkdir()
    (folder / TOKENIZER_FILE).write_text("{}")
    random = np.random.default_rng(0)
    splits = {}
    for split in ("train", "validation"):
        writer = SplitWriter(folder, split, np.dtype(np.uint16), SHARD_TOKENS, Split(0, 0, 0, ()))
        for _ in range(num_tokens // 2**20 if split == "train" else 1):
            writer.write(random.integers(0, VOCAB_SIZE, 2**20, dtype=np.uint16))
        splits[split] = writer.finish()
    Manifest(
        recipe={},
        revision="",
        budget_tokens=None,
        source_exhausted=True,
        dtype="uint16",
        vocab_size=VOCAB_SIZE,
        end_of_document=0,
        tokenizer_sha256=file_sha256(folder / TOKENIZER_FILE),
        num_empty_documents=0,
        num_repaired_documents=0,
        splits=splits,
    ).write(folder)


def open_batches(root: Path, name: str, options: Options) -> Batches:
    config = MixtureConfig(name, str(root), None, options.sequence_length, VOCAB_SIZE, 1, False, {name: 1.0})
    return Batches(open_tokens(config), options.sequence_length, options.batch_size, seed=0)


def memmap_copy(root: Path, options: Options, num_steps: int, dtype: type) -> Callable[[], None]:
    """Copies the windows of random places, other ones each round, one by one out of one file of all tokens."""
    tokens = np.memmap(root / "flat" / "all.ds", np.uint16, "r")
    length = options.sequence_length + 1
    num_windows = (len(tokens) - 1) // options.sequence_length
    shape = (num_steps * options.num_rounds, options.batch_size)
    windows = np.random.default_rng(1).integers(0, num_windows, shape)
    batches = iter((windows * options.sequence_length).tolist())

    def read() -> None:
        for places in islice(batches, num_steps):
            batch = np.empty((options.batch_size, length), dtype)
            for row, start in enumerate(places):
                batch[row] = tokens[start : start + length]

    return read


def datatrove_batches(root: Path, options: Options, num_steps: int) -> Callable[[], None]:
    from datatrove.utils.dataset import DatatroveFolderDataset
    from torch.utils.data import DataLoader

    dataset = DatatroveFolderDataset(str(root / "flat"), options.sequence_length, filename_pattern="*.ds")
    loader = DataLoader(dataset, options.batch_size, shuffle=True, drop_last=True)
    return lambda: take(iter(loader), num_steps)


def datasets_batches(root: Path, options: Options, num_steps: int) -> Callable[[], None]:
    import datasets

    length = options.sequence_length + 1
    tokens = np.memmap(root / "flat" / "all.ds", np.uint16, "r")
    rows = tokens[: len(tokens) // length * length].reshape(-1, length)
    features = datasets.Features({"tokens": datasets.List(datasets.Value("uint16"), length=length)})
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"tokens": rows}, features=features).save_to_disk(root / "arrow")
    shuffled = datasets.Dataset.load_from_disk(root / "arrow").shuffle(seed=0).with_format("numpy")
    return lambda: take(shuffled.iter(options.batch_size), num_steps)


def take(iterator: Iterator, count: int) -> None:
    for _ in range(count):
        next(iterator)


def fastest_s(contenders: dict[str, Callable[[], None]], num_rounds: int) -> dict[str, float]:
    """The processor time of each contender's fastest round; their rounds take turns."""
    times_s: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(num_rounds):
        for name, run in contenders.items():
            started_s = time.process_time()
            run()
            times_s[name].append(time.process_time() - started_s)
    return {name: min(times) for name, times in times_s.items()}


def anonymous_bytes() -> int:
    """Memory of this process that is no mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def measure(root: Path, options: Options) -> dict[str, float]:
    num_steps = max(1, 2**22 // (options.batch_size * options.sequence_length))  # four million tokens a round
    write_source(root, "source", int(options.num_tokens))
    open_batches(root, "source", options).batch(0)
    before_bytes = anonymous_bytes()
    batches = open_batches(root, "source", options)
    take(map(batches.batch, range(num_steps)), num_steps)
    growth_bytes = anonymous_bytes() - before_bytes

    (root / "flat").mkdir()
    with (root / "flat" / "all.ds").open("wb") as file:
        for shard in sorted((root / "source").glob("train-*.npy")):
            np.load(shard).tofile(file)
    steps: Iterator[int] = iter(range(10**9))  # no round reads what an earlier one planned
    contenders: dict[str, Callable[[], None]] = {
        "ours": lambda: take((batches.batch(next(steps)) for _ in range(num_steps)), num_steps),
        "memmap_copy": memmap_copy(root, options, num_steps, np.uint16),
        "memmap_int64": memmap_copy(root, options, num_steps, np.int64),
    }
    if importlib.util.find_spec("datatrove"):
        contenders["datatrove"] = datatrove_batches(root, options, num_steps)
    if importlib.util.find_spec("datasets"):
        contenders["datasets"] = datasets_batches(root, options, num_steps)
    times_s = fastest_s(contenders, options.num_rounds)
    opened_s = fastest_s(
        {
            "early": lambda: take((open_batches(root, "source", options).batch(0) for _ in range(20)), 20),
            "late": lambda: take((open_batches(root, "source", options).batch(10**9) for _ in range(20)), 20),
        },
        options.num_rounds,
    )
    tokens_per_round = num_steps * options.batch_size * options.sequence_length
    return {
        **{f"{name}_tokens_per_s": tokens_per_round / duration_s for name, duration_s in times_s.items()},
        **{f"over_{name}": times_s[name] / times_s["ours"] for name in contenders if name != "ours"},
        "open_ms": 1e3 * opened_s["early"] / 20,
        "open_late_over_open_early": opened_s["late"] / opened_s["early"],
        "resident_growth_fraction": growth_bytes / (2 * options.num_tokens),
    }


def measure_on_one_core(options: Options) -> dict[str, float]:
    for name, least in {"sequence_length": 1, "batch_size": 1, "num_tokens": SHARD_TOKENS, "num_rounds": 1}.items():
        value = getattr(options, name)
        require(least <= value < float("inf"), name, value, f"expected {least} or more")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), options)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure_on_one_core))
