"""Loops over time rewritten: as one kernel that keeps the state in registers, with inputs that are
multiplied before, as layers of torch, or as one step on many slices."""
