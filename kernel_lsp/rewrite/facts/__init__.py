"""What is proved about tensors: abstract interpretation with one transfer function per
operation."""
