"""A mixture of experts: a router sends every token to top_k of a layer's SwiGLU blocks. No token is dropped.

Routing is that of transformers' GraniteMoeShared family: the top_k largest router logits, a softmax over those,
and beside the routed experts one that serves every token, if wanted. Of the families in transformers it is the one
that is Llama in everything else and has GQA, tied embeddings and an optional, ungated shared expert.
Shapes: B sequences, S tokens, D hidden_size, E experts, K top_k, F ffn_size, R = B S K rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncpp.model.auxiliary import Auxiliary
from asyncpp.model.config import MoEConfig
from asyncpp.model.swiglu import SwiGLU


class MixtureOfExperts(nn.Module):
    """Σ over a token's K experts of gate * expert(token), and the shared expert."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config)
        self.experts = Experts(config)
        self.shared = SwiGLU(config.hidden_size, config.shared_ffn_size) if config.shared_ffn_size else None

    def forward(self, hidden: Tensor, auxiliary: Auxiliary | None) -> Tensor:
        """(B, S, D) to (B, S, D). ``auxiliary``, where given, receives the router's loss and the experts' load."""
        logits, gates, choices = self.router(hidden)
        if auxiliary is not None:
            load = choices_by_sequence(choices, self.config.num_experts)
            auxiliary.add(auxiliary_loss(self.config, logits, load), load.sum(0))
        routed = self.experts(hidden.flatten(0, 1), gates.flatten(0, 1), choices.flatten(0, 1)).view_as(hidden)
        return routed if self.shared is None else routed + self.shared(hidden)


class Router(nn.Module):
    """Scores the experts, in fp32 at least (Fedus et al., arXiv 2101.03961, section 2.4: bf16 is not stable here)."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, S, D) to logits (B, S, E), gates (B, S, K) that sum to one, and the chosen experts, int64 (B, S, K)."""
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            logits = F.linear(hidden.to(dtype), self.weight.to(dtype))
        top_logits, choices = logits.topk(self.top_k)
        return logits, top_logits.softmax(-1), choices


class Experts(nn.Module):
    """E SwiGLU blocks, run on rows that are sorted by expert: one grouped product for each of their three maps."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.num_experts, self.top_k = config.num_experts, config.top_k
        self.gate = StackedLinear(config.num_experts, config.hidden_size, config.ffn_size)
        self.up = StackedLinear(config.num_experts, config.hidden_size, config.ffn_size)
        self.down = StackedLinear(config.num_experts, config.ffn_size, config.hidden_size)

    def forward(self, tokens: Tensor, gates: Tensor, choices: Tensor) -> Tensor:
        """tokens (B S, D), gates and choices (B S, K) to (B S, D)."""
        order = choices.flatten().argsort(stable=True)  # rows by expert, and by token within an expert
        inverse = order.argsort()
        ends = torch.bincount(choices.flatten(), minlength=self.num_experts).cumsum(0).to(torch.int32)
        rows: Any = _Spread.apply(tokens, order, inverse, self.top_k)
        # The gate scales inside, where a fine-grained expert is narrower than the stream; down is linear.
        inner = F.silu(self.gate(rows, ends)) * self.up(rows, ends)
        inner = inner * gates.flatten().index_select(0, order).unsqueeze(1).to(inner.dtype)
        collected: Any = _Collect.apply(self.down(inner, ends), order, inverse, self.top_k)
        return collected


class StackedLinear(nn.Module):
    """One linear map an expert, no biases: weight (E, out, in)."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Map rows (R, in), of which expert e has those from ends[e-1] to ends[e], to (R, out)."""
        if rows.dtype is torch.float64:  # which grouped_mm lacks; exact comparisons want it
            sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
            parts = zip(rows.split(sizes), self.weight.unbind(), strict=True)
            return torch.cat([F.linear(part, weight) for part, weight in parts])
        weight, device = self.weight, rows.device.type
        if torch.is_autocast_enabled(device):  # which casts for the products that it knows, not for this one
            dtype = torch.get_autocast_dtype(device)
            rows, weight = rows.to(dtype), weight.to(dtype)
        return F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)


def choices_by_sequence(choices: Tensor, num_experts: int) -> Tensor:
    """How often each sequence chose each expert: int64 (B, S, K) to int64 (B, E)."""
    flat = choices.flatten(1)
    return flat.new_zeros(len(flat), num_experts).scatter_add_(1, flat, torch.ones_like(flat))


def auxiliary_loss(config: MoEConfig, logits: Tensor, load: Tensor) -> Tensor:
    """One layer's share of the auxiliary loss, 0-dim. logits: (B, S, E); load: (B, E).

    load balancing: mean over sequences of Σ_e f_e p_e, where f_e = E/(K S) times the choices of expert e and p_e the
    mean of its softmax score over the sequence; 1 when balanced (Dai et al., arXiv 2401.06066, equations 12-14).
    Being a mean over sequences, it does not depend on how a batch is cut into micro-batches or over replicas.
    router z: mean over tokens of logsumexp(logits)² (Zoph et al., arXiv 2202.08906, equation 5).
    """
    num_choices = logits.shape[1] * config.top_k
    frequencies = load.to(logits.dtype) * (config.num_experts / num_choices)
    balance = (frequencies * logits.softmax(-1).mean(1)).sum(-1).mean()
    z = logits.logsumexp(-1).square().mean()
    return (config.load_balancing * balance + config.router_z * z) / config.num_layers


def _spread(tokens: Tensor, order: Tensor, copies: int) -> Tensor:
    """Copy each token to the rows of its experts: (B S, D) to (R, D)."""
    return tokens.index_select(0, order // copies)


def _collect(rows: Tensor, inverse: Tensor, copies: int) -> Tensor:
    """Sum each token's rows: (R, D) to (B S, D), without a copy of the rows in the tokens' order."""
    return F.embedding_bag(inverse.view(-1, copies), rows, mode="sum")


class _Spread(torch.autograd.Function):
    """_spread, and as its backward _collect: autograd's own would add by index, on a GPU in random order."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
        ctx.copies = copies
        ctx.save_for_backward(inverse)
        return _spread(tokens, order, copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _collect(gradients[0], ctx.saved_tensors[0], ctx.copies), None, None, None


class _Collect(torch.autograd.Function):
    """_collect, and as its backward _spread."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
        ctx.copies = copies
        ctx.save_for_backward(order)
        return _collect(rows, inverse, copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _spread(gradients[0], ctx.saved_tensors[0], ctx.copies), None, None, None
