"""Conditions that are asked of every layer in a list are asked in one line.

A model of 12 blocks asks the same 12 times, in 220 lines. ``fold`` writes
``all(type(layer) is Block and ... for layer in self.blocks)``. Lists inside of lists fold from the
inside out. Everything that was asked is still asked, and of each layer in the same order;
conditions that name two layers of a list stay as they are.

``move_out`` makes a function of what is long: ``all(map(_is_one_of_gpt_blocks, self.blocks))``.
There each part of a layer is looked up once (lookups.py), which takes a third of the time (1.7 to
0.6 ms for 12 blocks of 9 parts on a busy CPU). Inside of a loop no name can be bound: torch.compile
of torch 2.11 says "Read uninitialized cell"."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from kernel_lsp.rewrite.printing import lookups

MIN_ITEMS = 2
MIN_MOVED = 4
"""Conditions of one layer that are worth a function; fewer are read where they are asked."""
VARIABLE = "layer"
FOLDED = re.compile(
    r"(?P<and>(?:and )?)all\((?P<parts>.*) for (?P<variable>layer\w*) in (?P<container>[^()]+)\)"
)


class _Asked(NamedTuple):
    container: str
    """``self.blocks``."""
    position: int
    form: str
    """The condition, with VARIABLE's name in place of the item."""


def fold(conditions: Sequence[str], size_of: Callable[[str], int | None]) -> list[str]:
    """The conditions with those of all items of a container in one. ``size_of``: how many layers
    the module at a source has; None: it is no container that a loop goes through."""
    found = list(conditions)
    while True:
        folded = _fold_once(found, size_of)
        if folded == found:
            return found
        found = folded


def _fold_once(conditions: list[str], size_of: Callable[[str], int | None]) -> list[str]:
    variable = _unused_name(conditions)
    asked = {at: one for at, text in enumerate(conditions) if (one := _asked(text, variable))}
    indices: dict[tuple[str, str], set[int]] = {}
    for one in asked.values():
        indices.setdefault((one.container, one.form), set()).add(one.position)
    forms: dict[str, list[str]] = {}
    for (container, form), of_items in indices.items():
        size = size_of(container)
        if size is not None and size >= MIN_ITEMS and of_items == set(range(size)):
            forms.setdefault(container, []).append(form)
    forms = _innermost_of(
        {at: _movable(found, at, conditions, asked) for at, found in forms.items()}
    )
    written, result = set[str](), list[str]()
    for at, text in enumerate(conditions):
        known = asked.get(at)
        if known is None or known.form not in forms.get(known.container, ()):
            result.append(text)
        elif known.container not in written:
            written.add(known.container)
            every = " and ".join(map(_in_conjunction, forms[known.container]))
            result.append(f"all({every} for {variable} in {known.container})")
    return result


def _innermost_of(forms: dict[str, list[str]]) -> dict[str, list[str]]:
    """Those of the lists deepest inside of others: what is asked of these is one condition for the
    list around them."""
    depths = {container: container.count("[") for container, found in forms.items() if found}
    return {at: forms[at] for at, depth in depths.items() if depth == max(depths.values())}


def _movable(
    forms: list[str], container: str, conditions: Sequence[str], asked: Mapping[int, _Asked]
) -> list[str]:
    """The forms that can be asked of every item where the first of them is asked of one: whatever
    was asked of an item before is asked before. Where classes alternate, one has not what the
    other has; an instance of other classes would raise instead of taking the original path."""
    forms = list(forms)
    while forms:
        places = [
            at for at, one in asked.items() if one.container == container and one.form in forms
        ]
        late = _asked_too_early(places, conditions, asked)
        if late is None:
            return forms
        forms.remove(late)
    return forms


def _asked_too_early(
    places: list[int], conditions: Sequence[str], asked: Mapping[int, _Asked]
) -> str | None:
    """A form that a fold of these conditions would ask of an item before a condition that came
    before it."""
    order = list(dict.fromkeys(asked[at].form for at in places))
    last: dict[int, int] = {}
    for at in places:
        one = asked[at]
        rank = order.index(one.form)
        between = set(range(places[0] + 1, at)).difference(places)
        item = re.compile(rf"\b{re.escape(one.container)}(\[{one.position}\]|\))")
        if rank < last.get(one.position, rank) or any(item.search(conditions[n]) for n in between):
            return one.form
        last[one.position] = rank
    return None


def _asked(text: str, variable: str) -> _Asked | None:
    """What a condition asks of one item; None where it asks of none or of several."""
    items = {match.group(): match for match in map(_innermost, _chains(text)) if match}
    if len(items) != 1:
        return None
    item, match = next(iter(items.items()))
    form = re.sub(rf"{re.escape(item)}(?!\w)", variable, text)
    if "self" in re.findall(r"\w+", form):
        return None
    return _Asked(item[: item.rindex("[")], int(match.group(1)), form)


def _chains(text: str) -> list[str]:
    return re.findall(r"\bself(?:\.[A-Za-z_]\w*|\[\d+\]|\['[^']*'\])+", text)


def _innermost(chain: str) -> re.Match[str] | None:
    """The chain up to its last index of a list."""
    found = list(re.finditer(r"\[(\d+)\]", chain))
    return re.fullmatch(r".*\[(\d+)\]", chain[: found[-1].end()]) if found else None


class LayerChecks:
    """Functions beside the target that ask one layer of a list what the guard asks of each."""

    def __init__(self, owner: str, program: str, paths: Collection[str]) -> None:
        """``owner``: the target's name; ``paths``: sources of its layers and weights."""
        self.functions: list[tuple[str, list[str]]] = []
        """Names, and what each asks of VARIABLE."""
        self._owner, self._paths = owner, paths
        self._used = set(re.findall(r"\w+", program))

    def move_out(self, conditions: Sequence[str]) -> list[str]:
        """The conditions, with a call of a function in place of every long loop."""
        return [self._move_out(text, "self", "self") for text in conditions]

    def _move_out(self, condition: str, variable: str, item: str) -> str:
        """``item``: the source of what ``variable`` names."""
        found = FOLDED.fullmatch(condition)
        parts = _parts(found["parts"]) if found is not None else []
        if found is None or len(parts) < MIN_MOVED:
            return condition
        container = re.sub(rf"^{variable}\b", item, found["container"])
        name = self._name(container)
        inside = [self._move_out(part, found["variable"], f"{container}[0]") for part in parts]
        inside = [re.sub(rf"\b{found['variable']}\b", "self", part) for part in inside]
        begin = f"{container}[0]"
        paths = {f"self{one.removeprefix(begin)}" for one in self._paths if one.startswith(begin)}
        inside, _ = lookups.bound_once(inside, [], paths - {"self"}, [VARIABLE])
        inside = [re.sub(r"\bself\b", VARIABLE, part) for part in inside]
        self.functions.append((name, inside))
        return f"{found['and']}all(map({name}, {found['container']}))"

    def _name(self, container: str) -> str:
        words = re.findall(r"\w+", container)[1:]
        stem = "_".join(["_is_one_of", *re.findall(r"\w+", self._owner), *words]).lower()
        name, number = stem, 1
        while name in self._used:
            number += 1
            name = f"{stem}_{number}"
        self._used.add(name)
        return name


def lines(condition: str, indent: str) -> list[str] | None:
    """A folded condition with a line for each part; None for any other."""
    found = FOLDED.fullmatch(condition)
    if found is None:
        return None
    parts = _parts(found["parts"])
    inner = [f"{'and ' if at else ''}{part}" for at, part in enumerate(parts)]
    inner.append(f"for {found['variable']} in {found['container']}")
    return [f"{found['and']}all(", *(f"{indent}{line}" for line in inner), ")"]


def _parts(conjunction: str) -> list[str]:
    """What is joined by ``and`` outside of parentheses and brackets."""
    parts, depth = [""], 0
    for word in re.split(r"( and )", conjunction):
        if word == " and " and depth == 0:
            parts.append("")
            continue
        depth += sum(map(word.count, "([{")) - sum(map(word.count, ")]}"))
        parts[-1] += word
    return parts


def _in_conjunction(condition: str) -> str:
    outside = condition
    while (inner := re.sub(r"\([^()]*\)", "", outside)) != outside:
        outside = inner
    return f"({condition})" if re.search(r"\b(or|if|lambda)\b", outside) else condition


def _unused_name(conditions: Sequence[str]) -> str:
    words = {word for text in conditions for word in re.findall(r"\w+", text)}
    name, number = VARIABLE, 1
    while name in words:
        number += 1
        name = f"{VARIABLE}_{number}"
    return name
