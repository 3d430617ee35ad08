"""torch.compile for the layers of a decoder."""

from __future__ import annotations

from types import MethodType

import torch

from asyncpp.model.llama import Decoder, Layer
from asyncpp.model.moe import MixtureOfExperts


def compile_layers(decoder: Decoder) -> Decoder:
    """``decoder``, whose layers torch.compile turns into fused kernels when they first run; so do copies of it.

    Layer by layer, so one compilation serves them all, and how a model is cut into stages changes no result. Each shape
    is compiled for itself, since a kernel for any shape may sum in another order than one for this shape.
    A mixture of experts runs as it is: how many tokens an expert gets is known only as it runs.
    """
    forward = torch.compile(Layer.forward, dynamic=False)
    mixture = torch.compiler.disable(MixtureOfExperts.forward)
    for layer in decoder.layers.values():
        layer.forward = MethodType(forward, layer)  # a method of the instance is copied with it, unlike Module.compile
        if isinstance(layer.mlp, MixtureOfExperts):
            layer.mlp.forward = MethodType(mixture, layer.mlp)
    return decoder
