"""A model's forward and backward here over transformers' model of the same shape, and a mixture's over its loop twin.

    python benchmarks/model_step.py [json=true] [model=135m batch_size=2 sequence_length=512 num_rounds=3]

step_over_transformers: the same tokens, dtype and loss, every gradient (the optimizer would be the same on both sides).
step_over_kernels: our step over its matrix products and attention alone, in the same kernels: 1 is what they allow.
twin_over_mixture: tiny_moe's block (16 experts) with its auxiliary loss, the twin of tests/reference over ours;
twin_over_experts: without the auxiliary loss, which the twin also computes in loops.
head_peak_mib: what output head and cross-entropy hold at their peak, forward and backward, beside what goes in, for the
step's tokens; plain_head_peak_mib: torch's linear and cross_entropy.

All in one process on one thread, a step of each in turn. Lower quartiles of processor time are compared: whatever else
the machine does falls on all alike, and waiting for a core counts for none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from transformers import AutoConfig, AutoModelForCausalLM

from asyncpp.errors import check_count, check_option
from asyncpp.hydra_command import compose_overrides, typed
from asyncpp.model.auxiliary import Auxiliary
from asyncpp.model.config import LlamaConfig, MoEConfig
from asyncpp.model.cross_entropy import CHUNK_TOKENS, linear_cross_entropy
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.model.llama import build
from asyncpp.model.moe import MixtureOfExperts
from asyncpp.parameters import Role
from common.command import run_benchmark
from common.race import race

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from reference.model.moe_by_loops import experts_by_loops, mixture_by_loops  # pyright: ignore[reportMissingImports]

MIXTURE_ROUNDS = 20  # for each of ``num_rounds``: a block takes milliseconds


@dataclass
class Options:
    model: str = "135m"
    batch_size: int = 2
    sequence_length: int = 512
    num_rounds: int = 3
    dtype: str = "float32"
    json: bool = False


def our_step(config: LlamaConfig, dtype: torch.dtype, tokens: Tensor, labels: Tensor) -> Callable[[], object]:
    names = [info.name for info in parameter_infos(config)]
    weights = dict(zip(names, (weight.to(dtype) for weight in initial_weights(config, seed=0)), strict=True))
    weights |= {alias: weights[name] for alias, name in tied_aliases(config).items()}
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    model = build(config)

    def step() -> object:
        loss = functional_call(model, leaves, (tokens, labels))
        return torch.autograd.grad(loss, list(leaves.values()))

    return step


def their_step(config: LlamaConfig, dtype: torch.dtype, tokens: Tensor, labels: Tensor) -> Callable[[], object]:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.hf_config())).to(dtype)
    parameters = list(model.parameters())

    def step() -> object:
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return torch.autograd.grad(loss, parameters)

    return step


def kernels_step(config: LlamaConfig, dtype: torch.dtype, tokens: Tensor, labels: Tensor) -> Callable[[], object]:
    """The matrix products and the attention of a step of a dense model, on random tensors of its shapes."""
    infos = parameter_infos(config)
    weights = [torch.randn(info.shape, dtype=dtype) for info in infos if info.role is Role.MATRIX]
    head = torch.randn(config.vocab_size, config.hidden_size, dtype=dtype)
    rows = {size: torch.randn(tokens.numel(), size, dtype=dtype) for weight in weights for size in weight.shape}
    logits = torch.randn(min(CHUNK_TOKENS, tokens.numel()), config.vocab_size, dtype=dtype)
    query, key, value = (
        torch.randn(len(tokens), n, tokens.shape[1], config.head_dim, dtype=dtype, requires_grad=True)
        for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    )

    def product(weight: Tensor, inputs: Tensor, gradient: Tensor) -> None:
        _ = inputs @ weight.t(), gradient @ weight, gradient.t() @ inputs

    def step() -> None:
        for weight in weights:
            product(weight, rows[weight.shape[1]], rows[weight.shape[0]])
        for chunk in rows[config.hidden_size].split(len(logits)):
            product(head, chunk, logits[: len(chunk)])
        for _ in range(config.num_layers):
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            torch.autograd.grad(mixed, (query, key, value), mixed)

    return step


def head_peaks_mib(config: LlamaConfig, num_tokens: int) -> dict[str, float]:
    """The peak of head and cross-entropy, ours and torch's."""
    hidden = torch.randn(num_tokens, config.hidden_size, requires_grad=True)
    weight = torch.randn(config.vocab_size, config.hidden_size, requires_grad=True)
    labels = torch.randint(config.vocab_size, (num_tokens,))

    def ours() -> object:
        return torch.autograd.grad(linear_cross_entropy(hidden, weight, labels), (hidden, weight))

    def plain() -> object:
        return torch.autograd.grad(F.cross_entropy(F.linear(hidden, weight), labels), (hidden, weight))

    return {"head_peak_mib": peak_mib(ours), "plain_head_peak_mib": peak_mib(plain)}


def peak_mib(step: Callable[[], object]) -> float:
    """How far the process's memory rises during ``step``, by the kernel's own mark (Linux)."""
    step()  # whatever is allocated once
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory_kib("VmRSS")
    step()
    return (_memory_kib("VmHWM") - before) / 1024


def _memory_kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def mixture_steps(config: MoEConfig) -> dict[str, Callable[[], object]]:
    """One block on 16 sequences of 64 tokens: forward and backward."""
    block = MixtureOfExperts(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=config.init_std)
    weights = dict(block.named_parameters())
    hidden = torch.randn(16, 64, config.hidden_size, requires_grad=True)
    direction, one = torch.randn_like(hidden), torch.ones(())
    inputs = [hidden, *weights.values()]

    def ours() -> object:
        auxiliary = Auxiliary()
        output = block(hidden, auxiliary)
        return torch.autograd.grad([output, *auxiliary.losses], inputs, [direction, one])

    def ours_without_loss() -> object:
        return torch.autograd.grad(block(hidden, None), inputs, direction)

    def twin() -> object:
        return torch.autograd.grad(mixture_by_loops(config, weights, hidden), inputs, [direction, one])

    def twin_without_loss() -> object:
        output, _, _ = experts_by_loops(config, weights, hidden.flatten(0, 1))
        return torch.autograd.grad(output, inputs, direction.flatten(0, 1))

    return {"mixture": ours, "twin": twin, "experts": ours_without_loss, "twin_experts": twin_without_loss}


def measure(options: Options) -> dict[str, float | str]:
    check_count("num_rounds", options.num_rounds)
    check_option("dtype", options.dtype, ("float32", "bfloat16"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    config: LlamaConfig = typed(compose_overrides([f"model={options.model}"]), "model")
    mixture: MoEConfig = typed(compose_overrides(["model=tiny_moe"]), "model")
    windows = torch.randint(config.vocab_size, (options.batch_size, options.sequence_length + 1))
    tokens, labels = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    peaks_mib = head_peaks_mib(config, tokens.numel())  # first: later, memory that is free already would serve it
    steps = {"ours": our_step, "transformers": their_step}
    if not isinstance(config, MoEConfig):
        steps["kernels"] = kernels_step
    dense_s = race({name: make(config, dtype, tokens, labels) for name, make in steps.items()}, options.num_rounds)
    mixture_s = race(mixture_steps(mixture), options.num_rounds * MIXTURE_ROUNDS)
    return {
        "model": options.model,
        "dtype": options.dtype,
        "step_over_transformers": dense_s["ours"] / dense_s["transformers"],
        **({"step_over_kernels": dense_s["ours"] / dense_s["kernels"]} if "kernels" in dense_s else {}),
        "twin_over_mixture": mixture_s["twin"] / mixture_s["mixture"],
        "twin_over_experts": mixture_s["twin_experts"] / mixture_s["experts"],
        "step_s": dense_s["ours"],
        "transformers_step_s": dense_s["transformers"],
        "mixture_ms": 1e3 * mixture_s["mixture"],
        **peaks_mib,
    }


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
