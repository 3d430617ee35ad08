"""python -m asyncpp.checkpoint: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from checkpoint_cases import file_bytes, same_bits, save, state

from asyncpp.checkpoint import main
from asyncpp.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from asyncpp.trainer.checkpoint.names import step_folder
from asyncpp.trainer.checkpoint.reader import newest_valid


@pytest.fixture
def run_folder(tmp_path):
    """A run with two checkpoints, of which two ranks wrote the newer one."""
    root = tmp_path / "run" / "checkpoints"
    save(root, 50, state(1), val_loss=3.5)
    save(root, 100, state(2), {"weights/b.weight": torch.ones(40)})
    return tmp_path / "run"


def damage_newest(run_folder):
    path = step_folder(run_folder / "checkpoints", 100) / "rank-0001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path


def test_inspect_lists_every_checkpoint_of_a_run(run_folder, capsys):
    assert main(["inspect", str(run_folder), "json=true"]) == EXIT_DONE
    newer, older = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (newer["step"], older["step"]) == (100, 50)
    assert older["val_loss"] == 3.5
    assert newer["counters"] == {"data_step": 100}
    assert newer["config"] == {"seed": 0}
    assert newer["num_tensors"] == {"correction": 1, "optimizer": 2, "weights": 4, "weights@2": 1}
    assert newer["tensors"]["weights/b.weight"] == {"dtype": "F32", "shape": [40]}
    assert [file["name"] for file in newer["files"]] == ["rank-0000.safetensors", "rank-0001.safetensors"]
    assert sum(file["num_bytes"] for file in newer["files"]) == newer["num_bytes"]


@pytest.mark.parametrize("below", ["", "checkpoints", "checkpoints/step-00000100"])
def test_inspect_takes_a_run_its_checkpoints_or_one(run_folder, below, capsys):
    assert main(["inspect", str(run_folder / below)]) == EXIT_DONE
    printed = capsys.readouterr().out
    assert "100 updates" in printed
    assert ("50 updates" in printed) == (below != "checkpoints/step-00000100")


def test_verify_names_the_file_that_is_damaged(run_folder, capsys):
    assert main(["verify", str(run_folder)]) == EXIT_DONE
    assert capsys.readouterr().out.count("every byte is as it was written") == 2
    path = damage_newest(run_folder)
    assert main(["verify", str(run_folder), "json=true"]) == EXIT_FAILED
    newer, older = json.loads(capsys.readouterr().out)["checkpoints"]
    assert newer["damage"] == f"{path} differs from its checksum in weights/b.weight"
    assert older["damage"] is None


def test_inspect_says_which_manifest_is_damaged(run_folder, capsys):
    path = step_folder(run_folder / "checkpoints", 100) / "manifest.json"
    path.write_text("{")
    assert main(["inspect", str(run_folder)]) == EXIT_FAILED
    assert f"{path} differs from its checksum" in capsys.readouterr().out


def test_convert_merges_the_newest_valid_one(run_folder, tmp_path, capsys):
    before = file_bytes(run_folder)
    assert main(["convert", str(run_folder), f"to={tmp_path / 'merged'}"]) == EXIT_DONE
    assert "1 files" in capsys.readouterr().out
    merged = newest_valid(tmp_path / "merged", pytest.fail)
    assert merged.info.step == 100
    assert all(same_bits(merged.read(name), tensor) for name, tensor in state(2).items())
    assert file_bytes(run_folder) == before

    path = damage_newest(run_folder)
    assert main(["convert", str(run_folder), f"to={tmp_path / 'older'}", "num_files=3"]) == EXIT_DONE
    assert str(path) in capsys.readouterr().err
    assert newest_valid(tmp_path / "older", pytest.fail).info.step == 50


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["inspect"], "error: path=: expected"),
        (["inspect", "nowhere"], "error: path=nowhere: there is no such folder"),
        (["verify", "empty"], "error: path=empty: expected a checkpoint"),
        (["look", "empty"], "error: action=look: expected one of inspect, verify, convert"),
        (["verify", "run", "jsn=true"], "error: jsn=true: no such key; did you mean json?"),
        (["convert", "run"], "error: to=???: expected a value"),
        (["convert", "run", "to=other", "num_files=0"], "error: num_files=0: expected 1 or more"),
        (
            ["convert", "run", "to=run/checkpoints"],
            "error: to=run/checkpoints: expected a folder without step-00000100",
        ),
    ],
)
def test_bad_input_is_one_line(run_folder, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    before = file_bytes(tmp_path)
    assert main(arguments) == EXIT_BAD_INPUT
    printed = capsys.readouterr()
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert file_bytes(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_one_line(run_folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["convert", str(run_folder), f"to={tmp_path / 'file' / 'below'}"]) == EXIT_FAILED
    assert capsys.readouterr().err.startswith("error: ")


def test_it_is_a_command_and_bad_input_costs_no_torch():
    code = "import sys, asyncpp.checkpoint as c; print(c.main(['inspect', 'nowhere']), 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["2", "False"]
    command = [sys.executable, "-m", "asyncpp.checkpoint"]
    result = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "python -m asyncpp.checkpoint verify" in result.stdout
