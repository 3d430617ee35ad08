"""The shape of a model, and what it may be. No torch here: a wrong value is reported at once.

conf/model/<name>.yaml holds the values and their sources; asyncpp/model/llama.py builds the modules.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from asyncpp.errors import require


@dataclass
class LlamaConfig:
    """A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

    hidden_size: width of the residual stream. ffn_size: width inside the SwiGLU block.
    num_kv_heads: heads of keys and values; each serves num_heads / num_kv_heads query heads.
    rope_theta: base of the rotary wavelengths. norm_eps: added to the mean square before its root.
    init_std: standard deviation of every matrix that does not write to the residual stream
    (asyncpp/model/init.py). tied_embeddings: the output head is the embedding's transpose.
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
            value = getattr(self, field)
            require(value >= 1, f"{key}.{field}", value, "expected one or more")
        for field in ("rope_theta", "norm_eps", "init_std"):
            value = getattr(self, field)
            require(value > 0.0, f"{key}.{field}", value, "expected a positive number")
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
        require(self.num_experts >= 1, f"{key}.num_experts", self.num_experts, "expected one or more")
        require(
            1 <= self.top_k <= self.num_experts,
            f"{key}.top_k",
            self.top_k,
            f"expected 1 to {key}.num_experts={self.num_experts}",
        )
        for field in ("shared_ffn_size", "load_balancing", "router_z"):
            value = getattr(self, field)
            require(value >= 0, f"{key}.{field}", value, "expected zero or more")
