"""kernel-lsp: measured, checked rewrites of PyTorch and Triton code, offered in any editor.

This file stays free of imports: engine, judge and worker load the package inside the
project's interpreter, where only torch, triton and the standard library exist.
"""

__version__ = "0.1.0"
