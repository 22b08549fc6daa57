"""What is learned from: journals, archives and tables, as one corpus or a data set on disk."""
