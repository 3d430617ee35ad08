"""Sweeps: files that stand for tables and figures of the paper, and everything about running one.

file.py reads a sweep file, expand.py makes its cells, state.py says what became of them;
__main__.py lists the commands.
"""
