"""Every rule against well-kept public implementations: 10 steps on several shapes, from cloned gradients.

In fp64, where only the equations count, and in fp32, from weights of a model's usual size. An oracle's Newton-Schulz
is run without its cast to bf16, since bf16 products differ by 5e-4 between two correct programs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import lion_pytorch
import optimi
import pytest
import pytorch_optimizer
import torch
from optimizer_cases import advance, draw, load_config, parameters
from pytorch_optimizer.optimizer.muon import base as oracle_muon
from pytorch_optimizer.optimizer.muon import normuon as oracle_normuon
from torch import Tensor

from asyncpp.optim.groups import build_optimizer
from asyncpp.parameters import ParameterInfo

NUM_STEPS = 10
LR = 1e-3
DTYPES = [torch.float64, torch.float32]
SHAPES = parameters((64, 32), (32, 64), (48, 48), (32, 64))


def largest_difference(config, infos: list[ParameterInfo], make_oracle: Callable, dtype=torch.float32) -> float:
    """Between our weights and the oracle's after NUM_STEPS updates, over all elements."""
    weights = draw(infos, seed=0, dtype=dtype, std=0.02)
    theirs = [torch.nn.Parameter(weight.clone()) for weight in weights]
    oracle = make_oracle(theirs)
    optimizer = build_optimizer(config, infos, weights)
    for step in range(NUM_STEPS):
        gradients = draw(infos, seed=step + 1, dtype=dtype)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()  # several oracles overwrite it
        oracle.step()
        advance(optimizer, gradients, weights)
    return max((x - y).abs().max().item() for x, y in zip(weights, [t.detach() for t in theirs], strict=True))


def tolerance(dtype: torch.dtype, fp32: float, fp64: float = 1e-12) -> float:
    return fp64 if dtype is torch.float64 else fp32


def adam_knobs(config) -> dict:
    return {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps, "weight_decay": config.weight_decay}


def test_adamw_is_torchs_fused_one_to_the_bit():
    config = load_config("adamw")
    for dtype in DTYPES:
        oracle = partial(torch.optim.AdamW, **adam_knobs(config), fused=True)
        assert largest_difference(config, SHAPES, oracle, dtype) == 0.0


ELEMENTWISE = {
    "adamw, torch": ("adamw", {}, lambda p, c: torch.optim.AdamW(p, **adam_knobs(c), foreach=False)),
    "adamw, optimi": ("adamw", {}, lambda p, c: optimi.AdamW(p, **adam_knobs(c))),
    "nadam, torch": (
        "nadam",
        {},
        lambda p, c: torch.optim.NAdam(
            p, **adam_knobs(c), momentum_decay=c.momentum_decay, decoupled_weight_decay=True
        ),
    ),
    "sgd, torch": (
        "sgd",
        {},
        lambda p, c: torch.optim.SGD(p, lr=c.lr, momentum=c.momentum, weight_decay=c.weight_decay),
    ),
    "sgd nesterov, torch": (
        "sgd",
        {"nesterov": True},
        lambda p, c: torch.optim.SGD(p, lr=c.lr, momentum=c.momentum, weight_decay=c.weight_decay, nesterov=True),
    ),
    "lion, lion-pytorch": (
        "lion",
        {},
        lambda p, c: lion_pytorch.Lion(p, lr=c.lr, betas=tuple(c.betas), weight_decay=c.weight_decay),
    ),
    "lion, pytorch-optimizer": (
        "lion",
        {},
        lambda p, c: pytorch_optimizer.Lion(p, lr=c.lr, betas=tuple(c.betas), weight_decay=c.weight_decay),
    ),
    "lion, optimi": (
        "lion",
        {},
        lambda p, c: optimi.Lion(p, lr=c.lr, betas=tuple(c.betas), weight_decay=c.weight_decay),
    ),
    "adan, pytorch-optimizer": ("adan", {}, lambda p, c: pytorch_optimizer.Adan(p, **adam_knobs(c))),
    "adan decoupled, pytorch-optimizer": (
        "adan",
        {"proximal_decay": False},
        lambda p, c: pytorch_optimizer.Adan(p, **adam_knobs(c), weight_decouple=True),
    ),
    "adan, optimi": ("adan", {}, lambda p, c: optimi.Adan(p, **adam_knobs(c))),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ELEMENTWISE)
def test_elementwise_rules(case, dtype):
    name, overrides, oracle = ELEMENTWISE[case]
    config = load_config(name, **overrides, lr=LR)
    assert largest_difference(config, SHAPES, lambda p: oracle(p, config), dtype) <= tolerance(dtype, 3e-8)


@pytest.fixture(params=DTYPES, ids=str)
def products_dtype(request, monkeypatch) -> torch.dtype:
    """fp64 or fp32, in which the oracles' Newton-Schulz then runs."""
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    for module in (oracle_muon, oracle_normuon):
        iteration = partial(module.zero_power_via_newton_schulz_5, dtype=request.param)
        monkeypatch.setattr(module, "zero_power_via_newton_schulz_5", iteration)
    return request.param


# The norm before Newton-Schulz is at least 1e-7 in theirs and has 1e-7 added in ours: 1e-8 of an update in these cases.
MUON_TOLERANCES = {"fp32": 1.5e-7, "fp64": 1e-9}


def muon_config(name: str, dtype: torch.dtype, **overrides: object):
    return load_config(name, newton_schulz_dtype=str(dtype).removeprefix("torch."), lr=LR, **overrides)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scale, torchs_name", [("match_rms", "match_rms_adamw"), ("original", "original")])
def test_muon_is_torchs(scale, torchs_name, nesterov, products_dtype):
    config = muon_config("muon", products_dtype, scale=scale, nesterov=nesterov)
    knobs = {"momentum": config.momentum, "nesterov": nesterov, "weight_decay": config.weight_decay}
    oracle = partial(torch.optim.Muon, lr=LR, **knobs, adjust_lr_fn=torchs_name)
    assert largest_difference(config, SHAPES, oracle, products_dtype) <= tolerance(products_dtype, **MUON_TOLERANCES)


def test_muon_in_bf16_is_near_torchs():
    config = muon_config("muon", torch.bfloat16)
    oracle = partial(torch.optim.Muon, lr=LR, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
    assert 0.0 < largest_difference(config, SHAPES, oracle) <= 5e-4


@pytest.mark.parametrize("scale", ["match_rms", "original"])
@pytest.mark.parametrize(
    "name, oracle_class", [("muon", pytorch_optimizer.Muon), ("normuon", pytorch_optimizer.NorMuon)]
)
def test_muon_and_normuon_are_pytorch_optimizers(name, oracle_class, scale, products_dtype):
    config = muon_config(name, products_dtype, scale=scale)
    knobs = {"momentum": config.momentum, "weight_decay": config.weight_decay, "use_adjusted_lr": scale == "match_rms"}
    if name == "normuon":
        knobs["beta2"] = config.beta2

    def oracle(weights: list[Tensor]) -> torch.optim.Optimizer:
        return oracle_class([{"params": weights, "use_muon": True}], lr=LR, **knobs, foreach=False)

    assert largest_difference(config, SHAPES, oracle, products_dtype) <= tolerance(products_dtype, **MUON_TOLERANCES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("frequency", [1, 3])
def test_soap_is_pytorch_optimizers(frequency, dtype, monkeypatch):
    """On square matrices: a Gram matrix that is singular at the first gradient has no eigenbasis of its own."""
    monkeypatch.setattr(torch, "float32", dtype)  # theirs casts to it before its QR decomposition
    config = load_config("soap", precondition_frequency=frequency, lr=LR)
    knobs = {"shampoo_beta": config.shampoo_beta, "precondition_frequency": frequency}
    oracle = partial(pytorch_optimizer.SOAP, **adam_knobs(config), **knobs)
    difference = largest_difference(config, parameters((32, 32), (48, 48), (32, 32)), oracle, dtype)
    assert difference <= tolerance(dtype, 2e-7)


def test_mars_is_pytorch_optimizers():
    """They add eps to the root before its bias is corrected, and 1e-15 under it."""
    config = load_config("mars", lr=LR)
    oracle = partial(pytorch_optimizer.MARS, **adam_knobs(config), gamma=config.gamma)
    assert largest_difference(config, SHAPES, oracle) <= 2e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mars_is_pytorch_optimizers_up_to_eps(dtype, monkeypatch):
    class WithoutEps(pytorch_optimizer.MARS):
        @staticmethod
        def apply_ams_bound(ams_bound, exp_avg_sq, max_exp_avg_sq, eps, exp_avg_sq_eps=0.0):
            return exp_avg_sq.sqrt()

    config = load_config("mars", lr=LR, eps=1e-30)
    oracle = partial(WithoutEps, **adam_knobs(config), gamma=config.gamma, foreach=False)
    assert largest_difference(config, SHAPES, oracle, dtype) <= tolerance(dtype, 3e-8)
