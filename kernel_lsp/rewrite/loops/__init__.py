"""Loops over time: found in the unrolled graph, and taken apart into steps and slices."""
