"""What ``eval/run.py`` can be told, typed and checked. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from asyncpp.arguments import to_dataclass
from asyncpp.errors import check_option, require
from asyncpp.export import DTYPES, READINGS

AUTO = "auto"
NEWEST, ALL, WATCH = "newest", "all", "watch"
CHECKPOINTS = (NEWEST, ALL, WATCH)


@dataclass
class DataOptions:
    data_root: str | None = None


@dataclass
class EvalConfig:
    """The keys of conf/eval.yaml, which says what they mean."""

    ckpt: Any = MISSING
    checkpoints: str = MISSING
    tasks: Any = MISSING
    num_fewshot: int | None = MISSING
    limit: int | None = MISSING
    weights: str = MISSING
    max_length: int | None = MISSING
    batch_size: Any = MISSING
    device: str = MISSING
    dtype: str = MISSING
    num_threads: int | None = MISSING
    tokenizer: str | None = MISSING
    again: bool = MISSING
    json: bool = MISSING
    eval: DataOptions = MISSING

    def check(self) -> None:
        """Raise ConfigError for a value that cannot be used, but for what must be looked up."""
        for key, least in (("num_fewshot", 0), ("limit", 1), ("max_length", 1), ("num_threads", 1)):
            value = getattr(self, key)
            require(value is None or value >= least, key, value, f"expected {least} or more, or null")
        size = self.batch_size
        is_size = size == AUTO or (type(size) is int and size >= 1)
        require(is_size, "batch_size", size, f"expected 1 or more, or {AUTO}")
        check_option("weights", self.weights, READINGS)
        check_option("checkpoints", self.checkpoints, CHECKPOINTS)
        check_option("dtype", self.dtype, DTYPES)
        for key in ("ckpt", "tasks"):
            values = getattr(self, key)
            are_texts = all(isinstance(value, str) and value for value in values)
            require(bool(values) and are_texts, key, values, "expected a text, or a list of texts")

    @property
    def settings(self) -> dict[str, Any]:
        """What changes a task's scores, besides checkpoint and weights; batch size and device move the last bits only.

        max_length as asked for: null stands for the model's own.
        """
        own = asdict(self)
        return {key: own[key] for key in ("num_fewshot", "limit", "max_length", "dtype", "tokenizer")}


def from_hydra(composed: DictConfig) -> EvalConfig:
    """Type and check what Hydra composed. Raises ConfigError."""
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    config = to_dataclass(own, EvalConfig)
    for key in ("ckpt", "tasks"):
        if isinstance(getattr(config, key), str):
            setattr(config, key, [getattr(config, key)])
    config.check()
    return config
