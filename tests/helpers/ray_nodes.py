"""A node of a Ray cluster on this machine, and its death."""

import contextlib
from typing import Any

import psutil


def raylet(node: Any) -> Any:
    """The process of Ray that is this node."""
    return node.all_processes["raylet"][0].process


def kill_node(node: Any) -> list[psutil.Process]:
    """At once, with all that Ray runs there, as when a machine loses power. Returns all that ran
    below it: with a raylet alone gone, what it has started would work until it notices."""
    process = psutil.Process(raylet(node).pid)
    below, ran = process.children(), process.children(recursive=True)
    for one in [*below, process]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end just now
            one.kill()
    return ran
