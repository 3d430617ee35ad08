"""What every update rule promises, and each rule against its twin, which is its equation in the plainest form."""

from __future__ import annotations

import math

import pytest
import torch
from optimizer_cases import MATRIX_OPTIMIZERS, SMALL_MODEL, advance, bound_groups, draw, load_config, parameters
from options import OPTIMIZERS
from reference.optim import elementwise, matrix

from asyncpp.optim.groups import build_optimizer
from asyncpp.parameters import Role

TWINS = {
    "adamw": elementwise.AdamW,
    "nadam": elementwise.NAdam,
    "sgd": elementwise.SGD,
    "lion": elementwise.Lion,
    "adan": elementwise.Adan,
    "mars": elementwise.MARS,
    "muon": matrix.Muon,
    "normuon": matrix.NorMuon,
    "soap": matrix.SOAP,
}
VARIANTS = [
    ("adamw", {}),
    ("nadam", {}),
    ("sgd", {}),
    ("sgd", {"nesterov": True}),
    ("sgd", {"momentum": 0.0, "weight_decay": 0.0}),
    ("lion", {}),
    ("adan", {}),
    ("adan", {"proximal_decay": False}),
    ("mars", {}),
    ("mars", {"gamma": 0.0}),
    ("muon", {}),
    ("muon", {"scale": "original", "nesterov": False}),
    ("muon", {"newton_schulz": "polar_express"}),
    ("normuon", {}),
    ("soap", {"precondition_frequency": 3}),
    ("soap", {"precondition_frequency": 1}),
]


def test_every_optimizer_has_a_twin_and_is_compared_with_it():
    assert set(TWINS) == set(OPTIMIZERS) == {name for name, _ in VARIANTS}


def variant_id(case: tuple[str, dict]) -> str:
    return "-".join([case[0], *(f"{key}={value}" for key, value in case[1].items())])


def exact_products(name: str) -> dict[str, str]:
    """Newton-Schulz in fp64, where a comparison in fp64 needs it."""
    return {"newton_schulz_dtype": "float64"} if name in ("muon", "normuon") else {}


@pytest.mark.parametrize("case", VARIANTS, ids=variant_id)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_rule_follows_its_equation(case, dtype):
    name, overrides = case
    if dtype is torch.float64:
        overrides = overrides | exact_products(name)
    config = load_config(name, **overrides)
    # The eigenvectors of a singular Gram matrix are anyone's choice, so SOAP's twin is given square matrices.
    infos = parameters((12, 12), (12, 12)) if name == "soap" else parameters((12, 12), (8, 20), (20, 8), (8, 20))
    weights = draw(infos, seed=0, dtype=dtype, std=0.1)
    expected = [weight.clone() for weight in weights]
    twins = [TWINS[name](config, weight) for weight in weights]
    optimizer = build_optimizer(config, infos, weights)
    for step in range(10):
        gradients = draw(infos, seed=step + 1, dtype=dtype)
        lr_factor = 1.0 / (step + 1)
        advance(optimizer, gradients, weights, lr_factor)
        rows = zip(twins, expected, gradients, strict=True)
        expected = [twin.step(x, g, config.lr * lr_factor) for twin, x, g in rows]
    # torch keeps NAdam's product of momenta in fp32 whatever the weights are.
    tolerance = 1e-12 if dtype is torch.float64 and name != "nadam" else 5e-7
    for weight, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=0.0, atol=tolerance)


def test_soap_with_the_identity_on_the_long_side():
    config = load_config("soap", precondition_frequency=2, max_precondition_dim=8)
    infos = parameters((8, 20), (20, 8), (20, 20))
    weights = draw(infos, seed=0, dtype=torch.float64)
    expected = [weight.clone() for weight in weights]
    twins = [matrix.SOAP(config, weight) for weight in weights]
    optimizer = build_optimizer(config, infos, weights)
    assert not any("left" in key for key in optimizer.state_dict() if key.startswith("layer1"))
    for step in range(6):
        gradients = draw(infos, seed=step + 1, dtype=torch.float64)
        advance(optimizer, gradients, weights)
        expected = [twin.step(x, g, config.lr) for twin, x, g in zip(twins, expected, gradients, strict=True)]
    torch.testing.assert_close(weights, expected, rtol=0.0, atol=1e-12)


def test_soap_bases_stay_orthogonal():
    config = load_config("soap", precondition_frequency=1)
    infos = parameters((16, 24))
    weights = draw(infos, seed=0)
    optimizer = build_optimizer(config, infos, weights)
    for step in range(20):
        advance(optimizer, draw(infos, seed=step + 1), weights)
    state = optimizer.state_dict()
    for side, size in (("left", 16), ("right", 24)):
        basis = state[f"layer0.weight.{side}_basis"]
        torch.testing.assert_close(basis.T @ basis, torch.eye(size), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", ["muon", "normuon", "soap"])
def test_experts_in_one_tensor_are_matrices_of_their_own(name):
    config = load_config(name)
    stacked, separate = parameters((3, 12, 12)), parameters((12, 12), (12, 12), (12, 12))
    weights = draw(stacked, seed=0)
    others = [expert.clone() for expert in weights[0]]
    optimizer = build_optimizer(config, stacked, weights)
    other_optimizer = build_optimizer(config, separate, others)
    for step in range(4):
        gradients = draw(stacked, seed=step + 1)
        advance(optimizer, gradients, weights)
        advance(other_optimizer, list(gradients[0]), others)
    assert torch.equal(weights[0], torch.stack(others))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_inputs_are_left_alone_and_not_kept(name):
    config = load_config(name)
    weights = draw(SMALL_MODEL, seed=0)
    others = [weight.clone() for weight in weights]
    optimizer = build_optimizer(config, SMALL_MODEL, weights)
    other_optimizer = build_optimizer(config, SMALL_MODEL, others)
    for step in range(4):
        gradients = draw(SMALL_MODEL, seed=step + 1)
        before = [gradient.clone() for gradient in gradients]
        weights_before = [weight.clone() for weight in weights]
        for group in optimizer.groups:
            updates = group.rule.update(group.select(gradients), group.select(weights), group.peak_lr)
            for weight, original, update in zip(
                group.select(weights), group.select(weights_before), updates, strict=True
            ):
                assert torch.equal(weight, original)
                weight.mul_(group.rule.decay_factor(group.peak_lr)).sub_(update)
                update.fill_(math.nan)  # u is the caller's
        for gradient, original in zip(gradients, before, strict=True):
            assert torch.equal(gradient, original)
            gradient.fill_(math.nan)  # and so is the gradient
        advance(other_optimizer, before, others)
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_step_in_place_is_decay_minus_update(name, dtype):
    config = load_config(name)
    weights = draw(SMALL_MODEL, seed=0, dtype=dtype)
    others = [weight.clone() for weight in weights]
    optimizer = build_optimizer(config, SMALL_MODEL, weights)
    other_optimizer = build_optimizer(config, SMALL_MODEL, others)
    for step in range(4):
        gradients = draw(SMALL_MODEL, seed=step + 1, dtype=dtype)
        advance(optimizer, gradients, weights)
        for group in other_optimizer.groups:
            group.rule.step(group.select(gradients), group.select(others), group.peak_lr)
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_grouping_changes_no_bit(name, dtype, monkeypatch):
    """A stage's parameters may be grouped unlike the whole model's, and must move alike."""
    config = load_config(name, **({"precondition_frequency": 2} if name == "soap" else {}))
    weights = draw(SMALL_MODEL, seed=0, dtype=dtype)
    others = [weight.clone() for weight in weights]
    optimizer = build_optimizer(config, SMALL_MODEL, weights)
    bound_groups(monkeypatch, 1)
    other_optimizer = build_optimizer(config, SMALL_MODEL, others)
    assert len(other_optimizer.groups) == len(SMALL_MODEL) > len(optimizer.groups)
    for step in range(5):
        gradients = draw(SMALL_MODEL, seed=step + 1, dtype=dtype)
        advance(optimizer, gradients, weights)
        advance(other_optimizer, gradients, others)
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_zero_gradient_gives_zero_step(name, dtype):
    config = load_config(name, **({"weight_decay": 0.0} if name == "sgd" else {}))  # coupled decay is a step
    weights = draw(SMALL_MODEL, seed=0, dtype=dtype)
    zeros = [torch.zeros_like(weight) for weight in weights]
    optimizer = build_optimizer(config, SMALL_MODEL, weights)
    for _ in range(3):
        for group in optimizer.groups:
            updates = group.rule.update(group.select(zeros), group.select(weights), group.peak_lr)
            for weight, update in zip(group.select(weights), updates, strict=True):
                assert update.dtype == dtype and update.shape == weight.shape
                assert torch.count_nonzero(update) == 0


@pytest.mark.parametrize("name", MATRIX_OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [(0.0, 1e-30), (1e-30, 1e30), (1e30, 0.0), (1e30, 1e30), (1.0, 1e30)], ids=str)
def test_extreme_matrices_stay_finite(name, dtype, sizes):
    config = load_config(name, **({"precondition_frequency": 1} if name == "soap" else {}))
    infos = parameters((1, 48), (48, 1), (1, 1), (12, 40), (40, 12))
    weights = draw(infos, seed=0, dtype=dtype)
    optimizer = build_optimizer(config, infos, weights)
    for step, size in enumerate([*sizes, 1.0, 1.0]):
        advance(optimizer, draw(infos, seed=step + 1, dtype=dtype, std=size), weights)
        for weight in weights:
            assert weight.isfinite().all()
            assert weight.abs().max() < 10.0


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_measured_state_is_the_documented_one(name, dtype):
    weights = draw(SMALL_MODEL, seed=0, dtype=dtype)
    config = load_config(name)
    optimizer = build_optimizer(config, SMALL_MODEL, weights)
    rules = config.rules()
    documented = sum(rules[info.role].state_copies(info.shape) * info.num_elements for info in SMALL_MODEL)
    assert optimizer.num_state_elements() == documented
    advance(optimizer, draw(SMALL_MODEL, seed=1, dtype=dtype), weights)
    assert optimizer.num_state_elements() == documented


@pytest.mark.parametrize("shape", [(96, 96), (192, 192), (192, 576), (576, 192)], ids=str)
@pytest.mark.parametrize("name", ["muon", "normuon"])
def test_root_mean_square_of_an_update(name, shape):
    """scale=match_rms is there to make it about 0.2 of the learning rate, as AdamW's is.

    The quintic leaves singular values between 0.68 and 1.13, so a narrow spectrum may stray from these bounds.
    """
    config = load_config(name)
    infos = parameters(shape)
    weights = draw(infos, seed=0)
    optimizer = build_optimizer(config, infos, weights)
    for step in range(3):
        (update,) = optimizer.groups[0].rule.update(draw(infos, seed=step + 1), weights, config.lr)
        assert 0.17 <= update.square().mean().sqrt() / config.lr <= 0.21


@pytest.mark.parametrize("delayed, fresh", [("first", "second"), ("second", "first")])
def test_split_adamw_delays_one_moment_only(delayed, fresh):
    infos = parameters((8, 8), (8,), role=Role.HEAD)
    config = load_config("adamw_split", delayed_moment=delayed)
    weights = draw(infos, seed=0)
    rule = build_optimizer(config, infos, weights).groups[0].rule
    twins = {"stale": elementwise.AdamW(config, weights[0]), "fresh": elementwise.AdamW(config, weights[0])}
    for step in range(3):
        stale_gradients, fresh_gradients = draw(infos, seed=step), draw(infos, seed=step + 100)
        rule.observe_fresh_gradients(fresh_gradients)
        rule.update(stale_gradients, weights, config.lr)
        twins["stale"].step(weights[0], stale_gradients[0], config.lr)
        twins["fresh"].step(weights[0], fresh_gradients[0], config.lr)
    moments = {"first": "m", "second": "v"}
    torch.testing.assert_close(rule.state[f"{delayed}_moment"][0], getattr(twins["stale"], moments[delayed]))
    torch.testing.assert_close(rule.state[f"{fresh}_moment"][0], getattr(twins["fresh"], moments[fresh]))


@pytest.mark.parametrize("delayed", ["first", "second"])
def test_split_adamw_without_delay_is_adamw(delayed):
    config, split = load_config("adamw"), load_config("adamw_split", delayed_moment=delayed)
    weights = draw(SMALL_MODEL, seed=0, std=0.1)
    others = [weight.clone() for weight in weights]
    optimizer = build_optimizer(config, SMALL_MODEL, weights)
    split_optimizer = build_optimizer(split, SMALL_MODEL, others)
    for step in range(10):
        gradients = draw(SMALL_MODEL, seed=step + 1)
        advance(optimizer, gradients, weights)
        for group in split_optimizer.groups:
            assert group.rule.needs_fresh_gradients
            group.rule.observe_fresh_gradients(group.select(gradients))
        advance(split_optimizer, gradients, others)
    torch.testing.assert_close(weights, others, rtol=0.0, atol=1e-7)


def test_split_adamw_refuses_to_go_without_fresh_gradients():
    weights = draw(SMALL_MODEL, seed=0)
    rule = build_optimizer(load_config("adamw_split"), SMALL_MODEL, weights).groups[0].rule
    gradients = draw(SMALL_MODEL, seed=1)
    rule.observe_fresh_gradients(gradients)
    rule.update(gradients, weights, 1e-3)
    with pytest.raises(RuntimeError, match="fresh gradients first"):
        rule.update(gradients, weights, 1e-3)
