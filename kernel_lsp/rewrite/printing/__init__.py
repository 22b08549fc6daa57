"""A rewritten graph back to source: statements, names, guards, and where they stand in the file."""
