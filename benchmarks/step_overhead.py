"""What the framework adds to a training step: the program's step over a hand-written loop's, same model and batches.

    python benchmarks/step_overhead.py [json=true] [num_steps=60]

Both sides run in one process on one thread, a step of each in turn, and their lower quartiles are compared, so that
whatever else the machine does falls on both alike.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from asyncpp.config import from_hydra
from asyncpp.data.batches import Batches
from asyncpp.data.prepare import prepare
from asyncpp.data.tokens import open_tokens
from asyncpp.errors import require
from asyncpp.hydra_command import compose_overrides
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos
from asyncpp.model.llama import build
from asyncpp.trainer.progress import LineProgress
from asyncpp.trainer.setup import build_simulator
from asyncpp.trainer.sinks import Sinks
from common.command import run_benchmark


@dataclass
class Options:
    num_steps: int = 60
    json: bool = False


def plain_step(config, batches: Batches) -> Callable[[int], None]:
    """A step as one writes it by hand: torch's fused AdamW and torch's clipping."""
    model = build(config.model).to_empty(device="cpu")
    names = [info.name for info in parameter_infos(config.model)]
    model.load_state_dict(dict(zip(names, initial_weights(config.model, config.seed), strict=True)))
    rule = config.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rule.lr, betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay, fused=True
    )

    def step(number: int) -> None:
        windows = torch.from_numpy(batches.batch(number))
        optimizer.zero_grad()
        loss = model(windows[:, :-1], windows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


def framework_step(config, batches: Batches, sinks: Sinks) -> Callable[[int], None]:
    simulator = build_simulator(config)

    def step(number: int) -> None:
        record = simulator.train_batch(number, torch.from_numpy(batches.batch(number)), 1.0)
        sinks.step(number, record, lr=config.optimizer.lr)

    return step


def measure_steps(folder: Path, num_steps: int) -> dict[str, float]:
    """Lower quartile of a step in ms for each contender, and the ratio of each to the hand-written loop."""
    torch.set_num_threads(1)
    conditions = {"sync": ["delay=sync"], "one_step": [], "one_step_ef": ["correction=ef"]}
    configs = {name: from_hydra(compose_overrides(overrides)) for name, overrides in conditions.items()}
    config = configs["sync"]
    prepare(config.data)
    batches = Batches(open_tokens(config.data), config.data.sequence_length, config.trainer.batch_size, config.seed)
    progress = LineProgress("benchmark", num_steps=10**9, tokens_per_step=1)
    with Sinks(folder, progress, tokens_per_step=1, metrics_bytes=0) as sinks:
        contenders = {"plain": plain_step(config, batches)}
        contenders |= {name: framework_step(configs[name], batches, sinks) for name in conditions}
        times_ms: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(num_steps):
            names = list(contenders)
            for name in names[number % len(names) :] + names[: number % len(names)]:  # nobody always goes first
                started_s = time.perf_counter()
                contenders[name](number)
                times_ms[name].append(1e3 * (time.perf_counter() - started_s))
    quartiles = {name: float(np.percentile(times[5:], 25)) for name, times in times_ms.items()}
    ratios = {f"{name}_over_plain": quartiles[name] / quartiles["plain"] for name in conditions}
    return {f"{name}_ms": value for name, value in quartiles.items()} | ratios


def measure(options: Options) -> dict[str, float]:
    require(options.num_steps >= 6, "num_steps", options.num_steps, "expected 6 or more: the first five warm up")
    with tempfile.TemporaryDirectory() as folder:
        return measure_steps(Path(folder), options.num_steps)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
