from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_cases import SMALL, SMALL_MOE
from reference.model.from_hf import from_hf
from tokenizers import Tokenizer, models

from asyncpp.errors import ConfigError
from asyncpp.model import hf_folder
from asyncpp.model.config import LlamaConfig
from asyncpp.model.convert import to_hf
from asyncpp.model.hf_folder import TokenizerFile, write_folder
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos

CONFIGS = [SMALL, replace(SMALL, tied_embeddings=True), SMALL_MOE, replace(SMALL_MOE, shared_ffn_size=0)]


def named_weights(config: LlamaConfig) -> dict[str, torch.Tensor]:
    return dict(zip((info.name for info in parameter_infos(config)), initial_weights(config, seed=0), strict=True))


@pytest.fixture
def tokenizer(tmp_path: Path) -> TokenizerFile:
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.BPE({"<end>": 0, "a": 1, "b": 2}, [])).save(str(path))
    return TokenizerFile(path, "<end>", 0)


@pytest.mark.parametrize("config", CONFIGS)
def test_there_and_back_is_the_identity_in_canonical_order(config: LlamaConfig) -> None:
    weights = named_weights(config)
    back = from_hf(config, to_hf(config, weights))
    assert list(back) == list(weights)
    assert all(torch.equal(back[name], weights[name]) for name in weights)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("max_shard_size", ["5GB", "4KB"])
def test_a_run_starts_from_a_written_folder(
    config: LlamaConfig, max_shard_size: str, tmp_path: Path, tokenizer: TokenizerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_folder, "MAX_SHARD_SIZE", max_shard_size)
    weights = named_weights(config)
    write_folder(tmp_path / "out", config, weights, tokenizer, sequence_length=16)
    assert (len(list((tmp_path / "out").glob("*.safetensors"))) > 1) == (max_shard_size == "4KB")
    started = replace(config, init_from=str(tmp_path / "out"))
    started.check("model")
    for read, weight in zip(initial_weights(started, seed=1), weights.values(), strict=True):
        assert torch.equal(read, weight)
    last = parameter_infos(config)[-1:]
    assert torch.equal(initial_weights(started, 1, last)[0], weights[last[0].name])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_layers": 2}, "num_hidden_layers 2"),
        ({"tied_embeddings": True}, "tie_word_embeddings True"),
        ({"rope_theta": 500.0}, "rope_theta 500.0"),
        ({"norm_eps": 1e-6}, "rms_norm_eps 1e-06"),
    ],
)
def test_a_folder_of_another_shape_is_refused(
    change: dict, named: str, tmp_path: Path, tokenizer: TokenizerFile
) -> None:
    write_folder(tmp_path / "out", SMALL, named_weights(SMALL), tokenizer, sequence_length=16)
    with pytest.raises(ConfigError, match=named) as refusal:
        replace(SMALL, init_from=str(tmp_path / "out"), **change).check("model")
    assert refusal.value.key == "model.init_from"


def test_scaled_positions_and_multipliers_are_refused(tmp_path: Path, tokenizer: TokenizerFile) -> None:
    write_folder(tmp_path / "out", SMALL_MOE, named_weights(SMALL_MOE), tokenizer, sequence_length=16)
    file = tmp_path / "out" / "config.json"
    written = json.loads(file.read_text())
    started = replace(SMALL_MOE, init_from=str(tmp_path / "out"))
    for change in (
        {"residual_multiplier": 0.22},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn"}},
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ):
        file.write_text(json.dumps(written | change))
        with pytest.raises(ConfigError, match="expected a model with"):
            started.check("model")


def test_a_missing_folder_and_an_unreadable_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=r"config\.json") as refusal:
            replace(SMALL, init_from=str(folder)).check("model")
        assert "\n" not in str(refusal.value)


def test_missing_or_misshapen_tensors_are_refused(tmp_path: Path, tokenizer: TokenizerFile) -> None:
    write_folder(tmp_path / "out", SMALL, named_weights(SMALL), tokenizer, sequence_length=16)
    folder = str(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"model\.layers\.3\.input_layernorm"):
        initial_weights(replace(SMALL, num_layers=4, init_from=folder), seed=0)
    with pytest.raises(ConfigError, match=r"expected layers\.0\.mlp\.gate\.weight of shape"):
        initial_weights(replace(SMALL, ffn_size=41, init_from=folder), seed=0)


def test_nothing_is_overwritten(tmp_path: Path, tokenizer: TokenizerFile) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="does not exist yet"):
        write_folder(tmp_path / "out", SMALL, named_weights(SMALL), tokenizer, sequence_length=16)
    assert list((tmp_path / "out").iterdir()) == []
