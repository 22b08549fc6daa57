"""Whole programs: recorded, their targets rewritten where they live, and their own step timed.

optimizing.py    the order: record, profile, rewrite, compose, time
recording.py     runs a program once and keeps what it called
shares.py        where the device time of a step goes
targets.py       which targets are looked at, and what was found for each
program_edits.py edits that belong to no target: fused optimizers, a compiled outermost module
composing.py     texts of the program with edits, in variants
stepping.py      one run for some steps, in a copy of the workspace (mirror.py)
runs.py          the runs of one program, within their time (timetable.py, resuming.py)
measuring.py     ways beside each other: which is faster
comparing.py     whether they compute the same
bench.py         the order of a program's runs
elsewhere.py     optimizers that an installed package makes: what its user can do
offering.py      the edits of a measured variant, one by one
"""
