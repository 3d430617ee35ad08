"""``python -m asyncpp.export``: what transformers reads is what the run ended with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncpp import records
from asyncpp.config import Config, from_hydra
from asyncpp.data.prepare import prepare
from asyncpp.export import final_weights, main
from asyncpp.hydra_command import compose_overrides
from asyncpp.model.hf_folder import read_model_config
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.model.llama import build
from asyncpp.saved_config import read_config
from asyncpp.trainer.checkpoint.config import CheckpointConfig
from asyncpp.trainer.checkpoint.manifest import CheckpointInfo
from asyncpp.trainer.checkpoint.names import CHECKPOINTS_FOLDER, correction_name, step_folder, weight_name
from asyncpp.trainer.checkpoint.reader import Checkpoint
from asyncpp.trainer.checkpoint.writer import CheckpointWriter

SHAPE = ("model.vocab_size=300", "model.num_layers=3", "model.hidden_size=24", "model.num_heads=6",
         "model.num_kv_heads=2", "data=local", "data.vocab_size=300", "data.sequence_length=16")  # fmt: skip
DENSE = ("model=tiny", "model.ffn_size=40", *SHAPE)
MIXTURE = ("model=tiny_moe", "model.ffn_size=16", "model.num_experts=5", "model.top_k=2", "model.shared_ffn_size=12",
           "model.tied_embeddings=true", *SHAPE)  # fmt: skip


@pytest.fixture(scope="module")
def data_root(tmp_path_factory) -> Path:
    """A source of a few words, with a tokenizer trained on them."""
    folder = tmp_path_factory.mktemp("data")
    text = "one step of delay is not a barrier to a pipeline that never waits "
    texts = [text[start:] + text[:start] for start in range(len(text))] * 2
    (folder / "raw.jsonl").write_text(
        "".join(json.dumps({"text": f"{i} {text}"}) + "\n" for i, text in enumerate(texts))
    )
    prepare(config_of(folder, *DENSE).data)
    return folder


def config_of(data_root: Path, *overrides: str) -> Config:
    place = (f"data.root={data_root}", f"data.path={data_root / 'raw.jsonl'}", "data.validation_fraction=0.3")
    return from_hydra(compose_overrides([*place, *overrides]))


def named(config: Config, seed: int) -> dict[str, Tensor]:
    names = [info.name for info in parameter_infos(config.model)]
    return dict(zip(names, initial_weights(config.model, seed), strict=True))


def make_run(folder: Path, config: Config, state: dict[str, dict[str, Tensor]], steps: tuple[int, ...] = (5,)) -> Path:
    """A run folder. Each step's checkpoint holds weights drawn with that seed, and ``state``, the correction's."""
    folder.mkdir()
    (folder / records.CONFIG_FILE).write_text(config.to_yaml())
    tensors = {correction_name(name, kind): value for kind, values in state.items() for name, value in values.items()}
    with CheckpointWriter(folder / CHECKPOINTS_FOLDER, CheckpointConfig(9, None, 0, asynchronous=False)) as writer:
        for step in steps:
            weights = {weight_name(name): weight for name, weight in named(config, step).items()}
            writer.save(CheckpointInfo(step, config.scientific()), weights | tensors)
            writer.wait()
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")


@pytest.mark.parametrize("overrides", [DENSE, MIXTURE], ids=["dense", "mixture"])
def test_transformers_generates_from_an_exported_run_what_the_run_would(
    overrides, data_root, tmp_path, offline, capsys
):
    config = config_of(data_root, *overrides)
    run, out = make_run(tmp_path / "run", config, {}), tmp_path / "out"
    assert main([f"ckpt={run}", f"out={out}"]) == 0
    assert capsys.readouterr().out == f"{out}: run after 5 updates, read at x\n"

    theirs = AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    reader = AutoTokenizer.from_pretrained(out, local_files_only=True)
    prompt = reader("one step of delay", return_tensors="pt").input_ids
    assert prompt.shape[1] < 12 and reader.decode(prompt[0]) == "one step of delay"
    generated = theirs.generate(prompt, max_new_tokens=8, do_sample=False)

    weights = named(config, seed=5)
    weights |= {alias: weights[name] for alias, name in tied_aliases(config.model).items()}
    model, tokens = build(config.model), prompt
    while tokens.shape[1] < generated.shape[1]:
        tokens = torch.cat([tokens, functional_call(model, weights, (tokens,))[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, tokens) and generated.shape[1] > prompt.shape[1]

    # and back: a run that starts from the folder starts from these weights, to the bit
    started = replace(config.model, init_from=str(out))
    started.check("model")
    for name, weight in zip(named(config, 5), initial_weights(started, seed=0), strict=True):
        assert torch.equal(weight, weights[name])
    assert read_model_config("ckpt", out).hf_config() == config.model.hf_config()


def test_the_newest_checkpoint_is_taken_or_the_one_that_is_named(data_root, tmp_path, capsys):
    run = make_run(tmp_path / "run", config := config_of(data_root, *DENSE), {}, steps=(5, 9))
    root = run / CHECKPOINTS_FOLDER
    for ckpt, step in ((run, 9), (step_folder(root, 5), 5), (step_folder(root, 9), 9)):
        out = tmp_path / f"{ckpt.name}-{step}"
        assert main([f"ckpt={ckpt}", f"out={out}", "json=true"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said == {"out": str(out), "step": step, "weights": "x", "run": str(run)}
        read = initial_weights(replace(config.model, init_from=str(out)), seed=0)
        assert all(torch.equal(a, b) for a, b in zip(read, named(config, step).values(), strict=True))


def test_a_damaged_checkpoint_is_passed_over_or_refused(data_root, tmp_path, capsys):
    run = make_run(tmp_path / "run", config_of(data_root, *DENSE), {}, steps=(5, 9))
    newest = step_folder(run / CHECKPOINTS_FOLDER, 9)
    (file,) = newest.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main([f"ckpt={run}", f"out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr()
    assert "after 5 updates" in printed.out and "warning: passing over the checkpoint of step" in printed.err
    assert main([f"ckpt={newest}", f"out={tmp_path / 'other'}"]) == 2
    assert f"ckpt={newest}: expected a whole checkpoint: " in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("delay", ["delay=one_step", "delay=sync", "delay=pipedream"])
def test_error_feedback_is_read_at_z_where_the_last_update_was_late(delay, data_root, tmp_path):
    config = config_of(data_root, *DENSE, "correction=ef", "correction.strength=0.5", "pipeline.num_stages=2", delay)
    previous = named(config, seed=77)
    run = make_run(tmp_path / "run", config, {"previous_update": previous})
    checkpoint = Checkpoint.open(step_folder(run / CHECKPOINTS_FOLDER, 5))
    x, z = (final_weights(read_config("ckpt", run), checkpoint, reading) for reading in ("x", "z"))
    assert list(x) == list(z) == list(previous)
    last_part = config.layers[-1]
    for name, weight in named(config, seed=5).items():
        on_last_part = name in ("norm.weight", "head.weight") or name.startswith(
            tuple(f"layers.{i}." for i in last_part)
        )
        late = delay == "delay=one_step" or (delay == "delay=pipedream" and not on_last_part)
        assert torch.equal(x[name], weight)
        assert torch.equal(z[name], weight + 0.5 * previous[name] if late else weight)


def test_weight_prediction_is_read_at_the_weights_that_the_optimizer_moves(data_root, tmp_path):
    config = config_of(data_root, *DENSE, "correction=weight_prediction")
    moved = named(config, seed=78)
    run = make_run(tmp_path / "run", config, {"z": moved})
    assert main([f"ckpt={run}", f"out={tmp_path / 'out'}", "weights=z", "dtype=bfloat16"]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    assert theirs.dtype is torch.bfloat16
    read = initial_weights(replace(config.model, init_from=str(tmp_path / "out")), seed=0)
    assert all(torch.equal(a, b.bfloat16().float()) for a, b in zip(read, moved.values(), strict=True))


@pytest.mark.parametrize(
    "overrides",
    [
        (*MIXTURE, "optimizer=muon", "correction=ef", "delay=pipedream", "pipeline.num_stages=2"),
        (*DENSE, "optimizer=soap", "pipeline=2bw", "trainer.num_micro_batches=2", "lr_schedule=constant"),
    ],
)
def test_a_saved_configuration_reads_back(overrides, data_root, tmp_path):
    config = config_of(data_root, *overrides)
    (tmp_path / records.CONFIG_FILE).write_text(config.to_yaml())
    again = read_config("ckpt", tmp_path)
    assert again == config and again.hash() == config.hash()


BAD_INPUT = {
    "ckpt=nowhere": "ckpt=nowhere: there is no such folder",
    "ckpt=.": "ckpt=.: expected a run's folder, with a config.yaml",
    "weights=y": "weights=y: expected one of x, z",
    "dtype=float16": "dtype=float16: expected one of float64, float32, bfloat16, or null",
    "weights=z": "weights=z: expected x: correction=none has no other reading",
    "tokenizer=nowhere": "tokenizer=nowhere: expected a folder of prepared tokens, with a tokenizer.json",
    "outt=x": "outt=x: no such key; did you mean out?",
    "out=.": "out=.: expected a folder that does not exist yet",
}


@pytest.mark.parametrize("argument", BAD_INPUT)
def test_bad_input_is_one_line_with_exit_code_2_and_leaves_nothing(argument, data_root, tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "run", config_of(data_root, *DENSE), {})
    monkeypatch.chdir(tmp_path)
    assert main([f"ckpt={run}", "out=new", argument]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {BAD_INPUT[argument]}")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_without_a_checkpoint_is_refused(data_root, tmp_path, capsys):
    (tmp_path / records.CONFIG_FILE).write_text(config_of(data_root, *DENSE).to_yaml())
    assert main([f"ckpt={tmp_path}", f"out={tmp_path / 'out'}"]) == 2
    assert "expected a run with a valid checkpoint in checkpoints/" in capsys.readouterr().err
