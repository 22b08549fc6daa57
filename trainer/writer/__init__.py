"""A small language model that writes kernels, trained from nothing: `python -m trainer.writer`.

The engine's rewrites of generated programs are the data, the gate judges what the model writes.
Importing this package imports no torch."""
