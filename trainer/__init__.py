"""The offline trainer: logged sessions and searches in, a dataset or a better policy out.

May import kernel_lsp's records, agents, rewrite, evaluator, search and journal; kernel_lsp never
imports it. Importing this package imports no torch. For the `verifiers` library it is the plugin
`trainer`, whose classes are looked up when they are asked for."""

from typing import Any

__all__ = ["KernelHarness", "KernelTaskset"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainer.rollouts import verifiers_plugin

    return getattr(verifiers_plugin, name)
