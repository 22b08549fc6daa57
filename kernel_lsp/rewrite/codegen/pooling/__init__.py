"""Pools with the pointwise work around them."""
