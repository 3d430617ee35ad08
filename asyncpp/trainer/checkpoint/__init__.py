"""Checkpoints: a run's state between two updates, on disk. Nothing here knows a model, a simulator or a pipeline.

    <run folder>/checkpoints/
        step-00000100/                  after 100 updates; there is such a folder only when it is whole
            rank-0000.safetensors       what rank 0 wrote
            rank-0001.safetensors ...
            manifest.json               step, configuration, counters, and every file's tensors and checksums
        .step-00000200.<launch>-1.partial   being written, or left by a kill: nobody reads it, the next start removes it

Tensors are named by parameter, not by rank, so a checkpoint opens in any other split of the model:

    weights/<parameter>                 the newest version
    weights@<version>/<parameter>       an older one that batches still need
    optimizer/<parameter>.<state>       Optimizer.state_dict()
    correction/<parameter>.<kind>       Correction.state

names: these names. tensor_file: one file. manifest: what a checkpoint holds. reader: open, verify, find the newest.
store: begin, commit, retain, start anew, clean up. writer: save in the background. convert: as other files.

What a trainer calls, on every rank:

    clean_up(root)                                      the first rank, before any other goes on; or start_anew(root)
    checkpoint = newest_valid(root, report)             the first rank, which tells the others its step
    checkpoint = Checkpoint.open(step_folder(root, n))  the others
    checkpoint.require_same_config(scientific, keys)    ConfigError for a difference in any but those keys
    checkpoint.read(name), checkpoint.info.counters     each rank what it owns

    with CheckpointWriter(root, config, rank, num_ranks, launch) as writer:
        for step in ...:
            gradients of batch ``step``
            writer.wait_copied()                        before anything that a save reads is changed
            update
            if due: writer.save(info, tensors)          returns at once; copies during the next batch's gradients
        writer.wait()                                   CheckpointFailed if the last save is not on disk
"""
