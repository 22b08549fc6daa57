"""Lineages: an expert kernel walked back to a naive one, and what each accepted step teaches.

`operators/` simplify (they run in the engine process and import the rewrite engine and `places`
alone), `catalog` says in words and as data what each of them is the inverse of, `ground` opens a
kernel, `walking` walks, `forward` finds the skill that goes back, `lessons` makes records and
drafts of it, `kept` is what lies on disk. This file stays empty: the engine imports it."""
