"""The offline trainer: logged sessions and searches in, a dataset or a better policy out.

May import kernel_lsp's records, agents, rewrite, evaluator, search and journal; kernel_lsp never
imports it. Importing this package imports no torch."""
