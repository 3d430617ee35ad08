"""A mixture of experts as its definition reads: one expert after the other, one sequence after the other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from asyncpp.model.config import MoEConfig


def mixture_by_loops(config: MoEConfig, weights: Mapping[str, Tensor], hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The block's output (B, S, D) and its auxiliary loss (0-dim). weights: by names below ``mlp.``."""
    output, logits, choices = experts_by_loops(config, weights, hidden.flatten(0, 1))
    by_sequence = (*hidden.shape[:2], -1)
    auxiliary = auxiliary_by_loops(config, logits.view(by_sequence), choices.view(by_sequence))
    return output.view_as(hidden), auxiliary


def experts_by_loops(config: MoEConfig, weights: Mapping[str, Tensor], tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """tokens (T, D) to the output (T, D), the router's logits (T, E) and its choices (T, K)."""
    logits = tokens @ weights["router.weight"].t()
    top_logits, choices = logits.topk(config.top_k, dim=-1)
    gates = top_logits.softmax(-1)
    output = torch.zeros_like(tokens)
    for expert in range(config.num_experts):
        token, place = torch.where(choices == expert)
        mapped = swiglu(tokens[token], *(weights[f"experts.{part}.weight"][expert] for part in ("gate", "up", "down")))
        output = output.index_add(0, token, gates[token, place].unsqueeze(1) * mapped)
    if config.shared_ffn_size:
        output = output + swiglu(tokens, *(weights[f"shared.{part}.weight"] for part in ("gate", "up", "down")))
    return output, logits, choices


def auxiliary_by_loops(config: MoEConfig, logits: Tensor, choices: Tensor) -> Tensor:
    """logits (B, S, E), choices (B, S, K) to the layer's share of the auxiliary loss."""
    total = logits.new_zeros(())
    for sequence_logits, sequence_choices in zip(logits, choices, strict=True):
        scores = sequence_logits.softmax(-1)
        balance = logits.new_zeros(())
        for expert in range(config.num_experts):
            share = (sequence_choices == expert).to(logits.dtype).mean()
            balance = balance + config.num_experts * share * scores[:, expert].mean()
        z = torch.logsumexp(sequence_logits, dim=-1).pow(2).mean()
        total = total + config.load_balancing * balance + config.router_z * z
    return total / len(logits) / config.num_layers


def swiglu(tokens: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (F.silu(tokens @ gate.t()) * (tokens @ up.t())) @ down.t()
