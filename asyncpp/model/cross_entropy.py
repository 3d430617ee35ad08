"""The output head and the cross-entropy as one operation that never holds the logits of all tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Logits in memory at once: 512 x vocabulary, 96 MiB in fp32 at a vocabulary of 49152, whatever the batch. With them
# and two gradients of the head's matrix, forward and backward of the 135m's head peak at 220 MiB; torch's at 576 MiB
# for 1024 tokens, and as much again for every 1024 more (benchmarks/model_step.py). Fewer tokens a chunk make thin
# products that read the head's matrix more often than they use it.
CHUNK_TOKENS = 512


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats (0-dim) of logits hidden @ weight.T against labels.

    hidden: (tokens, D). weight: (V, D). labels: int64 (tokens).

    Where gradients are wanted, a chunk's are computed with its loss, while its logits are there (as Hsu et al. do,
    arXiv 2410.10989, section 3.2): softmax, its gradient and the products with it reuse the logits' memory. What is
    kept for the backward is the size of hidden and of weight. The softmax is in fp32 at least.
    """
    loss: Any = _LinearCrossEntropy.apply(hidden, weight, labels, torch.is_grad_enabled())
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, needs_gradient: bool) -> Tensor:
        num_tokens = hidden.shape[0]
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        loss = torch.zeros((), dtype=dtype, device=hidden.device)
        if needs_gradient:
            hidden_gradient = torch.empty_like(hidden)
            weight_gradient = torch.zeros_like(weight, dtype=dtype)
        for start in range(0, num_tokens, CHUNK_TOKENS):
            chunk = hidden[start : start + CHUNK_TOKENS]
            chunk_labels = labels[start : start + CHUNK_TOKENS].unsqueeze(1)
            logits = (chunk @ weight.t()).to(dtype)
            label_logits = logits.gather(1, chunk_labels)
            maxima = logits.amax(1, keepdim=True)
            exponentials = logits.sub_(maxima).exp_()
            sums = exponentials.sum(1, keepdim=True)
            loss += (sums.log() + maxima - label_logits).sum()
            if needs_gradient:
                # d loss / d logits = (softmax - one-hot of the label) / num_tokens
                gradient = exponentials.div_(sums * num_tokens)
                gradient.scatter_add_(1, chunk_labels, gradient.new_full((1, 1), -1 / num_tokens).expand_as(sums))
                gradient = gradient.to(hidden.dtype)
                hidden_gradient[start : start + CHUNK_TOKENS] = gradient @ weight
                if gradient.dtype == dtype:
                    weight_gradient.addmm_(gradient.t(), chunk)
                else:
                    weight_gradient += gradient.t() @ chunk
                del gradient
            del logits, exponentials  # or the next chunk's would be beside them
        if needs_gradient:
            ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return loss / num_tokens

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * gradients[0], weight_gradient * gradients[0], None, None
