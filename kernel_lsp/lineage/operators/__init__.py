"""Simplification operators: one file each, in the protocol of executable skills of scope
``triton``.

``match``, ``preconditions``, ``parameters``, ``apply`` as `kernel_lsp.rewrite.kernels.view` says;
the most drastic choice of a parameter stands first. An operator may be wrong about a kernel:
nothing it makes counts before the gate has judged it. Its preconditions are the facts under which
the *forward* change was valid."""
