"""Records to what a person reads: Markdown, diffs, reports, and LSP types (lsp.py alone)."""
