"""The runtime's own bubbles at P = 4, 8, 16, and what it adds to an action.

    python benchmarks/pipeline_depth.py [json=true] [depths=[4,8,16]] [batches=4]

Depth: stages sleep for their compute, a forward f and a backward 2 f, so that pipelines deeper than the machine has
cores run at their full rate; m = P. A rate is the time that the slowest stage takes for a batch when it waits for
nobody, over the time of a batch in the pipeline: the limit of 2BW is 1, that of 1F1B m / (m + P - 1).

Overhead: tiny tensors and no sleep. What a batch takes more than a loop written by hand that runs the same stage alone
(sums of gradients, clipping, torch's fused update), shared among the batch's actions: of the clock, which counts the
way of messages too where stages wait for one another, and of the main thread's processor time, which does not.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asyncpp.config import Config
from asyncpp.errors import check_count, require
from asyncpp.pipeline.mesh import Mesh, Position
from asyncpp.pipeline.part import Part
from common.command import run_benchmark
from common.ranks import config_of, on_ranks, runtime_of, tokens

FORWARD_S = 0.03
NUM_FILLING = 3  # batches until the pipeline is full and every buffer is there
NUM_TINY_BATCHES = 300


@dataclass
class Options:
    """batches: that are timed in a full pipeline."""

    depths: list[int] = field(default_factory=lambda: [4, 8, 16])
    batches: int = 4
    json: bool = False


def tiny(pipeline: str, num_stages: int, num_micro_batches: int, num_steps: int) -> Config:
    """One layer a stage, and nothing to compute: what takes time is the runtime."""
    return config_of(
        f"pipeline={pipeline}",
        f"pipeline.num_stages={num_stages}",
        "pipeline.timeout_s=300",
        f"pipeline.split={[1] * num_stages}".replace(" ", ""),
        f"model.num_layers={num_stages}",
        "model.hidden_size=16",
        "model.ffn_size=16",
        "model.num_heads=2",
        "model.num_kv_heads=2",
        "model.vocab_size=32",
        "data.vocab_size=32",
        "data.tokenizer.kind=file",  # of which no token is made
        "data.tokenizer.name=unused",
        "data.sequence_length=4",
        f"trainer.num_steps={num_steps}",
        f"trainer.num_micro_batches={num_micro_batches}",
        f"trainer.batch_size={num_micro_batches}",
    )


class Sleep(torch.autograd.Function):
    """The identity, which takes ``forward_s`` forward and twice that backward."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, forward_s: float) -> Tensor:
        ctx.forward_s = forward_s
        time.sleep(forward_s)
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        time.sleep(2.0 * ctx.forward_s)
        return gradients[0], None


class Times(NamedTuple):
    """Of a batch, in seconds: the median by the clock, and the mean of this thread's processor time."""

    clock: float
    processor: float


def times_of(batches: Iterable[Any], num_filling: int) -> Times:
    """From one of ``batches`` to the next, without the first ones and the last, which leaves the pipeline empty."""
    stamps = [Times(time.perf_counter(), time.thread_time()) for _ in batches][num_filling - 1 : -1]
    median = statistics.median(end.clock - start.clock for start, end in pairwise(stamps))
    return Times(median, (stamps[-1].processor - stamps[0].processor) / (len(stamps) - 1))


def run_both(config: Config, rank: int, forward_s: float, num_plain: int) -> tuple[Times, Times]:
    """Of this rank: in the pipeline, and alone for ``num_plain`` batches of a loop as one writes it by hand."""
    mesh = Mesh(Position(rank, config.pipeline.num_stages, 1), timeout_s=300.0)
    runtime = runtime_of(config, mesh)
    (part,) = runtime.parts
    if forward_s > 0.0:  # every version's module is a copy of this one, hooks included
        part.modules.skeleton.register_forward_hook(lambda module, inputs, outputs: Sleep.apply(outputs, forward_s))
    mesh.meet(300.0)
    ours = times_of(runtime.train(), NUM_FILLING)
    mesh.meet(300.0)
    return ours, times_of(plain_batches(part, config, num_plain + 2), num_filling=1)


def plain_batches(part: Part, config: Config, num_batches: int) -> Iterator[None]:
    """Sums of gradients, clipping and torch's fused update of one stage."""
    version, m = part.state.versions.newest, config.trainer.num_micro_batches
    module, leaves = part.modules.at(version), part.modules.leaves(version)
    windows = tokens(1, config)
    hidden = torch.randn(1, windows.shape[1] - 1, config.model.hidden_size)
    optimizer = torch.optim.AdamW(leaves, lr=1e-3, fused=True)
    for _ in range(num_batches):
        optimizer.zero_grad()
        for _ in range(m):
            inputs = windows[:, :-1] if part.is_first else hidden.detach().requires_grad_()
            if part.is_last:
                (module(inputs, windows[:, 1:]) / m).backward()
            else:
                module(inputs).backward(hidden)
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)
        optimizer.step()
        yield


def depth(rank: int, pipeline: str, num_stages: int, num_batches: int) -> tuple[float, float]:
    """Seconds of a batch on this rank, in the pipeline and alone."""
    config = tiny(pipeline, num_stages, num_stages, NUM_FILLING + num_batches + 1)
    ours, plain = run_both(config, rank, FORWARD_S, num_plain=2)
    return ours.clock, plain.clock


def overhead(rank: int, num_stages: int, num_micro_batches: int) -> dict[str, float]:
    """Microseconds of this rank: of a batch, in the pipeline and alone, and of each action's share of the rest."""
    config = tiny("two_bw", num_stages, num_micro_batches, NUM_TINY_BATCHES)
    ours, plain = run_both(config, rank, 0.0, num_plain=NUM_TINY_BATCHES)
    num_messages = 0 if num_stages == 1 else 1 if rank in (0, num_stages - 1) else 2  # each way, of each micro-batch
    num_actions = num_micro_batches * (2 + 2 * num_messages) + 1
    seconds = {
        "batch": ours.clock,
        "plain": plain.clock,
        "action": (ours.clock - plain.clock) / num_actions,
        "action_processor": (ours.processor - plain.processor) / num_actions,
    }
    return {f"{name}_us": 1e6 * value for name, value in seconds.items()}


def measure_depth(num_stages: int, num_batches: int) -> dict[str, float]:
    """Rates, and their shares of the limits."""
    figures: dict[str, float] = {}
    for pipeline, limit in (("two_bw", 1.0), ("one_f_one_b", num_stages / (2 * num_stages - 1))):
        ours, alone = zip(*on_ranks(num_stages, depth, pipeline, num_stages, num_batches), strict=True)
        rate = max(alone) / max(ours)
        figures |= {pipeline: rate, f"{pipeline}_over_limit": rate / limit}
    return figures


def measure(options: Options) -> dict[str, Any]:
    """Before and after: load averages of the machine, which is to be idle."""
    accepted = "expected numbers of stages, 2 or more"
    require(all(depth >= 2 for depth in options.depths), "depths", options.depths, accepted)
    check_count("batches", options.batches)
    load = os.getloadavg()[0]
    slowest = {}
    for num_stages, num_micro_batches in ((1, 4), (2, 4)):
        by_rank = on_ranks(num_stages, overhead, num_stages, num_micro_batches)
        slowest[str(num_stages)] = max(by_rank, key=lambda figures: figures["action_us"])
    depths = {str(depth): measure_depth(depth, options.batches) for depth in options.depths}
    return {
        "load_average_before": load,
        "overhead_by_num_stages": slowest,
        "rate_by_num_stages": depths,
        "load_average_after": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
