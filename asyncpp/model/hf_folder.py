"""A model in a folder as transformers writes and reads it: config.json, safetensors, tokenizer. No network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open
from torch import Tensor

from asyncpp.errors import ConfigError, require
from asyncpp.model.config import LlamaConfig, MoEConfig
from asyncpp.model.convert import locate, to_hf
from asyncpp.model.hf_config import read_hf_config
from asyncpp.parameters import ParameterInfo

MAX_SHARD_SIZE = "5GB"

# Our shape's fields by the names that config.json has for them.
HF_KEYS = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
HF_MIXTURE_KEYS = {
    "num_experts": "num_local_experts",
    "top_k": "num_experts_per_tok",
    "shared_ffn_size": "shared_intermediate_size",
    "load_balancing": "router_aux_loss_coef",
}


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


def read_model_config(key: str, folder: Path) -> LlamaConfig:
    """The shape of the model in a transformers folder.

    Raises ConfigError for ``key``, whose value ``folder`` is, where that is no model that ours can be.
    """
    found = read_hf_config(key, folder)
    is_mixture = found.get("model_type") == "granitemoeshared"
    accepted = "expected a config.json of the model_type llama or granitemoeshared"
    require(is_mixture or found.get("model_type") == "llama", key, folder, accepted)
    try:
        values = {field: found[name] for field, name in HF_KEYS.items()}
        mixture_values = {field: found[name] for field, name in HF_MIXTURE_KEYS.items()} if is_mixture else {}
    except KeyError as missing:
        raise ConfigError(key, folder, f"expected a config.json with {missing}") from None
    values |= {"name": folder.name, "init_std": found.get("initializer_range", 0.02)}
    config = MoEConfig(**values, **mixture_values, router_z=0.0) if is_mixture else LlamaConfig(**values)
    for name, value in config.hf_config().items():
        if name != "architectures":
            accepted = f"expected a model with {name} {value}, the only one that ours can have, not {found.get(name)}"
            require(found.get(name) in (None, value), key, folder, accepted)
    return config


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
    try:
        with safe_open(file, framework="pt") as stored:
            return list(stored.keys())
    except (OSError, SafetensorError) as error:
        raise ConfigError("model.init_from", file, f"expected whole safetensors ({error})") from None
