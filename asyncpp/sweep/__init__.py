"""Sweeps: files that stand for tables and figures of the paper, and everything about running one.

file.py reads a sweep file, expand.py makes its cells, run.py runs them; __main__.py lists the commands.
"""
