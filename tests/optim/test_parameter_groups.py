"""Grouping: every parameter once, by its role's rule; and the state's round trip through a checkpoint's tensors."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_cases import MATRIX_OPTIMIZERS, SMALL_MODEL, advance, bound_groups, draw, load_config
from options import OPTIMIZERS, options_of

from asyncpp.errors import ConfigError
from asyncpp.optim import groups
from asyncpp.optim.groups import build_optimizer
from asyncpp.parameters import ParameterInfo, Role

SHAPES = st.sampled_from([(6, 4), (4, 6), (4, 4)])
MODELS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([Role.MATRIX, Role.EMBEDDING, Role.HEAD]), SHAPES),
        st.tuples(st.sampled_from([Role.NORM, Role.BIAS]), st.just((4,))),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(model=MODELS, name=st.sampled_from(OPTIMIZERS), bound=st.sampled_from([1, 40, 2**20]))
def test_every_parameter_is_in_one_group_of_its_roles_rule(model, name, bound):
    infos = [ParameterInfo(f"p{i}", role, shape) for i, (role, shape) in enumerate(model)]
    config = load_config(name)
    with pytest.MonkeyPatch.context() as patch:
        bound_groups(patch, bound)
        optimizer = build_optimizer(config, infos, draw(infos, seed=0))
    assert sorted(index for group in optimizer.groups for index in group.indices) == list(range(len(infos)))
    for group in optimizer.groups:
        assert group.infos == tuple(infos[index] for index in group.indices)
        assert list(group.indices) == sorted(group.indices)
        assert len(group.indices) == 1 or group.num_elements <= bound
        rule_configs = {id(config.rules()[role]): config.rules()[role] for role in group.roles}
        assert len(rule_configs) == 1
        (rule_config,) = rule_configs.values()
        assert isinstance(group.rule, groups.rule_class(rule_config))
        assert group.peak_lr == rule_config.lr
        if rule_config.same_shape:
            assert len({info.shape for info in group.infos}) == 1


def test_matrices_of_one_shape_share_a_group():
    optimizer = build_optimizer(load_config("muon"), SMALL_MODEL, draw(SMALL_MODEL, seed=0))
    names = {group.names for group in optimizer.groups if Role.MATRIX in group.roles}
    assert ("layers.0.q.weight", "layers.1.q.weight") in names
    assert len(names) == 4


def test_dtypes_are_not_mixed():
    weights = draw(SMALL_MODEL, seed=0)
    weights[1] = weights[1].bfloat16()
    optimizer = build_optimizer(load_config("lion"), SMALL_MODEL, weights)
    assert [group.names for group in optimizer.groups if len(group.names) == 1] == [("layers.0.norm.weight",)]
    gradients = draw(SMALL_MODEL, seed=1)
    gradients[1] = gradients[1].bfloat16()
    advance(optimizer, gradients, weights)
    assert weights[1].dtype == torch.bfloat16


@pytest.mark.parametrize("name", MATRIX_OPTIMIZERS)
def test_a_model_without_matrices(name):
    infos = [info for info in SMALL_MODEL if info.role is not Role.MATRIX]
    weights = draw(infos, seed=0)
    optimizer = build_optimizer(load_config(name), infos, weights)
    advance(optimizer, draw(infos, seed=1), weights)
    assert [type(group.rule).__name__ for group in optimizer.groups] == ["AdamW"]


def test_description_names_every_group():
    config = load_config("muon", lr=0.01)
    lines = build_optimizer(config, SMALL_MODEL, draw(SMALL_MODEL, seed=0)).describe().splitlines()
    assert len(lines) == 5
    assert "AdamW" in lines[0] and "embedding+norm+bias+head" in lines[0] and "4 tensors" in lines[0]
    assert "Muon" in lines[1] and "0.01" in lines[1] and "layers.0.q.weight ... layers.1.q.weight" in lines[1]


@pytest.mark.parametrize(
    "spoil, key",
    [
        (lambda infos, weights: weights.pop(), "weights"),
        (lambda infos, weights: infos.__setitem__(1, infos[0]), "embedding.weight"),
        (lambda infos, weights: weights.__setitem__(8, weights[0]), "head.weight"),
        (lambda infos, weights: weights.__setitem__(2, weights[3]), "layers.0.q.weight"),
        (
            lambda infos, weights: infos.__setitem__(1, dataclasses.replace(infos[1], role=Role.MATRIX)),
            "layers.0.norm.weight",
        ),
    ],
)
def test_what_cannot_be_grouped_is_an_error(spoil, key):
    infos, weights = list(SMALL_MODEL), draw(SMALL_MODEL, seed=0)
    spoil(infos, weights)
    with pytest.raises(ConfigError) as error:
        build_optimizer(load_config("muon"), infos, weights)
    assert error.value.key == key


@pytest.mark.parametrize("name", options_of("optimizer"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_state_round_trip_continues_bit_for_bit(name, dtype, num_before, tmp_path, monkeypatch):
    config = load_config(name, **({"precondition_frequency": 2} if name == "soap" else {}))
    weights = draw(SMALL_MODEL, seed=0, dtype=dtype)
    optimizer = build_optimizer(config, SMALL_MODEL, weights)

    def train(optimizer, weights, steps):
        for step in steps:
            gradients = draw(SMALL_MODEL, seed=step + 1, dtype=dtype)
            for group in optimizer.groups:
                if group.rule.needs_fresh_gradients:
                    group.rule.observe_fresh_gradients(group.select(gradients))
            advance(optimizer, gradients, weights)

    train(optimizer, weights, range(num_before))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    resumed_weights = [weight.clone() for weight in weights]
    train(optimizer, weights, range(num_before, 6))

    bound_groups(monkeypatch, 300)  # another grouping opens the same checkpoint
    resumed = build_optimizer(config, SMALL_MODEL, resumed_weights)
    assert len(resumed.groups) > len(optimizer.groups)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    train(resumed, resumed_weights, range(num_before, 6))
    for weight, other in zip(weights, resumed_weights, strict=True):
        assert torch.equal(weight, other)
    state, other_state = optimizer.state_dict(), resumed.state_dict()
    assert state.keys() == other_state.keys()
    assert all(torch.equal(state[key], other_state[key]) for key in state)


def test_state_keys_name_the_parameter():
    optimizer = build_optimizer(load_config("adamw"), SMALL_MODEL, draw(SMALL_MODEL, seed=0))
    state = optimizer.state_dict()
    assert len(state) == 3 * len(SMALL_MODEL)
    assert state["head.weight.second_moment"].shape == (40, 16)
    assert state["head.weight.num_updates"] == 0


@pytest.mark.parametrize(
    "spoil, key, accepted",
    [
        (lambda s: s.pop("head.weight.first_moment"), "head.weight.first_moment", "expected in the optimizer state"),
        (lambda s: s.update({"tail.weight.first_moment": torch.zeros(1)}), "tail.weight.first_moment", "no such state"),
        (
            lambda s: s.update({"head.weight.first_moment": torch.zeros(40, 15)}),
            "head.weight.first_moment",
            r"expected float32 \(40, 16\)",
        ),
        (
            lambda s: s.update({"head.weight.first_moment": torch.zeros(40, 16, dtype=torch.bfloat16)}),
            "head.weight.first_moment",
            "expected float32",
        ),
        (
            lambda s: s.update({"head.weight.num_updates": torch.tensor(7)}),
            "embedding.weight.num_updates",
            "expected one number",
        ),
    ],
)
def test_state_that_does_not_fit_is_an_error_and_changes_nothing(spoil, key, accepted):
    weights = draw(SMALL_MODEL, seed=0)
    optimizer = build_optimizer(load_config("adamw"), SMALL_MODEL, weights)
    advance(optimizer, draw(SMALL_MODEL, seed=1), weights)
    state = build_optimizer(load_config("adamw"), SMALL_MODEL, weights).state_dict()
    spoil(state)
    before = {name: tensor.clone() for name, tensor in optimizer.state_dict().items()}
    with pytest.raises(ConfigError, match=accepted) as error:
        optimizer.load_state_dict(state)
    assert error.value.key == key
    assert all(torch.equal(before[name], tensor) for name, tensor in optimizer.state_dict().items())
