"""Our models against transformers', whose file format they speak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import SMALL, SMALL_MOE, call, leaves_of, random_tokens
from reference.model.from_hf import from_hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.granitemoeshared.modeling_granitemoeshared import load_balancing_loss_func

from asyncpp.model.auxiliary import Auxiliary
from asyncpp.model.config import LlamaConfig, MoEConfig
from asyncpp.model.convert import hf_names, to_hf
from asyncpp.model.hf_folder import TokenizerFile, write_folder
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.model.llama import build

CONFIGS = {
    "dense": SMALL,
    "tied": replace(SMALL, tied_embeddings=True),
    "mixture": SMALL_MOE,
    "mixture without a shared expert, tied": replace(SMALL_MOE, shared_ffn_size=0, tied_embeddings=True),
}
each = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@pytest.fixture
def tokenizer(tmp_path: Path) -> TokenizerFile:
    """One token a byte-level character, and one that ends documents."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: SMALL.vocab_size - 1]
    made = Tokenizer(models.BPE({"<end>": 0} | {character: i for i, character in enumerate(alphabet, 1)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return TokenizerFile(path, "<end>", 0)


@pytest.fixture
def theirs(config: LlamaConfig, tmp_path: Path, tokenizer: TokenizerFile) -> PreTrainedModel:
    """Transformers' reading of a folder that we wrote, its weights being leaves_of(config)."""
    names = [info.name for info in parameter_infos(config)]
    weights = dict(zip(names, initial_weights(config, seed=0), strict=True))
    write_folder(tmp_path / "out", config, weights, tokenizer, sequence_length=16)
    return AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)


def by_file_name(model: PreTrainedModel, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names in memory as tensors by the names in files, which differ for experts."""
    renamed = {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight"}
    named = {}
    for name, value in values.items():
        for memory, file in renamed.items():
            name = name.replace(memory, file)
        named[name.replace("router.weight", "router.layer.weight")] = value
    return named


@each
def test_logits_loss_and_every_gradient_agree(config: LlamaConfig, theirs: PreTrainedModel) -> None:
    tokens, leaves = random_tokens(config, batch=2, sequence=12), leaves_of(config, torch.float32)
    labels = tokens.roll(-1, 1)
    model = build(config)
    their_logits = theirs(input_ids=tokens).logits
    torch.testing.assert_close(call(model, leaves, tokens), their_logits, rtol=1e-5, atol=1e-5)

    loss = call(model, leaves, tokens, labels)
    their_loss = torch.nn.functional.cross_entropy(their_logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss, their_loss, rtol=1e-6, atol=0)
    loss.backward()
    their_loss.backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    for alias, name in tied_aliases(config).items():
        gradients[name] = gradients[name] + gradients.pop(alias)
    their_gradients = by_file_name(theirs, {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None})
    expected = from_hf(config, their_gradients)
    assert set(gradients) == set(expected)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5)


@each
def test_what_they_read_is_what_we_wrote_to_the_bit(config: LlamaConfig, theirs: PreTrainedModel) -> None:
    read = by_file_name(theirs, theirs.state_dict())
    names = [info.name for info in parameter_infos(config)]
    written = to_hf(config, dict(zip(names, initial_weights(config, seed=0), strict=True)))
    assert all(torch.equal(read[name], tensor) for name, tensor in written.items())
    unwritten = set(read) - set(written)
    assert unwritten == ({"lm_head.weight"} if config.tied_embeddings else set())


@each
def test_what_we_read_is_what_they_wrote_to_the_bit(config: LlamaConfig, tmp_path: Path) -> None:
    torch.manual_seed(3)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.hf_config()))
    made.save_pretrained(tmp_path / "theirs")
    started = replace(config, init_from=str(tmp_path / "theirs"))
    started.check("model")
    expected = from_hf(config, by_file_name(made, made.state_dict()))
    assert len(hf_names(config)) == len(made.state_dict()) - len(tied_aliases(config))
    for weight, value in zip(initial_weights(started, seed=0), expected.values(), strict=True):
        assert torch.equal(weight, value)


@each
def test_an_exported_model_generates_what_ours_would(
    config: LlamaConfig, theirs: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    reader = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    prompt = reader("/+2*", return_tensors="pt").input_ids
    assert reader.decode(prompt[0]) == "/+2*"
    generated: Any = theirs.generate(prompt, max_new_tokens=6, do_sample=False)  # pyright: ignore[reportCallIssue]
    tokens, model, leaves = prompt, build(config), leaves_of(config, torch.float32)
    while tokens.shape[1] < generated.shape[1]:
        tokens = torch.cat([tokens, call(model, leaves, tokens)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, tokens)
    assert generated.shape[1] == prompt.shape[1] + 6 or generated[0, -1] == reader.eos_token_id


def test_the_load_balancing_loss_is_theirs_for_one_sequence_and_layer() -> None:
    """Theirs mixes all layers and sequences into one statistic and is top_k when balanced, ours 1."""
    config: MoEConfig = replace(SMALL_MOE, num_layers=1, load_balancing=1.0, router_z=0.0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.hf_config()))
    leaves = {n: w.requires_grad_() for n, w in from_hf(config, by_file_name(made, made.state_dict())).items()}
    tokens, auxiliary = random_tokens(config, batch=1, sequence=15), Auxiliary()
    call(build(config), leaves, tokens, None, auxiliary)
    logits = made(input_ids=tokens, output_router_logits=True).router_logits
    expected = load_balancing_loss_func(logits, config.num_experts, config.top_k) / config.top_k
    assert auxiliary.loss is not None and isinstance(expected, Tensor)
    torch.testing.assert_close(auxiliary.loss, expected, rtol=1e-6, atol=0)
    (ours,) = torch.autograd.grad(auxiliary.loss, leaves["layers.0.mlp.router.weight"])
    (other,) = torch.autograd.grad(expected, made.get_parameter("model.layers.0.block_sparse_moe.router.weight"))
    torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)
