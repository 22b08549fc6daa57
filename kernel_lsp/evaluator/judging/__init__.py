"""The judge's process: secret inputs, the reference, its float64 oracle, comparison. Never a
candidate."""
