"""The shape of a model, and what it may be. No torch here: a wrong value is reported at once.

conf/model/<name>.yaml holds the values and their sources; asyncpp/model/llama.py builds the modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from asyncpp.errors import check_count, check_not_negative, check_positive, require
from asyncpp.model.hf_config import read_hf_config


@dataclass
class LlamaConfig:
    """A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

    hidden_size: width of the residual stream. ffn_size: width inside the SwiGLU block.
    num_kv_heads: heads of keys and values; each serves num_heads / num_kv_heads query heads.
    rope_theta: base of the rotary wavelengths. norm_eps: added to the mean square before its root.
    init_std: standard deviation of every matrix that does not write to the residual stream
    (asyncpp/model/init.py). tied_embeddings: the output head is the embedding's transpose.
    init_from: a transformers folder whose weights a run starts from; null draws them.
    """

    name: str = MISSING
    vocab_size: int = MISSING
    num_layers: int = MISSING
    hidden_size: int = MISSING
    ffn_size: int = MISSING
    num_heads: int = MISSING
    num_kv_heads: int = MISSING
    rope_theta: float = MISSING
    norm_eps: float = MISSING
    init_std: float = MISSING
    tied_embeddings: bool = MISSING
    init_from: str | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of all keys (or values) of a token."""
        return self.num_kv_heads * self.head_dim

    def check(self, key: str) -> None:
        """Raise ConfigError for a shape that cannot be built; ``key`` is where this config stands."""
        for field in ("vocab_size", "num_layers", "hidden_size", "ffn_size", "num_heads", "num_kv_heads"):
            check_count(f"{key}.{field}", getattr(self, field))
        for field in ("rope_theta", "norm_eps", "init_std"):
            check_positive(f"{key}.{field}", getattr(self, field))
        require(
            self.hidden_size % self.num_heads == 0,
            f"{key}.num_heads",
            self.num_heads,
            f"expected a divisor of {key}.hidden_size={self.hidden_size}",
        )
        require(
            self.num_heads % self.num_kv_heads == 0,
            f"{key}.num_kv_heads",
            self.num_kv_heads,
            f"expected a divisor of {key}.num_heads={self.num_heads}",
        )
        require(
            self.head_dim % 2 == 0,
            f"{key}.num_heads",
            self.num_heads,
            f"expected heads of an even size, but {key}.hidden_size={self.hidden_size} gives {self.head_dim}: "
            "rotary positions turn pairs",
        )
        if self.init_from is not None:
            self._check_init_from(f"{key}.init_from", self.init_from)

    def check_processes(self, key: str, num_stages: int, updated_alike: bool, where: str) -> None:
        """Raise ConfigError where a tied embedding's two copies, on the first and the last stage, would part.

        updated_alike: both stages have one delay, and clip as one. where: what decides that, in words.
        """
        together = not self.tied_embeddings or num_stages == 1 or updated_alike
        accepted = f"expected false: with {where} its two copies would part"
        require(together, f"{key}.tied_embeddings", True, accepted)

    def hf_config(self) -> dict[str, Any]:
        """What transformers' config.json says of this shape; token ids and lengths are not the model's to say."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.ffn_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,  # where transformers 4 looks, and below where 5 does
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "tie_word_embeddings": self.tied_embeddings,
            "initializer_range": self.init_std,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
        }

    def _check_init_from(self, key: str, folder: str) -> None:
        found = read_hf_config(key, Path(folder))
        for name, value in self.hf_config().items():
            if name not in ("architectures", "initializer_range"):
                accepted = f"expected a model with {name} {value}, as model={self.name} has, not {found.get(name)}"
                require(found.get(name) in (None, value), key, folder, accepted)


@dataclass
class MoEConfig(LlamaConfig):
    """The same decoder, with a mixture of experts in place of every layer's SwiGLU (asyncpp/model/moe.py).

    ffn_size: width inside one expert. num_experts: routed experts of a layer. top_k: how many of them serve a token.
    shared_ffn_size: width of the expert that serves every token; 0 leaves it out.
    load_balancing, router_z: coefficients of the two auxiliary losses, each a mean over the model's layers.
    """

    num_experts: int = MISSING
    top_k: int = MISSING
    shared_ffn_size: int = MISSING
    load_balancing: float = MISSING
    router_z: float = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_count(f"{key}.num_experts", self.num_experts)
        require(
            min(2, self.num_experts) <= self.top_k <= self.num_experts,
            f"{key}.top_k",
            self.top_k,
            f"expected 2 to {key}.num_experts={self.num_experts}: gates sum to one, so that of a single expert "
            "would teach the router nothing",
        )
        for field in ("shared_ffn_size", "load_balancing", "router_z"):
            check_not_negative(f"{key}.{field}", getattr(self, field))

    def hf_config(self) -> dict[str, Any]:
        """As GraniteMoeShared, whose multipliers are one here, but for the usual 1/sqrt(head_dim) of the scores."""
        llama = super().hf_config()
        del llama["mlp_bias"]
        return llama | {
            "architectures": ["GraniteMoeSharedForCausalLM"],
            "model_type": "granitemoeshared",
            "num_local_experts": self.num_experts,
            "num_experts_per_tok": self.top_k,
            "shared_intermediate_size": self.shared_ffn_size,
            "router_aux_loss_coef": self.load_balancing,
            "attention_multiplier": self.head_dim**-0.5,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        }
