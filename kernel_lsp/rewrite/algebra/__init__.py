"""Arithmetic of convolutions, pools and reductions that several skills prove their rewrites
with."""
