"""Cells of a sweep become processes: on this machine (local.py), or on a cluster (slurm.py). No torch.

config.py         what hydra/launcher can be set to
cell.py           a run of a sweep, checked
freeze.py         configuration and code as they are at the launch; nothing that is edited later reaches a cell
ledger.py         <runs_dir>/<sweep>/.sweep: which cells there are, and what was started for each
launch.py         starts the cells that nobody has finished or holds
local.py          cells as processes of this machine; progress.py: what a person sees of them
process.py        the process of a cell: its start, its output, its last words
run_cell.py       what runs in it
slurm.py          cells as jobs of a cluster
slurm_job.py      what Slurm runs: a cell's process, stopped and requeued in time
slurm_start.py    how a job starts the ranks of its run
slurm_commands.py sinfo, squeue, sacct, scontrol, scancel
"""
