"""Attention: matched in the graph, brought to one form, and written as one kernel or library
call."""
