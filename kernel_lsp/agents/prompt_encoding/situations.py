"""A program on a device as words: operations, skills that apply, their parameters, their sites.
Pure.

Deterministic, about 150 words for a chain of five operations and at most `MAX_WORDS` for
anything. Names of the program do not enter: operations are numbered in the order in which they are
listed, and a site lists those that it covers. Lost on purpose: exact odd sizes above 9
(words.size), values, what the source looks like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kernel_lsp.agents.prompt_encoding import words
from kernel_lsp.agents.prompt_encoding.vocabulary import (
    DEVICES,
    LAYOUTS,
    MAX_CHOICES,
    MAX_OPERATIONS,
    MAX_SITES,
    MAX_SKILLS,
    MAX_SPACES,
)
from kernel_lsp.records import (
    SEMANTIC_PARAMETERS,
    Form,
    GraphView,
    Operation,
    OperationRole,
    Site,
)

K = TypeVar("K")
MAX_WORDS = 1400
MAX_FIRST_SITES = 24
"""As many as a prompt in words shows (sizing.MAX_SITES)."""
MAX_COVERED, MAX_FORMS, MAX_READS = 6, 3, 8
SHAPED = frozenset(
    {"view", "reshape", "expand", "unflatten", "broadcast_to", "full", "zeros", "ones", "empty"}
)
"""Operations whose numbers are their result's shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What is known before the first word is said."""

    graph: GraphView
    sites: tuple[Site, ...]
    """Ranked, those of the recalled skills; what may not be chosen here is left out already."""
    device: str
    """cuda or cpu: where candidates are judged."""
    capability: str | None = None
    """``sm_90``; None: no GPU, or unknown."""
    triton: bool = True
    """Generated kernels can be of use there."""
    read_bytes: int | None = None
    written_bytes: int | None = None


@dataclass
class Numbering:
    """The numbers of operations, sites, skills and spaces in one dialog. They never change."""

    operations: dict[str, int] = field(default_factory=dict)
    """By name."""
    sites: dict[str, int] = field(default_factory=dict)
    """By key."""
    skills: dict[str, int] = field(default_factory=dict)
    spaces: dict[tuple[tuple[str, ...], ...], int] = field(default_factory=dict)

    def copy(self) -> Numbering:
        """The same numbers, apart: what is numbered in one of both is not in the other."""
        return Numbering(
            dict(self.operations), dict(self.sites), dict(self.skills), dict(self.spaces)
        )


def opening(situation: Situation, numbering: Numbering) -> list[str]:
    """Everything before the first reply."""
    for most in (MAX_OPERATIONS, 96, 64, 40, 24, 12):
        trial = Numbering()
        entries = [
            *device(situation),
            *_graph(situation, trial, most),
            *sites(situation.sites[:MAX_FIRST_SITES], trial),
        ]
        if len(entries) <= MAX_WORDS:
            break
    numbering.operations, numbering.sites = trial.operations, trial.sites
    numbering.skills, numbering.spaces = trial.skills, trial.spaces
    return entries


def encode_changes(
    graph: GraphView, open_sites: Sequence[Site], closed: Iterable[int], numbering: Numbering
) -> list[str]:
    """What a step has changed, in words: operations and sites that are new, and sites that are
    gone."""
    fresh = [one for one in graph.operations if one.name not in numbering.operations]
    room = MAX_OPERATIONS - len(numbering.operations)
    gone = [f"@{number}" for number in sorted(closed)]
    encoded = _operations(graph, fresh[: max(0, room)], numbering)
    new = [site for site in open_sites if site.key not in numbering.sites]
    return [
        "then",
        *(["operations", *encoded] if encoded else []),
        *(["gone", *gone] if gone else []),
        *sites(new, numbering),
    ]


def sites(some: Sequence[Site], numbering: Numbering) -> list[str]:
    """Skills and spaces that are new, then the sites; one for which no number is left is neither
    listed nor offered."""
    skills, spaces, places = list[str](), list[str](), list[str]()
    for site in some:
        if len(numbering.sites) >= MAX_SITES or not _fits(site, numbering):
            continue
        if site.skill not in numbering.skills:
            skills += [f"K{_number(numbering.skills, site.skill)}:", *skill(site.skill)]
        space = _space(site)
        key = tuple(tuple(part) for part in space)
        if space and key not in numbering.spaces:
            spaces += [
                f"P{_number(numbering.spaces, key)}:",
                *(word for part in space for word in part),
            ]
        places += _site(site, numbering, key)
    return [
        *(["skills", *skills] if skills else []),
        *(["spaces", *spaces] if spaces else []),
        *(["sites", *places] if places else []),
    ]


def skill(name: str) -> list[str]:
    """What a skill is about, by the parts of its name."""
    return [word for part in name.split("-")[:5] for word in words.name(part)]


def encode_choices(site: Site) -> dict[str, list[tuple[str, ...]]]:
    """Parameter -> its choices in words, of those that may be chosen."""
    return {
        name: words.choices(values[:MAX_CHOICES])
        for name, values in site.parameters.items()
        if len(values) > 1 and name not in SEMANTIC_PARAMETERS
    }


# --- parts ---------------------------------------------------------------------------------


def device(situation: Situation) -> list[str]:
    """The words for where a program runs, how, and what any rewrite reads and writes there."""
    graph, numbers = situation.graph, str(situation.capability or "").removeprefix("sm_")
    capability = ["sm", *words.number(int(numbers[:3]) // 10)] if numbers.isdigit() else []
    traffic = [
        word
        for name, count in (("reads", situation.read_bytes), ("writes", situation.written_bytes))
        for word in (name, *(words.size(count) if count is not None else ["unknown"]))
    ]
    mode = ["training" if graph.training else "evaluating", *(["grad"] if graph.gradients else [])]
    triton = "triton" if situation.triton else "no-triton"
    return ["start", DEVICES.get(situation.device, "unknown"), *capability, triton, *mode, *traffic]


def _graph(situation: Situation, numbering: Numbering, most: int) -> list[str]:
    every = situation.graph.operations
    kept = every if len(every) <= most else _around(situation, most)
    cut = [] if len(kept) == len(every) else ["cut", *words.size(len(every))]
    return ["operations", *cut, *_operations(situation.graph, kept, numbering)]


def _around(situation: Situation, most: int) -> list[Operation]:
    """What the best sites cover, with what it reads and is read by, then the first operations of
    the rest."""
    every = situation.graph.operations
    places = {one.name: place for place, one in enumerate(every)}
    wanted: dict[int, None] = {}
    for site in situation.sites[:MAX_FIRST_SITES]:
        covered = [places[name] for name in site.site.split("+") if name in places]
        wanted.update(dict.fromkeys(covered[:MAX_COVERED]))
        wanted.update(
            dict.fromkeys(read for place in covered[:MAX_COVERED] for read in every[place].reads)
        )
    wanted.update(dict.fromkeys(range(len(every))))
    return [every[place] for place in sorted(list(wanted)[:most])]


def _operations(graph: GraphView, some: Sequence[Operation], numbering: Numbering) -> list[str]:
    return [word for one in some for word in _operation(one, graph, numbering)]


def _operation(one: Operation, graph: GraphView, numbering: Numbering) -> list[str]:
    read = [graph.operations[place] for place in one.reads[:MAX_READS]]
    known = [f"%{numbering.operations[r.name]}" for r in read if r.name in numbering.operations]
    arguments = [] if one.op in SHAPED else words.numbers(one.numbers)
    texts = [word for text in one.words[:2] for word in words.choice(text)[:4]]
    return [
        f"%{_number(numbering.operations, one.name)}:",
        *([*words.name(one.op)] if one.role is OperationRole.CALL else [_ROLES[one.role]]),
        *known,
        *arguments,
        *texts,
        *_forms(one, read),
        *(["grad"] if one.trained else []),
        *(["out"] if one.output else []),
    ]


_ROLES = {
    OperationRole.INPUT: "given",
    OperationRole.STATE: "param",
    OperationRole.CONSTANT: "const",
}


def _forms(one: Operation, read: Sequence[Operation]) -> list[str]:
    """``=``: like the first thing that it reads."""
    if one.forms and read and one.forms == read[0].forms:
        return ["="]
    entries = [_form(form) for form in one.forms[:MAX_FORMS]]
    return [
        word for place, form in enumerate(entries) for word in ([",", *form] if place else form)
    ]


def _form(form: Form) -> list[str]:
    layout = LAYOUTS[form.layout.value]
    return [
        *words.name(form.dtype),
        *(word for number in form.shape[:8] for word in words.size(number)),
        *([layout] if layout else []),
    ]


def _fits(site: Site, numbering: Numbering) -> bool:
    skills, spaces = numbering.skills, numbering.spaces
    space = tuple(tuple(part) for part in _space(site))
    return (site.skill in skills or len(skills) < MAX_SKILLS) and (
        not space or space in spaces or len(spaces) < MAX_SPACES
    )


def _space(site: Site) -> list[list[str]]:
    """Each parameter that may be chosen: name, default, number of choices."""
    return [
        [*words.name(name), *encoded[0], *words.number(len(encoded))]
        for name, encoded in encode_choices(site).items()
    ]


def _site(site: Site, numbering: Numbering, space: tuple[tuple[str, ...], ...]) -> list[str]:
    covered = [numbering.operations[n] for n in site.site.split("+") if n in numbering.operations]
    more = ["more"] if len(covered) > MAX_COVERED else []
    shown = [*covered[: MAX_COVERED - 1], covered[-1]] if more else covered
    return [
        f"@{_number(numbering.sites, site.key)}:",
        f"K{numbering.skills[site.skill]}",
        *(f"%{place}" for place in shown),
        *more,
        words.share(site.benefit),
        *(["plain"] if site.plain else []),
        *(["wraps"] if site.wraps else []),
        *([f"P{numbering.spaces[space]}"] if space else []),
    ]


def _number(numbers: dict[K, int], key: K) -> int:
    return numbers.setdefault(key, len(numbers))
