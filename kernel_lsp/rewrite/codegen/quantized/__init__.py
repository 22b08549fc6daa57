"""Products of a few rows with a weight of whole numbers, which is scaled as it is read."""
