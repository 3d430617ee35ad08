"""Our 2BW and 1F1B against torch.distributed.pipelining's Schedule1F1B: two processes, the same stages and work.

    python benchmarks/pipeline_race.py [json=true] [rounds=5] [steps=6]

Seven layers of width 256, cut 4 + 3 as in the fixed comparison, and cut by the splitter from measured costs; one
thread a process, fp32, AdamW. The contenders run by turns in the same two processes, a few steps each, and the faster
half of the rounds counts. A step's floor is the slowest stage's m forwards and backwards, run alone, and its update.
torch's side has neither clipping nor records of a batch; ours has both.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from asyncpp.config import Config
from asyncpp.model.cross_entropy import linear_cross_entropy
from asyncpp.model.llama import Decoder, build
from asyncpp.pipeline.mesh import Mesh, Position
from asyncpp.pipeline.partition import ranges
from asyncpp.schedule.split import split_layers
from common.command import run_benchmark
from common.ranks import config_of, on_ranks, runtime_of, tokens

NUM_LAYERS, ROWS, SEQUENCE_LENGTH = 7, 4, 128
FIXED_SPLIT = (4, 3)


@dataclass
class Options:
    """rounds: turns of every contender. steps: that are timed in a turn."""

    rounds: int = 5
    steps: int = 6
    json: bool = False


def race_config(pipeline: str, num_micro_batches: int, split: Sequence[int], num_steps: int) -> Config:
    return config_of(
        f"pipeline={pipeline}",
        "pipeline.num_stages=2",
        "pipeline.timeout_s=300",
        f"pipeline.split=[{','.join(map(str, split))}]",
        f"model.num_layers={NUM_LAYERS}",
        "model.hidden_size=256",
        "model.ffn_size=768",
        "model.num_heads=4",
        "model.num_kv_heads=4",
        f"data.sequence_length={SEQUENCE_LENGTH}",
        f"trainer.num_steps={num_steps}",
        f"trainer.num_micro_batches={num_micro_batches}",
        f"trainer.batch_size={ROWS * num_micro_batches}",
    )


def our_steps(config: Config, mesh: Mesh) -> Iterator[None]:
    """The runtime, a batch at a time."""
    for _ in runtime_of(config, mesh).train():
        yield


class LastStage(nn.Module):
    """What torch's schedule calls: normalised hidden states out, so that its loss function is our head."""

    def __init__(self, stage: Decoder) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, hidden: Tensor) -> Tensor:
        assert self.stage.norm is not None
        rotary = self.stage.rotary.tables(hidden.shape[1], hidden.device, hidden.dtype)
        for layer in self.stage.layers.values():
            hidden = layer(hidden, rotary, None, None)
        return self.stage.norm(hidden)

    def loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        assert self.stage.head is not None
        return linear_cross_entropy(hidden.flatten(0, 1), self.stage.head.weight, labels.flatten())


def stage_with_weights(config: Config, number: int, split: Sequence[int]) -> Decoder:
    module = build(config.model, ranges(split)[number], first=number == 0, last=number == len(split) - 1)
    module = module.to_empty(device="cpu")
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    return module


def torch_steps(config: Config, number: int) -> Iterator[None]:
    m = config.trainer.num_micro_batches
    stage = stage_with_weights(config, number, config.pipeline.split or ())
    module = stage if number == 0 else LastStage(stage)
    windows = tokens(config.trainer.batch_size, config)
    inputs, labels = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    schedule = Schedule1F1B(
        PipelineStage(module, number, 2, torch.device("cpu")),
        m,
        # the first stage has no use for one, but without it would expect no gradients
        loss_fn=module.loss if isinstance(module, LastStage) else torch.sum,
    )
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
    for _ in range(config.trainer.num_steps):
        optimizer.zero_grad()
        if number == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=labels, return_outputs=False)
        optimizer.step()
        yield


def floor_s(config: Config, number: int, repeats: int = 5) -> tuple[float, float]:
    """Seconds of a micro-batch's forward and backward on a stage that is alone, and of its update: the lower median."""
    stage = stage_with_weights(config, number, config.pipeline.split or ())
    windows = tokens(ROWS, config)
    hidden = torch.randn(ROWS, SEQUENCE_LENGTH, config.model.hidden_size)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3, fused=True)
    passes, updates = [], []
    for _ in range(repeats):
        start_s = time.perf_counter()
        if number == 0:
            outputs = stage(windows[:, :-1])
            outputs.backward(hidden)
        else:
            stage(hidden.requires_grad_(), windows[:, 1:]).backward()
        middle_s = time.perf_counter()
        optimizer.step()
        end_s = time.perf_counter()
        passes.append(middle_s - start_s)
        updates.append(end_s - middle_s)
    return statistics.median_low(passes), statistics.median_low(updates)


def unit_costs(config: Config, repeats: int = 5) -> list[float]:
    """Seconds of the embedding, of each layer (the mean), and of the last norm and head: what the splitter asks for."""
    whole = stage_with_weights(config, 0, (NUM_LAYERS,))
    windows = tokens(ROWS, config)
    hidden = torch.randn(ROWS, SEQUENCE_LENGTH, config.model.hidden_size)
    rotary = whole.rotary.tables(SEQUENCE_LENGTH, hidden.device, hidden.dtype)
    assert whole.embedding is not None and whole.norm is not None and whole.head is not None
    embedding, norm, head = whole.embedding, whole.norm, whole.head
    labels = windows[:, 1:].flatten()

    def measure(run: Callable[[], Tensor]) -> float:
        seconds = []
        for _ in range(repeats):
            start_s = time.perf_counter()
            outputs = run()
            outputs.backward(torch.ones_like(outputs))
            seconds.append(time.perf_counter() - start_s)
        return statistics.median_low(seconds)

    def run_layers() -> Tensor:
        outputs = hidden.clone().requires_grad_()
        for layer in whole.layers.values():
            outputs = layer(outputs, rotary, None, None)
        return outputs

    def run_head() -> Tensor:
        inputs = hidden.clone().requires_grad_()
        return linear_cross_entropy(norm(inputs).flatten(0, 1), head.weight, labels)

    layer_s = measure(run_layers) / NUM_LAYERS
    return [measure(lambda: embedding(windows[:, :-1])), *[layer_s] * NUM_LAYERS, measure(run_head)]


def race(rank: int, options: Options) -> dict[str, Any]:
    """All the figures, on one of two ranks."""
    mesh = Mesh(Position(rank, 2, 1), timeout_s=300.0)
    figures: dict[str, Any] = {"fixed_split": list(FIXED_SPLIT)}
    for m in (2, 4):
        figures[f"m{m}"] = one_race(mesh, m, FIXED_SPLIT, options)
    costs = unit_costs(race_config("two_bw", 2, FIXED_SPLIT, 1))
    shared: list[Any] = [costs]
    dist.broadcast_object_list(shared, src=0)
    sizes = list(split_layers(shared[0], 2))
    own_split = (sizes[0] - 1, sizes[1] - 1)
    figures["own_split"] = list(own_split)
    for m in (2, 4):
        figures[f"own_split_m{m}"] = (
            figures[f"m{m}"] if own_split == FIXED_SPLIT else one_race(mesh, m, own_split, options)
        )
    return figures


def one_race(mesh: Mesh, m: int, split: Sequence[int], options: Options) -> dict[str, float]:
    """Milliseconds a step of every contender. Each has connections of its own: while it rests, receives are posted."""
    num_steps = options.rounds * (options.steps + 2)
    contenders = {
        "two_bw": our_steps(race_config("two_bw", m, split, num_steps), Mesh(mesh.position, timeout_s=300.0)),
        "one_f_one_b": our_steps(race_config("one_f_one_b", m, split, num_steps), Mesh(mesh.position, timeout_s=300.0)),
        "torch_1f1b": torch_steps(race_config("one_f_one_b", m, split, num_steps), mesh.position.stage),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, steps in contenders.items():
            dist.barrier()
            next(steps)
            next(steps)  # the pipeline has filled again
            start_s = time.perf_counter()
            for _ in range(options.steps):
                next(steps)
            seconds[name].append((time.perf_counter() - start_s) / options.steps)
    for steps in contenders.values():
        for _ in steps:
            pass
    dist.barrier()
    passes_s, update_s = floor_s(race_config("two_bw", m, split, 1), mesh.position.stage)
    floors = [None, None]
    dist.all_gather_object(floors, m * passes_s + update_s)
    low = {name: statistics.mean(sorted(values)[: (len(values) + 1) // 2]) for name, values in seconds.items()}
    return {**{name: 1000.0 * value for name, value in low.items()}, "floor": 1000.0 * max(floors)}  # pyright: ignore


def ratios(figures: dict[str, Any]) -> dict[str, Any]:
    """What the targets are about, by m."""
    both = {"": "m", "own_split_": "own_split_m"}
    result: dict[str, Any] = {"split": figures["fixed_split"], "own_split": figures["own_split"]}
    for prefix, key in both.items():
        races = {str(m): figures[f"{key}{m}"] for m in (2, 4)}
        result[f"{prefix}two_bw_over_torch_1f1b"] = {m: r["torch_1f1b"] / r["two_bw"] for m, r in races.items()}
        result[f"{prefix}one_f_one_b_over_torch_1f1b"] = {
            m: r["torch_1f1b"] / r["one_f_one_b"] for m, r in races.items()
        }
        result[f"{prefix}floor_over_two_bw"] = {m: r["floor"] / r["two_bw"] for m, r in races.items()}
    best_torch = {m: min(figures[f"m{m}"]["torch_1f1b"], figures[f"own_split_m{m}"]["torch_1f1b"]) for m in (2, 4)}
    result["own_split_two_bw_over_best_torch"] = {
        str(m): best_torch[m] / figures[f"own_split_m{m}"]["two_bw"] for m in (2, 4)
    }
    result["step_ms"] = {key: figures[key] for key in figures if key.endswith(("m2", "m4"))}
    return result


def measure(options: Options) -> dict[str, Any]:
    return ratios(on_ranks(2, race, options)[0])


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
