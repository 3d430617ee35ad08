"""Which document each token of a packed sequence belongs to, and attention that stays within it.

Shapes: B sequences, S tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def document_numbers(inputs: Tensor, end_of_document: int) -> Tensor:
    """The document of each input token, counted from 0 in each sequence: int64 (B, S) to int64 (B, S).

    The end-of-document token is the last of its own document. Sequences are cut anywhere, so a sequence's first
    document may have begun before it.
    """
    is_end = (inputs == end_of_document).long()
    return is_end.cumsum(1) - is_end


def documents_of(inputs: Tensor, end_of_document: int | None) -> Tensor | None:
    """What a part of the model is called with: the documents of its tokens, or None where nothing ends them."""
    return None if end_of_document is None else document_numbers(inputs, end_of_document)


def within_documents(documents: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of a query for each key, (B, S) to (B, 1, S, S): 0 or -inf.

    0 where it sees the key: itself, and what stands before it in its document. As numbers of the scores' ``dtype``,
    because attention would turn truth values into those for every layer anew, and keep them until the backward.
    """
    seen = (documents.unsqueeze(2) == documents.unsqueeze(1)).tril().unsqueeze(1)
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)
