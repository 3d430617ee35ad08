"""What checkpoints hold, whether they are whole, and writing one anew as another number of files.

    python -m asyncpp.checkpoint inspect <path> [json=true]
    python -m asyncpp.checkpoint verify  <path> [json=true]
    python -m asyncpp.checkpoint convert <path> to=<folder> [num_files=1]

path: a run's folder, its folder of checkpoints, or one checkpoint (step-...). inspect lists each one's step, files,
tensors and counters; verify reads every byte of each one, and fails unless all are as they were written; convert takes
the newest valid one and writes it below ``to``, where a run can go on from it as from the old one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from asyncpp.arguments import asks_for_help, exit_code_of, parse_arguments
from asyncpp.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, ConfigError, check_count, check_option, require
from asyncpp.records import config_hash
from asyncpp.trainer.checkpoint.names import CHECKPOINTS_FOLDER, step_folders, step_of


@dataclass
class ReportOptions:
    json: bool = False


@dataclass
class ConvertOptions:
    to: str = MISSING
    num_files: int = 1


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    if not arguments or asks_for_help(arguments):
        print((__doc__ or "").strip())
        return EXIT_DONE if arguments else EXIT_BAD_INPUT

    def command() -> int:
        action, *rest = arguments
        check_option("action", action, ACTIONS)
        require(bool(rest) and bool(rest[0]), "path", "", "expected a run's folder or a checkpoint's")
        return ACTIONS[action](Path(rest[0]), rest[1:])

    return exit_code_of(command)


def inspect(path: Path, arguments: Sequence[str]) -> int:
    """Print what each checkpoint's manifest says. EXIT_FAILED where one can't be read."""
    options = parse_arguments(arguments, ReportOptions)
    reports = [_described(folder) for folder in _folders(path)]
    if options.json:
        print(json.dumps({"checkpoints": reports}, indent=1))
    else:
        for report in reports:
            _print(report)
    return EXIT_FAILED if any(report["damage"] for report in reports) else EXIT_DONE


def verify(path: Path, arguments: Sequence[str]) -> int:
    """Read every byte of each checkpoint. EXIT_FAILED where one is damaged."""
    options = parse_arguments(arguments, ReportOptions)
    damages = {str(folder): _damage(folder) for folder in _folders(path)}
    if options.json:
        checkpoints = [{"folder": folder, "damage": damage} for folder, damage in damages.items()]
        print(json.dumps({"checkpoints": checkpoints}, indent=1))
    else:
        for folder, damage in damages.items():
            print(f"{folder}: {damage or 'every byte is as it was written'}")
    return EXIT_FAILED if any(damages.values()) else EXIT_DONE


def convert(path: Path, arguments: Sequence[str]) -> int:
    """Write the newest valid checkpoint below another folder."""
    from asyncpp.trainer.checkpoint.convert import convert as write_anew  # a second of torch that a typo need not pay
    from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged
    from asyncpp.trainer.checkpoint.reader import Checkpoint
    from asyncpp.trainer.checkpoint.store import CheckpointFailed

    options = parse_arguments(arguments, ConvertOptions)
    check_count("num_files", options.num_files)
    for folder in _folders(path):
        damage = _damage(folder)
        if damage is not None:
            print(f"warning: {damage}", file=sys.stderr)
            continue
        try:
            manifest = write_anew(Checkpoint.open(folder), Path(options.to), options.num_files)
        except (CheckpointDamaged, CheckpointFailed, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_FAILED
        print(f"{folder} written to {options.to}: {len(manifest.files)} files, {manifest.num_bytes:,} bytes")
        return EXIT_DONE
    print(f"error: no valid checkpoint in {path}", file=sys.stderr)
    return EXIT_FAILED


ACTIONS: dict[str, Callable[[Path, Sequence[str]], int]] = {"inspect": inspect, "verify": verify, "convert": convert}


def _folders(path: Path) -> list[Path]:
    """The checkpoints that ``path`` names, the newest first. Raises ConfigError where there is none."""
    if path.is_dir() and step_of(path.resolve()) is not None:
        return [path]
    folders = step_folders(path / CHECKPOINTS_FOLDER) or step_folders(path)
    if not folders:
        accepted = f"expected a checkpoint, or a folder with {CHECKPOINTS_FOLDER}/step-..." if path.is_dir() else None
        raise ConfigError("path", path, accepted or "there is no such folder")
    return folders


def _damage(folder: Path) -> str | None:
    from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged
    from asyncpp.trainer.checkpoint.reader import Checkpoint

    try:
        Checkpoint.open(folder).verify()
    except CheckpointDamaged as error:
        return str(error)
    return None


def _described(folder: Path) -> dict[str, Any]:
    """What a checkpoint's manifest says, as plain JSON values."""
    from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged, Manifest

    try:
        manifest = Manifest.read(folder)
    except CheckpointDamaged as error:
        return {"folder": str(folder), "damage": str(error)}
    tensors = {name: tensor for file in manifest.files for name, tensor in file.tensors.items()}
    kinds = Counter(name.partition("/")[0] for name in tensors)
    return {
        "folder": str(folder),
        "damage": None,
        **{key: value for key, value in asdict(manifest.info).items() if key != "config"},
        "config_hash": config_hash(manifest.info.config),
        "config": manifest.info.config,
        "num_bytes": manifest.num_bytes,
        "files": [{"name": file.name, "num_bytes": file.num_bytes} for file in manifest.files],
        "num_tensors": dict(sorted(kinds.items())),
        "tensors": {name: {"dtype": t.dtype, "shape": list(t.shape)} for name, t in sorted(tensors.items())},
    }


def _print(report: dict[str, Any]) -> None:
    if report["damage"]:
        print(f"{report['folder']}: {report['damage']}")
        return
    print(f"{report['folder']}: {report['step']:,} updates, config {report['config_hash']}")
    print(f"  {report['num_bytes']:,} bytes in {', '.join(file['name'] for file in report['files'])}")
    print(f"  tensors: {', '.join(f'{count:,} {kind}' for kind, count in report['num_tensors'].items())}")
    for key in ("world", "counters", "val_loss"):
        print(f"  {key}: {json.dumps(report[key])}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
