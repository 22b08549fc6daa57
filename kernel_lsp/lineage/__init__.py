"""Lineages: an expert kernel walked back to a naive one, and what each accepted step teaches.

`operators/` simplify (they run in the engine process and import the rewrite engine alone), `catalog` says in
words and as data what each of them is the inverse of, `walking` walks, `lessons` turns steps around into
skills, `kept` is what lies on disk. This file stays empty: the engine imports it.
"""
