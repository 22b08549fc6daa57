"""From nodes of the graph to a region: which nodes share a kernel, the template that runs it, the
names in its source, and what it saves.
"""
