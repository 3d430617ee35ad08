"""A part's module for every weight version that is alive, each with leaf tensors of its own.

Autograd saves leaves: a gain that an RMSNorm multiplied by, a matrix of a product. Were one module moved from version
to version, by writing into its parameters' ``.data`` or by rebinding it, a backward would meet weights that its
forward did not use, and say nothing. A module for each version can't go wrong that way; the leaves share the
versions' memory, so an update that overwrote a version which a graph still needs would raise.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from asyncpp.pipeline.weights import WeightVersions


class _Versioned(NamedTuple):
    """A module with leaves, in the order of ``VersionedModules.positions``, that are views of ``weights``."""

    weights: list[Tensor]
    module: nn.Module
    leaves: list[nn.Parameter]


class VersionedModules:
    """module: without values. positions: of every one of its parameters, by name, in the lists of ``versions``.

    Two parameters may have one position: a tied head where the embedding is in the same module. They are two leaves.
    """

    def __init__(self, module: nn.Module, positions: Mapping[str, int], versions: WeightVersions) -> None:
        self.skeleton = module
        self._positions = positions
        self._versions = versions
        self._modules: dict[int, _Versioned] = {}  # by the identity of the version's list, which later versions reuse

    def at(self, version: int) -> nn.Module:
        """The module that computes with ``version``. Raises LookupError when that is not held."""
        return self._versioned(version).module

    def leaves(self, version: int) -> list[nn.Parameter]:
        """The leaves of ``version``, in the order of ``positions``."""
        return self._versioned(version).leaves

    def _versioned(self, version: int) -> _Versioned:
        weights = self._versions.at(version)
        if id(weights) not in self._modules:
            self._modules[id(weights)] = self._make(weights)
        return self._modules[id(weights)]

    def _make(self, weights: list[Tensor]) -> _Versioned:
        module, leaves = copy.deepcopy(self.skeleton), []
        for name, position in self._positions.items():
            path, _, attribute = name.rpartition(".")
            leaves.append(nn.Parameter(weights[position].detach()))
            module.get_submodule(path).register_parameter(attribute, leaves[-1])
        return _Versioned(weights, module, leaves)

    def named(self, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        """``weights``, a list like the versions', by the module's names."""
        return {name: weights[position] for name, position in self._positions.items()}

    def by_position(self, gradients: list[Tensor]) -> list[Tensor]:
        """The leaves' gradients as a list for the versions' weights: those of one position are added, in order."""
        merged: dict[int, Tensor] = {}
        for position, gradient in zip(self._positions.values(), gradients, strict=True):
            merged[position] = merged[position] + gradient if position in merged else gradient
        return [merged[position] for position in range(len(merged))]
