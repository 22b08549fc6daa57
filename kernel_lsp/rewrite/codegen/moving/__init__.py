"""Pointwise regions that read tensors at other places than they write: slices, rolls, padding,
flips, repeats, concatenations and permutations in one kernel each way."""
