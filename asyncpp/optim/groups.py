"""An optimizer for a whole model: every parameter in exactly one group, every group with its own rule."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpp.errors import ConfigError, require
from asyncpp.optim.base import UpdateRule
from asyncpp.optim.config import OptimizerConfig, RuleConfig
from asyncpp.parameters import ParameterInfo, Role

MAX_ELEMENTS_ON_ACCELERATORS = 2**25  # fills the device in few launches; the workspace of a group stays bounded


@dataclass(frozen=True)
class ParameterGroup:
    """The parameters that one call of ``rule.update`` takes.

    indices: positions in the canonical list of parameters; names: theirs; peak_lr: what lr_schedule scales.
    """

    rule: UpdateRule
    peak_lr: float
    indices: tuple[int, ...]
    infos: tuple[ParameterInfo, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(info.name for info in self.infos)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every role that occurs, once."""
        return tuple(dict.fromkeys(info.role for info in self.infos))

    @property
    def num_elements(self) -> int:
        return sum(info.num_elements for info in self.infos)

    def select(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The group's own tensors out of a canonical list of all."""
        return [tensors[index] for index in self.indices]


class Optimizer:
    """The groups in canonical order of their first parameter, and their state by parameter name."""

    def __init__(self, groups: Sequence[ParameterGroup]) -> None:
        self.groups = list(groups)

    def describe(self) -> str:
        """A line a group: rule, peak learning rate, roles, number of tensors and elements, first and last name."""
        lines = []
        for group in self.groups:
            names = group.names
            span = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"
            roles = "+".join(group.roles)
            lines.append(
                f"{type(group.rule).__name__:<8} lr {group.peak_lr:<8g} {roles:<24} "
                f"{len(names):>4} tensors {group.num_elements:>12,} elements  {span}"
            )
        return "\n".join(lines)

    def num_state_elements(self) -> int:
        """Measured size of the state."""
        return sum(t.numel() for group in self.groups for tensors in group.rule.state.values() for t in tensors)

    def state_dict(self) -> dict[str, Tensor]:
        """The live state tensors, as '<parameter name>.<state name>', with each parameter's 'num_updates'.

        Keyed by parameter, not by group: a checkpoint opens whatever the grouping or the splitting into stages.
        """
        tensors: dict[str, Tensor] = {}
        for group in self.groups:
            for state_name, states in group.rule.state.items():
                tensors.update({f"{name}.{state_name}": state for name, state in zip(group.names, states, strict=True)})
            num_updates = torch.tensor(group.rule.num_updates)
            tensors.update({f"{name}.num_updates": num_updates.clone() for name in group.names})
        return tensors

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Copy ``tensors`` into the state. Raises ConfigError naming the key of whatever does not fit exactly."""
        expected = self.state_dict()
        for key in sorted(expected.keys() - tensors.keys()):
            raise ConfigError(key, "missing", "expected in the optimizer state")
        for key in sorted(tensors.keys() - expected.keys()):
            raise ConfigError(key, "unexpected", "this optimizer has no such state")
        for key, state in expected.items():
            given, wanted = _kind(tensors[key]), _kind(state)
            require(given == wanted, key, given, f"expected {wanted}")
        for group in self.groups:
            counts = {int(tensors[f"{name}.num_updates"]) for name in group.names}
            key = f"{group.names[0]}.num_updates"
            require(len(counts) == 1, key, sorted(counts), "expected one number for all of its group")
            group.rule.num_updates = counts.pop()
        with torch.no_grad():
            for key, state in expected.items():
                state.copy_(tensors[key])


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def build_optimizer(
    config: OptimizerConfig, parameters: Sequence[ParameterInfo], weights: Sequence[Tensor]
) -> Optimizer:
    """Group ``parameters`` by the rule of their role, dtype and device, and build each group's rule.

    weights: a tensor a parameter, in the same order. A group takes parameters in canonical order, of one shape
    where the rule wants it, up to a bounded number of elements; a larger parameter is a group by itself.
    """
    _check_parameters(parameters, weights)
    rules = config.rules()
    open_groups: dict[tuple[object, ...], list[int]] = {}
    members: list[tuple[RuleConfig, list[int]]] = []
    for index, (info, weight) in enumerate(zip(parameters, weights, strict=True)):
        rule_config = rules[info.role]
        key = (id(rule_config), weight.dtype, weight.device, info.shape if rule_config.same_shape else None)
        on_cpu = weight.device.type == "cpu"
        bound = rule_class(rule_config).max_elements_on_cpu if on_cpu else MAX_ELEMENTS_ON_ACCELERATORS
        group = open_groups.get(key)
        if group is None or sum(weights[i].numel() for i in group) + weight.numel() > bound:
            group = open_groups[key] = []
            members.append((rule_config, group))
        group.append(index)
    return Optimizer(
        [
            ParameterGroup(
                rule=rule_class(rule_config)(rule_config, [weights[index] for index in indices]),
                peak_lr=rule_config.lr,
                indices=tuple(indices),
                infos=tuple(parameters[index] for index in indices),
            )
            for rule_config, indices in members
        ]
    )


def _check_parameters(parameters: Sequence[ParameterInfo], weights: Sequence[Tensor]) -> None:
    """Raise ConfigError unless each parameter is given once, with the shape that it states."""
    require(len(parameters) == len(weights), "weights", len(weights), f"expected {len(parameters)}, one a parameter")
    seen: set[str | int] = set()
    for info, weight in zip(parameters, weights, strict=True):
        once = info.name not in seen and id(weight) not in seen
        require(once, info.name, "given twice", "expected every parameter, a tied one too, in one group")
        seen |= {info.name, id(weight)}
        shape = tuple(weight.shape)
        require(shape == tuple(info.shape), info.name, shape, f"expected shape {tuple(info.shape)}")
        require(
            info.role is not Role.MATRIX or weight.ndim >= 2, info.name, shape, "expected two dimensions of a matrix"
        )


def rule_class(config: RuleConfig) -> type[UpdateRule]:
    """The class that ``config`` configures; imported here, so that a config costs no torch import."""
    return pkgutil.resolve_name(config.rule)
