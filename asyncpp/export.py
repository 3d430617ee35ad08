"""A run's model as a Hugging Face folder: config.json, safetensors, tokenizer. No network.

    python -m asyncpp.export ckpt=runs/default/<run> out=<folder>
    python -m asyncpp.export ckpt=runs/default/<run>/checkpoints/step-00000400 out=<folder> weights=z

ckpt         a run's folder, whose newest valid checkpoint is taken, or one of its checkpoints
out          a folder that does not exist yet; AutoModelForCausalLM.from_pretrained and AutoTokenizer read it
weights      x, the weights that the run ends with, or z, what error feedback and weight prediction predict from
dtype        of the written weights: float64, float32, bfloat16; null keeps the run's
tokenizer    folder of prepared tokens with the tokenizer; null takes the one that the run names
json         true prints one JSON document
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import MISSING

from asyncpp.arguments import run_command
from asyncpp.config import Config
from asyncpp.data.config import DataConfig, MixtureConfig
from asyncpp.data.manifest import TOKENIZER_FILE, Manifest
from asyncpp.errors import EXIT_DONE, ConfigError, check_option, require
from asyncpp.saved_config import read_config
from asyncpp.trainer.checkpoint.names import CHECKPOINTS_FOLDER, correction_name, step_of, weight_name

if TYPE_CHECKING:
    from torch import Tensor

    from asyncpp.model.hf_folder import TokenizerFile
    from asyncpp.parameters import ParameterInfo
    from asyncpp.trainer.checkpoint.reader import Checkpoint

READINGS = ("x", "z")
DTYPES = ("float64", "float32", "bfloat16")


@dataclass
class Options:
    ckpt: str = MISSING
    out: str = MISSING
    weights: str = "x"
    dtype: str | None = None
    tokenizer: str | None = None
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. Without arguments it prints its usage."""
    return run_command(__doc__ or "", arguments or ["--help"], Options, _command)


def _command(options: Options) -> int:
    check_option("weights", options.weights, READINGS)
    require(options.dtype in (None, *DTYPES), "dtype", options.dtype, f"expected one of {', '.join(DTYPES)}, or null")
    require(not Path(options.out).exists(), "out", options.out, "expected a folder that does not exist yet")
    run_folder, step = located(Path(options.ckpt))
    config = read_config("ckpt", run_folder)
    tokenizer = tokenizer_of(config.data, options.tokenizer)

    import torch  # a second that a mistake above need not wait for

    from asyncpp.model.hf_folder import write_folder
    from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged

    try:
        checkpoint = open_checkpoint(run_folder, step)
        if options.tokenizer is None:
            require_tokens_of(config, checkpoint)
        weights = final_weights(config, checkpoint, options.weights)
    except CheckpointDamaged as damage:
        raise ConfigError("ckpt", options.ckpt, f"expected a whole checkpoint: {damage}") from None
    if options.dtype is not None:
        weights = {name: weight.to(getattr(torch, options.dtype)) for name, weight in weights.items()}
    write_folder(Path(options.out), config.model, weights, tokenizer, config.data.sequence_length)
    done = checkpoint.info.step
    if options.json:
        print(json.dumps({"out": options.out, "step": done, "weights": options.weights, "run": str(run_folder)}))
    else:
        print(f"{options.out}: {run_folder.name} after {done:,} updates, read at {options.weights}")
    return EXIT_DONE


def require_tokens_of(config: Config, checkpoint: Checkpoint) -> None:
    """Raise ConfigError where the prepared tokens are others than the run read, and so the tokenizer may be another."""
    from asyncpp.data.tokens import data_digest

    read = checkpoint.info.counters.get("data_digest")
    accepted = "its tokens are not those that the run read; give the folder of those as tokenizer"
    require(read is None or read == data_digest(config.data), "tokenizer", config.data.root, accepted)


def final_weights(config: Config, checkpoint: Checkpoint, reading: str = "x") -> dict[str, Tensor]:
    """The newest weights in ``checkpoint`` by our parameters' names, read at x or z, in canonical order.

    Raises ConfigError where the run's correction has no z, CheckpointDamaged.
    """
    require_reading(config, reading)
    from asyncpp.model.layout import parameter_infos
    from asyncpp.pipeline.partition import indices_by_part

    infos = parameter_infos(config.model)
    if reading == "x":
        return {info.name: checkpoint.read(weight_name(info.name)) for info in infos}
    weights: dict[str, Tensor] = {}
    for part, indices in enumerate(indices_by_part(infos, config.layers)):
        weights |= _z_weights(config, checkpoint, part, [infos[index] for index in indices])
    return {info.name: weights[info.name] for info in infos}


def _z_weights(config: Config, checkpoint: Checkpoint, part: int, infos: Sequence[ParameterInfo]) -> dict[str, Tensor]:
    """z of one part of the model, as the run's own correction makes it of its state."""
    from asyncpp.pipeline.delay import version_of
    from asyncpp.trainer.setup import build_correction

    weights = [checkpoint.read(weight_name(info.name)) for info in infos]
    profile, last = config.profile, checkpoint.info.step - 1
    correction = build_correction(config, weights, profile.delays[part])
    for kind, tensors in correction.state.items():
        for info, tensor in zip(infos, tensors, strict=True):
            tensor.copy_(checkpoint.read(correction_name(info.name, kind)))
    staleness = last - version_of(last, correction.delay(last, profile.delay(part, last)))
    z = correction.z_weights(weights, staleness)
    assert z is not None  # as require_reading has found
    return dict(zip([info.name for info in infos], z, strict=True))


def require_reading(config: Config, reading: str) -> None:
    """Raise ConfigError where weights of ``config`` cannot be read so. No checkpoint is asked."""
    import torch

    from asyncpp.trainer.setup import build_correction

    some = [torch.zeros(1)]
    has_reading = reading == "x" or build_correction(config, some, delay=1).z_weights(some, staleness=1) is not None
    require(has_reading, "weights", reading, f"expected x: correction={config.correction.name} has no other reading")


def tokenizer_of(data: DataConfig, folder: str | None) -> TokenizerFile:
    """What the run's tokens were encoded with, from ``folder`` or where the run found it. Raises ConfigError."""
    from asyncpp.model.hf_folder import TokenizerFile

    name = next(iter(data.weights)) if isinstance(data, MixtureConfig) else data.name
    prepared = data.folder_of(name) if folder is None else Path(folder)
    path = prepared / TOKENIZER_FILE
    accepted = f"expected a folder of prepared tokens, with a {TOKENIZER_FILE}"
    require(path.is_file(), "tokenizer", prepared, accepted)
    manifest = Manifest.read(prepared)
    return TokenizerFile(path, manifest.recipe["tokenizer"]["end_of_document"], manifest.end_of_document)


def located(ckpt: Path) -> tuple[Path, int | None]:
    """The run folder of ``ckpt``, and the step of the checkpoint that it names, if it names one. Raises ConfigError."""
    if not ckpt.is_dir():
        raise ConfigError("ckpt", ckpt, "there is no such folder")
    step = step_of(ckpt.resolve())
    return (ckpt, None) if step is None else (ckpt.resolve().parents[1], step)


def open_checkpoint(run_folder: Path, step: int | None) -> Checkpoint:
    """The run's checkpoint of ``step``, or its newest valid one. Raises ConfigError, CheckpointDamaged."""
    from asyncpp.trainer.checkpoint.names import step_folder
    from asyncpp.trainer.checkpoint.reader import Checkpoint, newest_valid

    root = run_folder / CHECKPOINTS_FOLDER
    if step is not None:
        return Checkpoint.open(step_folder(root, step))
    checkpoint = newest_valid(root, lambda line: print(f"warning: {line}", file=sys.stderr))
    if checkpoint is None:
        raise ConfigError("ckpt", run_folder, f"expected a run with a valid checkpoint in {CHECKPOINTS_FOLDER}/")
    return checkpoint


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
