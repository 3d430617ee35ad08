"""Which stage owns which parameter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from asyncpp.parameters import ParameterInfo

_LAYER = re.compile(r"layers\.(\d+)\.")


def even_split(num_layers: int, num_stages: int) -> list[range]:
    """Consecutive layers for every stage, as even as they come; the earlier stages take what is left over."""
    size, larger = divmod(num_layers, num_stages)
    starts = [stage * size + min(stage, larger) for stage in range(num_stages + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def indices_by_stage(parameters: Sequence[ParameterInfo], layers: Sequence[range]) -> list[list[int]]:
    """Positions in the canonical parameter list that each stage owns.

    The embedding, which a tied head shares, belongs to the first stage, the last norm and the head to the last.
    ``layers``: one range a stage, as from ``even_split``.
    """
    owned: list[list[int]] = [[] for _ in layers]
    for index, parameter in enumerate(parameters):
        owned[_stage_of(parameter.name, layers)].append(index)
    return owned


def _stage_of(name: str, layers: Sequence[range]) -> int:
    match = _LAYER.match(name)
    if match is None:
        return 0 if name.startswith("embedding.") else len(layers) - 1
    layer = int(match.group(1))
    return next(stage for stage, owned in enumerate(layers) if layer in owned)
