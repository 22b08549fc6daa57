"""A node of a Ray cluster on this machine, its start and its death."""

import contextlib
from collections.abc import Callable
from typing import Any

import psutil


def start(make: Callable[[], Any]) -> Any:
    """What ``make`` starts. Ray gives a node 30 s to begin, which a machine that pauses may take
    from it: such a start is repeated, twice at most."""
    before = set(psutil.Process().children(recursive=True))
    for tries_left in (2, 1, 0):
        try:
            return make()
        except Exception as error:  # Ray has no class of its own for it
            if "timed out during startup" not in str(error) or not tries_left:
                raise
            for one in set(psutil.Process().children(recursive=True)) - before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
    raise AssertionError("unreachable")


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
