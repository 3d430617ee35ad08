"""What a parameter is for. The model states it, the optimizer groups by it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """The part that a parameter plays, decided on the whole model before any splitting."""

    MATRIX = "matrix"  # a hidden linear map, out x in
    EMBEDDING = "embedding"  # vocabulary x width; a tied embedding is this one parameter
    HEAD = "head"  # vocabulary x width, only where it is not tied
    NORM = "norm"  # the gain of a normalisation, width
    BIAS = "bias"


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter's name, role and shape, without its values. A model lists them in canonical order."""

    name: str
    role: Role
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)
