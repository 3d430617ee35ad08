"""A compiled model in processes: the compiled simulator's numbers to the bit, all compiled before the first batch."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.utils as dynamo
from distributed.ranks import on_ranks
from distributed.test_parity import COMMON, NUM_STEPS, compare, simulate, sizes, tokens

from asyncpp.config import Config
from asyncpp.pipeline.mesh import Mesh, Position
from asyncpp.trainer.compiling import compile_ahead
from asyncpp.trainer.processes import build_runtime

pytestmark = pytest.mark.slow

MODELS = (
    ("model.tied_embeddings=true", "correction=ef"),
    ("model.tied_embeddings=false", "trainer.autocast=bfloat16"),
    ("model=tiny_moe", "model.num_heads=4", "model.num_kv_heads=2"),
)


def num_graphs() -> int:
    """Compiled in this process so far."""
    return dynamo.counters["stats"]["unique_graphs"]


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Else torch, which compiles a function a few times only, would leave it as it is in the later tests."""
    torch.compiler.reset()
    dynamo.counters.clear()


@pytest.mark.parametrize("model", MODELS, ids=" ".join)
def test_processes_have_the_simulators_numbers(make_config, model):
    twin = ("delay=one_step", "pipeline.num_stages=2")
    compare(make_config, 2, [((*model, "trainer.compile=true", "pipeline=2bw", *sizes(2, 2)), twin)])
    assert num_graphs() > 0


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_compiling_changes_a_model_by_rounding_only(make_config, dtype, tolerance):
    rows = (*COMMON, *sizes(2, 2), "delay=one_step", "pipeline.num_stages=2", f"trainer.dtype={dtype}", "optimizer=sgd")
    windows = tokens(NUM_STEPS * 4).view(NUM_STEPS, 4, 10)
    plain = simulate(make_config(*rows), windows, tokens(5, seed=1))
    assert num_graphs() == 0
    compiled = simulate(make_config(*rows, "trainer.compile=true"), windows, tokens(5, seed=1))
    assert num_graphs() > 0
    assert compiled.losses == pytest.approx(plain.losses, rel=tolerance)
    for index, weight in compiled.weights.items():
        torch.testing.assert_close(weight, plain.weights[index], rtol=0, atol=tolerance)


def count_graphs(rank: int, config: Config, windows: torch.Tensor, validation: torch.Tensor) -> tuple[int, int]:
    """Compiled graphs before the first batch and after the last one."""

    def read(batch: int, micro_batch: int) -> torch.Tensor:
        return windows[batch].chunk(config.trainer.num_micro_batches)[micro_batch]

    mesh = Mesh(Position(rank, 2, 1), timeout_s=60.0)
    runtime = build_runtime(config, mesh, read, validation)
    compile_ahead(config, runtime.parts, validation)
    before = num_graphs()
    mesh.meet(300.0)
    for _ in runtime.train():
        runtime.validation_losses()
    return before, num_graphs()


@pytest.mark.parametrize("recompute", ["false", "true"])
def test_everything_is_compiled_before_the_first_batch(make_config, recompute):
    config = make_config(*COMMON, *sizes(2, 2), "trainer.compile=true", f"pipeline.recompute={recompute}",
                         "pipeline=2bw", "pipeline.num_stages=2")  # fmt: skip
    windows = tokens(NUM_STEPS * 4).view(NUM_STEPS, 4, 10)
    for before, after in on_ranks(2, count_graphs, config, windows, tokens(5, seed=1)):
        assert before > 0
        assert after == before
