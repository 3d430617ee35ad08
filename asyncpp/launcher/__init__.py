"""Cells of a sweep become processes: on this machine (local.py), or on a cluster (slurm.py). No torch.

config.py         what hydra/launcher can be set to
cell.py           a run of a sweep, checked
freeze.py         configuration and code as they are at the launch; nothing that is edited later reaches a cell
ledger.py         <runs_dir>/<sweep>/.sweep: which cells there are, and what was started for each
launch.py         starts the cells that nobody has finished or holds
run_cell.py       the process of a cell
slurm_job.py      what Slurm runs: a cell's process, stopped and requeued in time
slurm_commands.py sinfo, squeue, sacct, scontrol, scancel
"""
