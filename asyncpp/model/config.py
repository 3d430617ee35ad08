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
            require(getattr(self, field) >= 1, f"{key}.{field}", getattr(self, field), "expected one or more")
        for field in ("rope_theta", "norm_eps", "init_std"):
            require(getattr(self, field) > 0.0, f"{key}.{field}", getattr(self, field), "expected a positive number")
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
