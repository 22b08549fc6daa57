"""Sums, softmax and norms over rows, columns and channels: operations and templates."""
