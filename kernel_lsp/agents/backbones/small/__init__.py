"""The shipped policy's runtime: a small causal language model in a child process that needs torch
alone.

shape.py     what a checkpoint's config.json says, and which ones can be run here
tensors.py   reads safetensors                                             (torch)
network.py   the model: Qwen3's architecture                               (torch)
decoding.py  replies along a grammar's graph, with log-probabilities       (torch)
child.py     the process                                                   (torch)
runtime.py   the parent's side: starts it, asks it, gives it up with a reason
"""
