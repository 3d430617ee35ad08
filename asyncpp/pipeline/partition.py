"""Which part of the pipeline owns which layers and parameters. No torch here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from asyncpp.model.config import LlamaConfig
from asyncpp.model.counts import flops_per_token
from asyncpp.parameters import ParameterInfo
from asyncpp.schedule.split import split_layers

_LAYER = re.compile(r"layers\.(\d+)\.")


def split_by_cost(model: LlamaConfig, sequence_length: int, num_parts: int) -> list[range]:
    """Consecutive layers for every part so that the slowest part is as fast as can be, by floating-point operations.

    The embedding, a look-up, costs nothing; the head counts, and so the last part may get fewer layers.
    Raises ConfigError where there are fewer layers than parts.
    """
    head = 6.0 * model.vocab_size * model.hidden_size
    layer = (flops_per_token(model, sequence_length) - head) / model.num_layers
    sizes = list(split_layers([0.0, *[layer] * model.num_layers, head], num_parts))
    sizes[0] -= 1
    sizes[-1] -= 1
    return ranges(sizes)


def ranges(sizes: Sequence[int]) -> list[range]:
    """The layers of every part from their numbers."""
    starts = [0, *itertools.accumulate(sizes)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def indices_by_part(
    parameters: Sequence[ParameterInfo], layers: Sequence[range], aliases: Mapping[str, str] | None = None
) -> list[list[int]]:
    """Positions in the canonical parameter list that each part owns, in that order.

    The embedding belongs to the first part, the last norm and the head to the last. ``layers``: one range a part.
    ``aliases``: names of the last part's parameters that read another part's values, from
    asyncpp.model.layout.tied_aliases; where given, the last part owns a copy of those.
    """
    owned: list[list[int]] = [[] for _ in layers]
    copied = set((aliases or {}).values())
    for index, parameter in enumerate(parameters):
        part = _part_of(parameter.name, layers)
        owned[part].append(index)
        if parameter.name in copied and part != len(layers) - 1:
            owned[-1].append(index)
    return owned


def share_out(sizes: Sequence[int], num_shares: int) -> list[int]:
    """In which share each thing of these sizes goes, whole: the largest first, to the share that has least."""
    loads = [0] * num_shares
    shares = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        shares[place] = loads.index(min(loads))
        loads[shares[place]] += sizes[place]
    return shares


def _part_of(name: str, layers: Sequence[range]) -> int:
    match = _LAYER.match(name)
    if match is None:
        return 0 if name.startswith("embedding.") else len(layers) - 1
    layer = int(match.group(1))
    return next(part for part, owned in enumerate(layers) if layer in owned)
