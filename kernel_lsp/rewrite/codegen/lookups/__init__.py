"""Rows of a table that are looked up and summed, and the gradient of the table."""
