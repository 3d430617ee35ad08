"""How large a model is and what a token costs, from its config alone. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from asyncpp.model.config import LlamaConfig, MoEConfig
from asyncpp.model.layout import parameter_infos
from asyncpp.parameters import ParameterInfo, Role


@dataclass(frozen=True)
class ParameterCounts:
    """total: every parameter. active: those that one token meets (top_k of the experts).

    non_embedding and active_non_embedding leave out the embedding and an untied head.
    """

    total: int
    active: int
    non_embedding: int
    active_non_embedding: int


def parameter_counts(config: LlamaConfig) -> ParameterCounts:
    infos = parameter_infos(config)
    body = [info for info in infos if info.role not in (Role.EMBEDDING, Role.HEAD)]
    return ParameterCounts(
        total=sum(info.num_elements for info in infos),
        active=sum(active_elements(config, info) for info in infos),
        non_embedding=sum(info.num_elements for info in body),
        active_non_embedding=sum(active_elements(config, info) for info in body),
    )


def flops_per_token(config: LlamaConfig, sequence_length: int) -> int:
    """Floating-point operations of a training step (forward and backward) for one token of a sequence.

    6 for every weight of a matrix product, and 12 * num_layers * hidden_size * sequence_length for the attention's
    scores and mixtures (PaLM, arXiv 2204.02311, appendix B). By that convention the causal half that is masked
    counts, element-wise operations and the embedding's look-up do not; the head does, tied or not.
    """
    matrices = sum(active_elements(config, info) for info in parameter_infos(config) if info.role is Role.MATRIX)
    head = config.vocab_size * config.hidden_size
    return 6 * (matrices + head) + 12 * config.num_layers * config.hidden_size * sequence_length


def active_elements(config: LlamaConfig, info: ParameterInfo) -> int:
    """The elements of a parameter that one token meets: of a mixture's experts, top_k in num_experts."""
    if isinstance(config, MoEConfig) and ".experts." in info.name:
        return int(info.num_elements * Fraction(config.top_k, config.num_experts))
    return info.num_elements
