"""What only a GPU can show, in one go: 2BW over NCCL, bf16, torch.compile, memory against the plan, pinned prefetch.

    python benchmarks/gpu_check.py [json=true] [device=cuda] [hardware=h100] [model=135m] [num_steps=12]

As many stages as there are GPUs. NCCL takes one rank a device, so where there is one GPU, 2BW runs with one stage.
Every variant trains beside its simulator, which is on one GPU: losses of all steps may differ by PARITY, relatively;
peaks of allocated memory from the plan's by 5 %. Exit code 1 where something does not hold, 2 without a GPU.
device=cpu rehearses the script, without memory and prefetch.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from asyncpp.config import Config
from asyncpp.data.prefetch import Prefetcher
from asyncpp.errors import check_option, require
from asyncpp.hydra_command import compose_overrides
from asyncpp.pipeline.mesh import Mesh, Position
from asyncpp.plan import from_hydra as plan_of
from asyncpp.planner.stages import cut
from asyncpp.trainer.compiling import compile_ahead
from asyncpp.trainer.setup import build_simulator, prepare_torch
from common.command import run_benchmark
from common.ranks import config_of, on_ranks, runtime_of, tokens

PARITY = {"float32": 1e-4, "bf16_autocast": 2e-2}
MEMORY_TOLERANCE = 0.05
NUM_FILLING = 4  # steps until every buffer is there
START_S = 1800.0  # torch.compile takes minutes
BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}


@dataclass
class Options:
    """hardware: an option of conf/hardware, for the plan."""

    device: str = "cuda"
    hardware: str = "h100"
    model: str = "135m"
    num_steps: int = 12
    json: bool = False


@dataclass
class Trained:
    """losses: of every step, empty but on the first rank. step_ms: the median. peak_bytes: None on a CPU."""

    losses: list[float]
    step_ms: float
    peak_bytes: int | None


def overrides_of(options: Options, num_stages: int, precision: str, is_compiled: bool) -> list[str]:
    small = options.device == "cpu"
    return [
        f"model={options.model}",
        f"pipeline.num_stages={num_stages}",
        f"pipeline.timeout_s={START_S}",
        f"data.sequence_length={64 if small else 1024}",
        f"trainer.num_steps={options.num_steps}",
        f"trainer.num_micro_batches={2 * num_stages}",
        f"trainer.batch_size={2 * num_stages * (1 if small else 4)}",
        f"trainer.device={options.device}",
        f"trainer.autocast={'bfloat16' if precision == 'bf16_autocast' else 'null'}",
        f"trainer.compile={str(is_compiled).lower()}",
    ]


def train_stage(rank: int, overrides: list[str]) -> Trained:
    config = config_of(*overrides, "pipeline=two_bw")
    prepare(config, rank)
    mesh = Mesh(Position(rank, config.pipeline.num_stages, 1), timeout_s=START_S)
    runtime = runtime_of(config, mesh)
    compile_ahead(config, runtime.parts, tokens(1, config).to(config.trainer.device))
    mesh.meet(START_S)
    return timed(config, runtime.train())


def train_simulated(rank: int, overrides: list[str]) -> Trained:
    config = config_of(*overrides, "pipeline=simulated", "delay=one_step")
    prepare(config, rank)
    simulator = build_simulator(config)
    windows = tokens(config.trainer.batch_size, config).to(config.trainer.device)
    factor = config.lr_schedule.factor
    num_steps = config.trainer.num_steps
    return timed(config, (simulator.train_batch(step, windows, factor(step, num_steps)) for step in range(num_steps)))


def prepare(config: Config, rank: int) -> None:
    prepare_torch(config)
    if config.trainer.device == "cuda":
        torch.cuda.set_device(rank)


def timed(config: Config, steps: Any) -> Trained:
    """Run ``steps``, which yields a record for each, or None on other ranks than the first."""
    on_gpu = config.trainer.device == "cuda"
    stamps, losses = [], []
    for step, record in enumerate(steps):
        if on_gpu:
            torch.cuda.synchronize()
            if step == NUM_FILLING:
                torch.cuda.reset_peak_memory_stats()
        stamps.append(time.perf_counter())
        losses += [] if record is None else [record.loss]
    step_s = statistics.median(end - start for start, end in pairwise(stamps[NUM_FILLING:]))
    return Trained(losses, 1e3 * step_s, torch.cuda.max_memory_allocated() if on_gpu else None)


def check_variant(options: Options, num_stages: int, precision: str, is_compiled: bool) -> dict[str, Any]:
    overrides = overrides_of(options, num_stages, precision, is_compiled)
    backend = BACKENDS[options.device]
    stages = on_ranks(num_stages, train_stage, overrides, backend=backend)
    (simulated,) = on_ranks(1, train_simulated, overrides, backend=backend)
    pairs = zip(stages[0].losses, simulated.losses, strict=True)
    difference = max(abs(ours - theirs) / theirs for ours, theirs in pairs)
    figures: dict[str, Any] = {
        "step_ms": stages[0].step_ms,
        "simulator_step_ms": simulated.step_ms,
        "loss_difference": difference,
        "losses_agree": difference <= PARITY[precision],
    }
    # The plan is of a model that is not compiled, which fuses away what an ordinary forward keeps.
    if options.device == "cuda" and not is_compiled:
        planned = [stage.memory.total for stage in cut(plan(options, overrides, precision))]
        ratios = [ours.peak_bytes / theirs for ours, theirs in zip(stages, planned, strict=True)]
        figures["peak_over_plan"] = ratios
        figures["memory_agrees"] = all(abs(ratio - 1.0) <= MEMORY_TOLERANCE for ratio in ratios)
    return figures


def plan(options: Options, overrides: list[str], precision: str):
    skipped = ("trainer.device", "trainer.autocast", "trainer.compile", "pipeline.timeout_s")
    kept = [override for override in overrides if not override.startswith(skipped)]
    return plan_of(
        compose_overrides([*kept, "pipeline=two_bw", f"hardware={options.hardware}", f"precision={precision}"], "plan")
    )


def check_prefetch() -> dict[str, Any]:
    """A batch is on the GPU as it was read, and handing it over does not wait for what the GPU is computing."""
    device = torch.device("cuda")
    rows = np.random.default_rng(0).integers(50_000, size=(8, 256, 2049))
    batches = iter(Prefetcher(lambda step: rows[step], range(len(rows)), device))
    same = torch.equal(next(batches)[1].cpu(), torch.from_numpy(rows[0]))
    matrix = torch.randn(8192, 8192, device=device)
    torch.mm(matrix, matrix)  # the first one loads a library
    torch.cuda.synchronize()
    time.sleep(0.5)  # batches ahead are read
    start_s = time.perf_counter()
    for _ in range(20):
        torch.mm(matrix, matrix)
    queued_s = time.perf_counter()
    next(batches)
    handed_s = time.perf_counter()
    torch.cuda.synchronize()
    computed_s = time.perf_counter()
    batches.close()  # pyright: ignore[reportAttributeAccessIssue]  # a generator
    wait_fraction = (handed_s - queued_s) / (computed_s - start_s)
    return {"tokens_agree": same, "wait_fraction": wait_fraction, "does_not_wait": wait_fraction < 0.1}


def measure(options: Options) -> dict[str, Any]:
    check_option("device", options.device, BACKENDS)
    found = options.device == "cpu" or torch.cuda.is_available()
    require(found, "device", options.device, "expected a machine with a GPU, and there is none here")
    accepted = f"expected {NUM_FILLING + 2} or more"
    require(options.num_steps >= NUM_FILLING + 2, "num_steps", options.num_steps, accepted)
    num_stages = max(torch.cuda.device_count(), 1) if options.device == "cuda" else 2
    figures: dict[str, Any] = {"num_stages": num_stages}
    if options.device == "cuda":
        figures |= {"gpu": torch.cuda.get_device_name(0), "prefetch": check_prefetch()}
        if num_stages == 1:
            figures["note"] = "one GPU, and NCCL takes one rank a device: 2BW with one stage"
    for precision in PARITY:
        for is_compiled in (False, True):
            name = f"{precision}{'_compiled' if is_compiled else ''}"
            figures[name] = check_variant(options, num_stages, precision, is_compiled)
    verdicts = [value for group in figures.values() if isinstance(group, dict) for value in group.values()]
    return figures | {"holds": all(value for value in verdicts if isinstance(value, bool))}


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
