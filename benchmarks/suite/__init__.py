"""The tables from which benchmarks/tasks is written: `python -m benchmarks.suite` rewrites the files.

operators.py, chains.py and models.py each hold one group. Everything is our own; no task is taken
from a published benchmark.
"""
