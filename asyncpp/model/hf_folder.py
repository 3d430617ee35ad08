"""A model in a folder as transformers writes and reads it: config.json, safetensors, tokenizer. No network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from torch import Tensor

from asyncpp.errors import ConfigError, require
from asyncpp.model.config import LlamaConfig
from asyncpp.model.convert import locate, to_hf
from asyncpp.parameters import ParameterInfo

MAX_SHARD_SIZE = "5GB"


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer.json, and the special token (with its id) that stands between documents."""

    path: Path
    end_of_document: str
    end_of_document_id: int


def write_folder(
    out: Path,
    config: LlamaConfig,
    weights: Mapping[str, Tensor],
    tokenizer: TokenizerFile,
    sequence_length: int,
) -> None:
    """Write a folder for AutoModelForCausalLM.from_pretrained and AutoTokenizer.from_pretrained.

    weights: by our names, in the dtype to be written. sequence_length: what the model was trained on.
    The folder appears whole or not at all. Raises ConfigError if it is there already.
    """
    require(not out.exists(), "out", out, "expected a folder that does not exist yet")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise ConfigError("out", out, f"expected a folder that can be made ({error.strerror})") from None
    tensors = to_hf(config, weights)
    dtype = str(tensors["model.norm.weight"].dtype).removeprefix("torch.")
    token_ids = {"bos_token_id": tokenizer.end_of_document_id, "eos_token_id": tokenizer.end_of_document_id}
    described = config.hf_config() | token_ids | {"max_position_embeddings": sequence_length, "torch_dtype": dtype}
    (partial / "config.json").write_text(json.dumps(described, indent=2) + "\n")
    shutil.copyfile(tokenizer.path, partial / "tokenizer.json")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.end_of_document,
        "eos_token": tokenizer.end_of_document,
        "model_max_length": sequence_length,
    }
    (partial / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")
    save_torch_state_dict(tensors, partial, max_shard_size=MAX_SHARD_SIZE, metadata={"format": "pt"})
    partial.rename(out)


def read_weights(folder: Path, config: LlamaConfig, infos: Sequence[ParameterInfo]) -> list[Tensor]:
    """The values of ``infos`` from a transformers folder, fp32 on the CPU. Reads only the tensors that hold them."""
    located = locate(config)
    files = sorted(folder.glob("*.safetensors"))
    require(bool(files), "model.init_from", folder, "expected a folder with .safetensors files")
    file_of = {name: file for file in files for name in _names_in(file)}
    weights = []
    for info in infos:
        location = located[info.name]
        require(location.hf_name in file_of, "model.init_from", folder, f"expected a tensor {location.hf_name}")
        with safe_open(file_of[location.hf_name], framework="pt") as stored:
            weight = location.read(stored.get_tensor).to(torch.float32)
        found = tuple(weight.shape)
        require(
            found == info.shape, "model.init_from", folder, f"expected {info.name} of shape {info.shape}, not {found}"
        )
        weights.append(weight)
    return weights


def _names_in(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as stored:
        return list(stored.keys())
