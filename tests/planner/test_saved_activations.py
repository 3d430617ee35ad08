"""What a plan says is saved for the backward, against what autograd saves on the modules, stage by stage."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from asyncpp.model.auxiliary import Auxiliary
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.model.llama import build
from asyncpp.pipeline.compute import Autocast
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.units import Unit, units

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bf16_autocast": torch.float32,
    "bf16_mixed": torch.bfloat16,
}
SHAPES = [
    ("trainer.batch_size=8", "data.sequence_length=32"),
    ("trainer.batch_size=4", "data.sequence_length=192", "model.hidden_size=96", "model.ffn_size=200"),
    ("trainer.batch_size=12", "data.sequence_length=48", "model.num_kv_heads=6", "model.tied_embeddings=true"),
    ("trainer.batch_size=8", "data.sequence_length=32", "model.vocab_size=2048"),
]
MIXTURES = [
    ("model.num_experts=5", "model.top_k=2", "model.ffn_size=40"),
    ("model.num_experts=16", "model.top_k=4", "model.ffn_size=64", "model.shared_ffn_size=48"),
]


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=" ".join)
def test_a_dense_model_saves_what_was_planned(make_plan, shape, precision):
    compare(make_plan(*shape, f"precision={precision}"))


@pytest.mark.parametrize("precision", ["float32", "bf16_autocast", "bf16_mixed"])
@pytest.mark.parametrize("mixture", MIXTURES, ids=" ".join)
@pytest.mark.parametrize("shape", SHAPES[:2], ids=" ".join)
def test_a_mixture_saves_what_was_planned(make_plan, shape, mixture, precision):
    widths = [override for override in shape if "ffn_size" not in override]  # a mixture's are of an expert
    compare(make_plan("model=tiny_moe", *widths, *mixture, f"precision={precision}"))


def compare(config: PlanConfig) -> None:
    """Every cut into three stages, and the model whole."""
    planned = units(config)
    for sizes in ((5,), (1, 3, 1), (2, 1, 2), (3, 1, 1)):
        for begin, size in zip((0, sizes[0], sum(sizes[:2])), sizes, strict=False):
            owned = planned[begin : begin + size]
            assert saved_bytes(config, owned) == pytest.approx(sum(unit.saved_bytes for unit in owned), rel=1e-3)


def saved_bytes(config: PlanConfig, owned: list[Unit]) -> int:
    """Bytes of all storages that a stage of these units saves for one micro-batch, parameters and what is made once
    for all micro-batches (the rotary tables) left out."""
    names = [unit.name for unit in owned]
    layers = [int(name.removeprefix("layers.")) for name in names if name.startswith("layers.")]
    layers = range(layers[0], layers[-1] + 1) if layers else range(0)
    stage = build(config.model, layers, first="embedding" in names, last="head" in names)
    weights = weights_by_name(config)
    parameters = {name: weights[name] for name, _ in stage.named_parameters()}

    shape = (config.micro_batch_sequences, config.data.sequence_length)
    tokens = torch.randint(config.model.vocab_size, shape)
    hidden = torch.randn(*shape, config.model.hidden_size).to(DTYPES[config.options.precision]).requires_grad_()
    inputs = tokens if "embedding" in names else hidden
    tables = stage.rotary.tables(shape[1], torch.device("cpu"), DTYPES[config.options.precision])
    known = {tensor.untyped_storage().data_ptr() for tensor in (*parameters.values(), *tables)}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor  # alive, so that no other tensor gets its address
        return tensor

    autocast = Autocast("cpu", torch.bfloat16 if config.casts else None)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast():
        auxiliary = Auxiliary()
        output = functional_call(stage, parameters, (inputs, tokens if "head" in names else None, auxiliary))
        losses = [output] if auxiliary.loss is None else [output, auxiliary.loss]
    assert all(loss.requires_grad for loss in losses)
    return sum(tensor.untyped_storage().nbytes() for address, tensor in saved.items() if address not in known)


def weights_by_name(config: PlanConfig) -> dict[str, Tensor]:
    """Leaves in the precision of the passes; a tied head has its own."""
    dtype = DTYPES[config.options.precision]
    names = [info.name for info in parameter_infos(config.model)]
    values = dict(zip(names, initial_weights(config.model, seed=0), strict=True))
    values |= {alias: values[name] for alias, name in tied_aliases(config.model).items()}
    return {name: value.to(dtype, copy=True).requires_grad_() for name, value in values.items()}
