"""Which replies are valid: a graph of words that decoding walks, so that every reply is
well-formed.

`GrammarNode` has the words that may come next and what follows each; one without any is the end of
a reply. The child that decodes gets it as a `table`. It is shared where what follows is the same,
so it grows with the sum of the choices, not with their product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class GrammarNode:
    branches: Mapping[str, GrammarNode] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """What may come next; nothing behind a whole reply."""
        return tuple(self.branches)

    def after(self, words: Sequence[str]) -> GrammarNode:
        """The node that these words lead to. Raises KeyError for words that are not valid."""
        node = self
        for word in words:
            node = node.branches[word]
        return node

    def accepts(self, words: Sequence[str]) -> bool:
        """Whether this is a whole reply."""
        try:
            return not self.after(words).branches
        except KeyError:
            return False

    def offered(self, words: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """What was valid in the place of each of these words."""
        node = self
        for word in words:
            yield node.words
            node = node.branches[word]


END = GrammarNode()


def chain(words: Sequence[str], then: GrammarNode = END) -> GrammarNode:
    """A grammar of these words, one after the other."""
    for word in reversed(words):
        then = GrammarNode({word: then})
    return then


def either(*nodes: GrammarNode) -> GrammarNode:
    """A grammar of any of these, none of which is an END."""
    if len(nodes) == 1:
        return nodes[0]
    merged: dict[str, list[GrammarNode]] = {}
    for node in nodes:
        for word, after in node.branches.items():
            merged.setdefault(word, []).append(after)
    return GrammarNode({word: either(*_once(afters)) for word, afters in merged.items()})


def _once(nodes: Sequence[GrammarNode]) -> list[GrammarNode]:
    return list({id(node): node for node in nodes}.values())


def table(start: GrammarNode, tokens: Mapping[str, int]) -> list[list[list[int]]]:
    """Nodes as lists of [token, number of the node after it]; the first is the start."""
    numbers, order = _number_nodes(start)
    return [
        [[tokens[word], numbers[id(after)]] for word, after in node.branches.items()]
        for node in order
    ]


def _number_nodes(start: GrammarNode) -> tuple[dict[int, int], list[GrammarNode]]:
    """Every node once, those that are nearer to the start first."""
    numbers, order = {id(start): 0}, [start]
    for node in order:
        for after in node.branches.values():
            if id(after) not in numbers:
                numbers[id(after)] = len(order)
                order.append(after)
    return numbers, order
