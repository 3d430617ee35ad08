"""Configs of the model tests: the shipped ones, and one small enough for finite loops in fp64."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from asyncpp.model.config import LlamaConfig

CONF = Path(__file__).parents[2] / "conf" / "model"


def shipped(name: str) -> LlamaConfig:
    """The config that conf/model/<name>.yaml holds."""
    return instantiate(OmegaConf.load(CONF / f"{name}.yaml"))


@pytest.fixture
def small() -> LlamaConfig:
    return LlamaConfig(
        name="small",
        vocab_size=61,
        num_layers=3,
        hidden_size=24,
        ffn_size=40,
        num_heads=6,
        num_kv_heads=2,
        rope_theta=10000.0,
        norm_eps=1e-5,
        init_std=0.2,
        tied_embeddings=False,
    )
