"""Triton kernels as targets: a kernel, the function that launches it, and rewrites of both as
text.

`session.KernelSession` is what an engine opens for such a target; skills work on a `view.Kernel`.
Rewrites are edits of source positions (ast), not of a concrete syntax tree: the engine runs in the
user's interpreter, where only torch, triton and the standard library may be expected."""
