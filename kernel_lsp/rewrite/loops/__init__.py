"""Loops over time: found in the unrolled graph, taken apart, and rewritten."""
