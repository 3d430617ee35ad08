"""``python -m asyncpp.plan`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from asyncpp.plan import main

TEN_BILLION = ("model=10b", "optimizer=muon", "correction=ef", "pipeline=2bw", "pipeline.num_stages=8")


def document_of(capsys, *arguments: str) -> dict:
    assert main([*arguments, "json=true"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_ten_billion_run_on_thirty_two_accelerators(capsys):
    document = document_of(capsys, *TEN_BILLION, "pipeline.data_parallel=4", "hardware=h100")
    assert document["num_parameters"] == 10_104_211_456
    assert document["num_active_parameters"] == 1_648_494_592
    assert document["num_ranks"] == 32 and len(document["stages"]) == 8
    assert document["fits"] and document["changes"] == []
    assert document["staleness_updates"] == [1] * 8
    assert document["max_memory_bytes"] == max(stage["total_memory_bytes"] for stage in document["stages"])
    for stage in document["stages"]:
        assert abs(sum(stage["memory_bytes"].values()) - stage["total_memory_bytes"]) <= 7  # rounded one by one
        assert stage["memory_bytes"]["correction_state"] == 4 * stage["num_parameters"] + copy_of_the_embedding(stage)
    layers = [layer for stage in document["stages"] for part in stage["parts"] for layer in part["layers"]]
    assert layers == list(range(32))
    assert document["budget_tokens"] == 20 * document["num_parameters"]
    assert 0.0 < document["mfu_with_bubble"] < document["mfu"] == 0.4


def copy_of_the_embedding(stage: dict) -> int:
    """Bytes of error feedback's state for it, where the stage has the tied head but not the embedding."""
    part = stage["parts"][0]
    return 4 * 49152 * 2048 if part["head"] and not part["embedding"] else 0


def test_what_does_not_fit_is_said_with_what_to_change_and_exit_code_0(capsys):
    arguments = [*TEN_BILLION, "pipeline.num_stages=2"]
    document = document_of(capsys, *arguments)
    assert not document["fits"]
    best = document["changes"][0]
    assert best["fits"] and best["max_memory_bytes"] <= document["usable_memory_bytes"]
    changed = document_of(capsys, *arguments, *best["overrides"].split())
    assert changed["fits"] and changed["max_memory_bytes"] == best["max_memory_bytes"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "does not fit: the fullest stage needs" in printed and f"{best['overrides']}: " in printed


def test_the_table_says_what_the_document_does(capsys):
    arguments = [*TEN_BILLION, "pipeline.data_parallel=4"]
    document = document_of(capsys, *arguments)
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "10.1B parameters, 1.65B active" in printed
    assert f"{document['tokens_per_s']:,.0f} tokens/s" in printed
    for stage in document["stages"]:
        assert f"{stage['total_memory_bytes'] / 1e9:.2f}" in printed
    assert printed.rstrip().endswith("fits")


@pytest.mark.parametrize("pipeline", ["simulated", "gpipe", "1f1b", "one_f_one_b", "interleaved", "pipedream", "wpipe"])
def test_every_pipeline_can_be_planned(capsys, pipeline):
    document = document_of(capsys, f"pipeline={pipeline}", "pipeline.num_stages=2", "model=135m")
    assert document["step_s"] > 0.0 and document["num_updates_per_step"] == (64 if pipeline == "pipedream" else 1)


BAD_INPUT = {
    "pipeline.num_stages=0": "pipeline.num_stages=0: expected 1 or more",
    "pipeline.num_stages=33": "pipeline.num_stages=33: expected at most model.num_layers=32 parts of the model, not 33",
    "pipeline.num_stages=65": "trainer.num_micro_batches=64: expected at least num_stages=65",
    "trainer.num_micro_batches=3": "trainer.batch_size=512: expected a multiple of trainer.num_micro_batches=3",
    "pipeline.data_parallel=3": "trainer.batch_size=512: expected a multiple of pipeline.data_parallel x",
    "pipeline.data_parallel=0": "pipeline.data_parallel=0: expected 1 or more",
    "pipeline.num_chunks=2": "pipeline.num_chunks=2: this schedule has 1",
    "pipeline=3bw": "pipeline=3bw: expected one of ",
    "hardware=h1000": "hardware=h1000: expected one of a100, b200, cpu, h100, h200",
    "hardware.memory_bytes=-1": "hardware.memory_bytes=-1.0: expected a positive number",
    "hardware.reserved_bytes=9e10": "hardware.reserved_bytes=90000000000.0: expected zero to hardware.memory_bytes=8e",
    "precision=fp8": "precision=fp8: expected one of float64, float32, bf16_autocast, bf16_mixed, or null",
    "trainer.dtype=float64": "trainer.autocast=bfloat16: expected null with trainer.dtype=float64",
    "mfu=1.5": "mfu=1.5: expected a number in (0, 1]",
    "mfu=fast": "mfu=fast: value 'fast'",
    "pipeline.recompute=maybe": "pipeline.recompute=maybe: value 'maybe'",
    "pipeline.shard_optimizer=true correction=dc_asgd": "pipeline.shard_optimizer=True: expected false with correction",
    "budget_tokens=0": "budget_tokens=0.0: expected a positive number, or null",
    "delay=sync": "delay=sync: expected auto: pipeline=two_bw has a delay of its own",
    "optimizer=adamw_split": "optimizer=adamw_split: expected another one",
    "+hardwares=1": "hardwares=1: no such key; did you mean hardware? accepted here: model",
    "mfuu=1": "mfuu=1: no such key; did you mean mfu?",
}


@pytest.mark.parametrize("override", BAD_INPUT)
def test_bad_input_is_one_line_with_exit_code_2(capsys, override):
    assert main(override.split()) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ") and BAD_INPUT[override] in line
    assert captured.out == ""


def test_a_plan_is_made_without_torch(tmp_path):
    script = (
        "import sys, runpy\n"
        "sys.argv = ['plan', 'json=true']\n"
        "try: runpy.run_module('asyncpp.plan', run_name='__main__')\n"
        "except SystemExit as end: code = end.code\n"
        "print('torch' in sys.modules, code)"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False 0"
    assert list(tmp_path.iterdir()) == []
