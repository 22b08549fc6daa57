"""Search for better rewrites of one target: where to go on, what to try, when to stop, what is
kept.

Knows no engine, no gate and no model: those come in through the protocols of records/searches.py.
"""
