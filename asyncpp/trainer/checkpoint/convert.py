"""A checkpoint written anew as another number of files: to merge what many ranks wrote, or to spread it."""

from __future__ import annotations

from pathlib import Path

from asyncpp.errors import require
from asyncpp.pipeline.partition import share_out
from asyncpp.trainer.checkpoint.manifest import Manifest
from asyncpp.trainer.checkpoint.names import file_name, step_folder
from asyncpp.trainer.checkpoint.reader import Checkpoint
from asyncpp.trainer.checkpoint.store import begin, commit, give_up, hand_in, partial_folder, require_space
from asyncpp.trainer.checkpoint.tensor_file import Layout, bytes_of, write_tensors

LAUNCH = "convert"  # takes the place of a launch in the name of the folder that is being written


def convert(checkpoint: Checkpoint, root: Path, num_files: int) -> Manifest:
    """Write ``checkpoint`` below ``root``, each tensor once, in files of about one size; one is in memory at a time.

    Raises ConfigError where that checkpoint is there already, CheckpointFailed or OSError where it can't be written,
    CheckpointDamaged where it can't be read.
    """
    info = checkpoint.info
    final = step_folder(root, info.step)
    require(not final.exists(), "to", root, f"expected a folder without {final.name}")
    tensors = {name: checkpoint.record(name).empty() for name in checkpoint.names}
    names = sorted(tensors)
    sizes = [tensors[name].nbytes for name in names]
    files = share_out(sizes, num_files)
    shares = [[name for name, file in zip(names, files, strict=True) if file == number] for number in range(num_files)]

    partial = partial_folder(root, info.step, LAUNCH, attempt=0)
    try:
        begin(root, info.step, LAUNCH, attempt=0, rank=0)
        require_space(root, sum(sizes))
        for rank, share in enumerate(shares):
            layout = Layout({name: tensors[name] for name in share})
            contents = (bytes_of(checkpoint.read(name)) for name in layout.places)
            hand_in(partial, rank, write_tensors(partial / file_name(rank), layout, contents))
    except BaseException:
        give_up(partial, rank=0)
        raise
    return commit(partial, info, num_files, timeout_s=0.0, stopped=lambda: False)
