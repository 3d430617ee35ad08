"""A Llama-style decoder, whole or a part of it: some of the layers, with or without embedding and head.

Modules hold no values (their parameters are on the meta device): the trainer keeps the weight versions and
calls a part with torch.func.functional_call, so that one batch can use an older version than the next.
Shapes: B sequences, S tokens, D hidden_size, V vocab_size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncpp.model.auxiliary import Auxiliary
from asyncpp.model.config import LlamaConfig, MoEConfig
from asyncpp.model.cross_entropy import linear_cross_entropy
from asyncpp.model.documents import within_documents
from asyncpp.model.moe import MixtureOfExperts
from asyncpp.model.rotary import RotaryTables, rotate
from asyncpp.model.swiglu import SwiGLU


def build(config: LlamaConfig, layers: range | None = None, *, first: bool = True, last: bool = True) -> Decoder:
    """The whole model, or the part that owns ``layers``; ``first`` has the embedding, ``last`` norm and head.

    Parameters keep the whole model's names whatever the split. A tied head is a parameter ``head.weight`` of
    the last part here, to which the caller passes the embedding (asyncpp.model.layout.tied_aliases).
    """
    with torch.device("meta"):
        return Decoder(config, range(config.num_layers) if layers is None else layers, first=first, last=last)


class Decoder(nn.Module):
    """A run of consecutive layers. Called with

    inputs: tokens, int64 (B, S), on the first part; hidden states (B, S, D) on the others.
    labels: the token that follows each input, int64 (B, S); read on the last part only.
    auxiliary: where given, mixture layers add their routers' loss and their experts' load to it.
    documents: the document that each input token belongs to, int64 (B, S) (asyncpp.model.documents): a token then
        sees its own document only. Without, all that stands before it. Every part is given the same.

    Rotary positions count on through a sequence's documents: scores depend on the distance between query and key
    alone, so within a document they are, up to rounding, what positions that restart would give.

    Returns the mean cross-entropy in nats (0-dim) on the last part given labels, logits (B, S, V) on the last
    part without, hidden states (B, S, D) on the others.
    """

    def __init__(self, config: LlamaConfig, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = _embedding(config) if first else None
        self.layers = nn.ModuleDict({str(layer): Layer(config) for layer in layers})
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps) if last else None
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False) if last else None
        self.rotary = RotaryTables(config.head_dim, config.rope_theta)

    def forward(
        self,
        inputs: Tensor,
        labels: Tensor | None = None,
        auxiliary: Auxiliary | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        hidden = inputs if self.embedding is None else self.embedding(inputs)
        rotary = self.rotary.tables(hidden.shape[1], hidden.device, hidden.dtype)
        mask = None if documents is None else within_documents(documents, _dtype_of_products(hidden))
        for layer in self.layers.values():
            hidden = layer(hidden, rotary, mask, auxiliary)
        if self.norm is None or self.head is None:
            return hidden
        hidden = self.norm(hidden)
        if labels is None:
            return self.head(hidden)
        return linear_cross_entropy(hidden.flatten(0, 1), self.head.weight, labels.flatten())


def _dtype_of_products(hidden: Tensor) -> torch.dtype:
    """The dtype in which matrix products and attention compute on ``hidden``."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def _embedding(config: LlamaConfig) -> nn.Embedding:
    # nn.Embedding's own initialisation, pointless here, makes torch import its compiler: seconds at every start.
    return nn.Embedding.from_pretrained(torch.empty(config.vocab_size, config.hidden_size), freeze=False)


class Layer(nn.Module):
    """Attention, then the feed-forward block, each normalised before and added to the stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        is_mixture = isinstance(config, MoEConfig)
        self.mlp = MixtureOfExperts(config) if is_mixture else SwiGLU(config.hidden_size, config.ffn_size)

    def forward(
        self, hidden: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, auxiliary: Auxiliary | None
    ) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        hidden = hidden + self.attention(self.attention_norm(hidden), rotary, mask)
        normalized = self.mlp_norm(hidden)
        if isinstance(self.mlp, MixtureOfExperts):
            return hidden + self.mlp(normalized, auxiliary)
        return hidden + self.mlp(normalized)


class Attention(nn.Module):
    """Causal grouped-query attention (Ainslie et al., arXiv 2305.13245) with rotary positions."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.queries_per_key = config.num_heads // config.num_kv_heads
        self.q = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k = nn.Linear(config.hidden_size, config.kv_size, bias=False)
        self.v = nn.Linear(config.hidden_size, config.kv_size, bias=False)
        self.o = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """(B, S, D) to (B, S, D); heads are (B, heads, S, head_dim) in between.

        mask: added to the scores, (B, 1, S, S); None is the causal mask, which a kernel need not read.
        """
        by_head = (*hidden.shape[:2], -1, self.head_dim)
        q = rotate(self.q(hidden).view(by_head).transpose(1, 2), rotary)
        k = rotate(self.k(hidden).view(by_head).transpose(1, 2), rotary)
        v = self.v(hidden).view(by_head).transpose(1, 2)
        if mask is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.queries_per_key > 1)
        else:  # on a GPU no kernel takes a mask and grouped queries but the one that holds all scores at once
            k, v = (heads.repeat_interleave(self.queries_per_key, 1) for heads in (k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(mixed.transpose(1, 2).flatten(2))
