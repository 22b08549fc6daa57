"""The rewrite engine: a graph in, readable source out. Only `edit` and `client` are free of
torch."""
