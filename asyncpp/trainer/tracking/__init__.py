"""Second readers of a run's records, such as Weights & Biases. metrics.jsonl is the truth; these are for looking at.

tracker.py says what one is told, mirror.py tells it in a thread of its own; one file each for those that there are.
"""
