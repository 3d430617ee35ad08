"""The shipped optimizer configs, and the values that they refuse."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
from optimizer_cases import MATRIX_OPTIMIZERS, load_config
from options import OPTIMIZERS, options_of

from asyncpp.errors import ConfigError
from asyncpp.optim.config import OptimizerConfig
from asyncpp.optim.groups import rule_class
from asyncpp.parameters import Role


@pytest.mark.parametrize("name", options_of("optimizer"))
def test_config_names_itself_and_its_rules(name):
    config = load_config(name)
    assert config.name == name
    assert set(config.rules()) == set(Role)
    assert rule_class(config).__module__ == f"asyncpp.optim.{name}"


@pytest.mark.parametrize("name", MATRIX_OPTIMIZERS)
def test_matrix_rules_leave_other_roles_to_adamw(name):
    config = load_config(name)
    rules = config.rules()
    assert rules.pop(Role.MATRIX) is config
    assert all(rule is config.adamw for rule in rules.values())


@pytest.mark.parametrize(
    "name, overrides, key",
    [
        *((name, {"lr": lr}, "optimizer.lr") for name in OPTIMIZERS for lr in (0.0, -1e-3, float("nan"), float("inf"))),
        *((name, {"weight_decay": -0.1}, "optimizer.weight_decay") for name in OPTIMIZERS),
        ("adamw", {"betas": [0.9, 1.0]}, "optimizer.betas"),
        ("adamw", {"betas": [-0.1, 0.9]}, "optimizer.betas"),
        ("adamw", {"eps": 0.0}, "optimizer.eps"),
        ("adamw_split", {"delayed_moment": "third"}, "optimizer.delayed_moment"),
        ("muon", {"momentum": 1.0}, "optimizer.momentum"),
        ("muon", {"scale": "rms"}, "optimizer.scale"),
        ("muon", {"newton_schulz": "cubic"}, "optimizer.newton_schulz"),
        ("muon", {"newton_schulz_dtype": "float16"}, "optimizer.newton_schulz_dtype"),
        ("muon", {"adamw": {"lr": 0.0}}, "optimizer.adamw.lr"),
        ("mars", {"adamw": {"betas": [0.9, 2.0]}}, "optimizer.adamw.betas"),
        ("mars", {"gamma": -1.0}, "optimizer.gamma"),
        ("mars", {"betas": [1.0, 0.9]}, "optimizer.betas"),
        ("normuon", {"beta2": 1.5}, "optimizer.beta2"),
        ("normuon", {"scale": "rms"}, "optimizer.scale"),
        ("soap", {"shampoo_beta": 1.0}, "optimizer.shampoo_beta"),
        ("soap", {"precondition_frequency": 0}, "optimizer.precondition_frequency"),
        ("soap", {"max_precondition_dim": -1}, "optimizer.max_precondition_dim"),
        ("soap", {"eps": -1e-8}, "optimizer.eps"),
        ("adan", {"betas": [0.98, 0.92, 1.0]}, "optimizer.betas"),
        ("adan", {"eps": 0.0}, "optimizer.eps"),
        ("lion", {"betas": [0.9, 1.0]}, "optimizer.betas"),
        ("nadam", {"momentum_decay": -0.1}, "optimizer.momentum_decay"),
        ("sgd", {"momentum": 1.0}, "optimizer.momentum"),
        ("sgd", {"momentum": 0.0, "nesterov": True}, "optimizer.nesterov"),
    ],
)
def test_values_that_no_run_can_use_are_refused(name, overrides, key):
    with pytest.raises(ConfigError, match="expected") as error:
        load_config(name, **overrides)
    assert error.value.key == key


def test_a_wrong_number_of_betas_is_refused():
    config = load_config("adan")
    config.betas = [0.9, 0.95]
    with pytest.raises(ConfigError, match="expected 3 numbers"):
        config.check("optimizer")


def test_configs_need_no_torch():
    code = "import sys, asyncpp.optim.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_config_that_does_not_say_what_its_rule_takes_is_refused_at_once():
    @dataclass
    class Silent(OptimizerConfig):
        rule = "asyncpp.optim.lion.Lion"

    with pytest.raises(TypeError, match=r"state_copies.*workspace_copies"):
        Silent(name="silent", lr=1.0, weight_decay=0.0)
