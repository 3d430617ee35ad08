"""A model's recipe: its budget, data and learning rates, between the groups' defaults and the command line."""

from __future__ import annotations

import itertools

import pytest
from model_cases import SHIPPED_NAMES
from options import options_of

from asyncpp.config import Config, from_hydra
from asyncpp.errors import ConfigError
from asyncpp.hydra_command import compose_overrides
from asyncpp.model.counts import parameter_counts

SMALL, LARGE = ("135m", "135m_moe", "360m", "360m_moe"), ("1b", "2b_moe", "3b", "10b")
TINY = ("tiny", "tiny_moe")


def config_of(*overrides: str) -> Config:
    return from_hydra(compose_overrides(overrides))


def test_every_larger_model_has_a_recipe() -> None:
    recipes = set(options_of("recipe"))
    assert recipes - {"none"} == set(SHIPPED_NAMES) - set(TINY) == {*SMALL, *LARGE}


@pytest.mark.parametrize("model", [*SMALL, *LARGE])
def test_the_budget_is_twenty_tokens_a_parameter_in_the_papers_batches(model: str) -> None:
    config = config_of(f"model={model}")
    batch_tokens = config.trainer.batch_size * config.data.sequence_length
    least, most = (180_000, 360_000) if model in SMALL else (1_000_000, 4_000_000)
    assert least <= batch_tokens <= most
    budget = 20 * parameter_counts(config.model).total
    assert (config.trainer.num_steps - 1) * batch_tokens < budget <= config.trainer.num_steps * batch_tokens
    expected_tokens = config.data.expected_tokens()  # type: ignore[attr-defined]
    assert expected_tokens is not None and budget < expected_tokens  # the sample of the data holds it once


@pytest.mark.parametrize("model", TINY)
def test_the_tiny_models_take_the_defaults(model: str) -> None:
    config = config_of(f"model={model}")
    assert (config.trainer.num_steps, config.trainer.batch_size, config.data.name) == (400, 16, "sotu")


@pytest.mark.parametrize("optimizer", options_of("optimizer"))
def test_every_optimizer_has_a_rate_of_its_own_in_every_recipe(optimizer: str) -> None:
    rule = optimizer.removesuffix("_split")
    for model in (*SMALL, *LARGE):
        composed = compose_overrides([f"model={model}", f"optimizer={optimizer}"])
        config = from_hydra(composed)
        assert config.optimizer.lr == composed.recipe.lr[rule]
        for other in {id(rule): rule for rule in config.optimizer.rules().values()}.values():
            assert other.lr in (composed.recipe.lr[rule], composed.recipe.lr.adamw)


def test_matrix_optimizers_give_the_other_roles_the_recipes_rate_of_adamw() -> None:
    muon, adamw = config_of("model=10b", "optimizer=muon").optimizer, config_of("model=10b").optimizer
    assert muon.adamw.lr == adamw.lr == 7.0e-4  # type: ignore[attr-defined]


def test_the_papers_line_is_the_papers_experiment_at_each_size() -> None:
    cells = itertools.product(("adamw", "muon"), ("none", "ef"), ("1b", "3b", "10b"))
    configs = {cell: config_of(*(f"{k}={v}" for k, v in zip(("optimizer", "correction", "model"), cell, strict=True)))
               for cell in cells}  # fmt: skip
    assert len({config.hash() for config in configs.values()}) == 12
    for (optimizer, correction, model), config in configs.items():
        assert (config.optimizer.name, config.correction.name, config.model.name) == (optimizer, correction, model)
        assert (config.trainer, config.data) == (
            configs["adamw", "none", model].trainer,
            config_of(f"model={model}").data,
        )
        assert config.lr_schedule.name == "cosine" and config.trainer.max_grad_norm == 1.0  # the paper's, for all


def test_the_command_line_wins() -> None:
    overrides = ("optimizer.lr=1e-5", "trainer.num_steps=7", "data=local", "data.path=x", "data.sequence_length=512")
    for order in (("model=1b", *overrides), (*overrides, "model=1b")):
        config = config_of(*order)
        assert (config.optimizer.lr, config.trainer.num_steps, config.trainer.batch_size) == (1e-5, 7, 512)
        assert (config.data.name, config.data.sequence_length, config.model.name) == ("local", 512, "1b")
    assert config_of("model=1b", "recipe.lr.adamw=2e-3").optimizer.lr == 2e-3


def test_another_recipe_and_none_can_be_chosen() -> None:
    other = config_of("model=135m", "recipe=360m")
    assert other.trainer == config_of("model=360m").trainer and other.model.name == "135m"
    none = config_of("model=135m", "recipe=none")
    assert (none.trainer, none.data, none.optimizer) == (config_of().trainer, config_of().data, config_of().optimizer)
    with pytest.raises(ConfigError, match="recipe=7b: expected one of 10b, 135m"):
        compose_overrides(["recipe=7b"])
