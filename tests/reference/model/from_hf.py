"""A whole transformers model as ours, at once; a run reads the tensors of its own parameters (model/hf_folder.py)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from asyncpp.model.config import LlamaConfig
from asyncpp.model.convert import locate
from asyncpp.model.layout import parameter_infos


def from_hf(config: LlamaConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a transformers model of ``config``'s shape as weights by our names."""
    located = locate(config)
    return {info.name: located[info.name].read(tensors.__getitem__) for info in parameter_infos(config)}
