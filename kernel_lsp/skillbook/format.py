"""SKILL.md: what one skill folder must look like, and what exactly is wrong when it does not.

A folder `skills/<name>/` holds SKILL.md (front matter and four sections) and, when the skill can
rewrite code by itself, rewrite.py (checked in executable.py). Every problem names file, field and
remedy, and all problems of a folder are found in one pass. Reading a skill never runs anything
from its folder. Not covered: whether the advice is any good; that is what evaluations of its
rewrites are for."""

from __future__ import annotations

import copy
import difflib
import errno
import functools
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from kernel_lsp import foreign
from kernel_lsp.errors import SkillError
from kernel_lsp.records import SKILL_SCOPES, SKILL_SECTIONS, Skill, SkillProblem
from kernel_lsp.skillbook import conditions, executable
from kernel_lsp.skillbook.conditions import Wrong

SECTIONS, SCOPES = SKILL_SECTIONS, SKILL_SCOPES
KEYS = ("name", "description", "license", "metadata")
METADATA_KEYS = ("scope", "tags", "version", "preconditions", "requires", "recipe")
MAX_DESCRIPTION = 120
MAX_NAME = 64
MAX_TAGS = 12
MAX_UNKNOWN = 20
"""Unknown fields that are named: each is compared with all known ones."""
MAX_BYTES = 64 * 1024
"""A skill is read whole by a person or a model; the longest published ones have 600 lines."""

_KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# torch's own words, such as channels_last, are good tags.
_TAG = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*")
_FRONT_MATTER = re.compile(
    r"\A---[ \t]*\n(?P<yaml>.*?)^---[ \t]*\n(?P<body>.*)\Z", re.DOTALL | re.MULTILINE
)
_HEADING = re.compile(r"#{1,2}[ \t]++(?P<title>\S.*)")
_FENCE = re.compile(r"\s*(```|~~~)")


def lint(folder: Path) -> tuple[SkillProblem, ...]:
    """Everything that is wrong with a skill folder; empty when it can be loaded."""
    return examine(folder)[1]


def read(folder: Path, source: str = "built-in") -> Skill:
    """One skill. Raises SkillError with the first problem when the folder breaks the format."""
    skill, problems = examine(folder, source)
    if skill is None:
        first = problems[0]
        raise SkillError(f"{first.path}: {first.field}: {first.cause}", first.remedy)
    return skill


def examine(
    folder: Path, source: str = "built-in"
) -> tuple[Skill | None, tuple[SkillProblem, ...]]:
    """The skill, or None and why not."""
    path = folder / "SKILL.md"
    problems: list[SkillProblem] = []

    def wrong(field: str, cause: str, remedy: str) -> None:
        problems.append(SkillProblem(path=str(path), field=field, cause=cause, remedy=remedy))

    text = _text(path, wrong)
    parts = _FRONT_MATTER.match(text) if text is not None else None
    if text is not None and parts is None:
        wrong(
            "front matter", "missing", "begin with a line `---`, the fields, and another line `---`"
        )
    front = _front_matter(parts["yaml"], wrong) if parts else None
    if front is not None and parts:
        _check_fields(front, folder.name, wrong)
        _check_body(parts["body"], wrong)
    script = folder / "rewrite.py"
    if script.exists():
        found = executable.check(script)
        if front is not None and "recipe" in _mapping(front.get("metadata")):
            wrong(
                "metadata.recipe",
                "beside a rewrite.py",
                "keep one of the two: which would be applied?",
            )
        problems += [
            SkillProblem(path=str(script), field=f, cause=c, remedy=r) for f, c, r in found
        ]
    if problems or front is None or parts is None:
        return None, tuple(problems)
    return _skill(front, parts["body"], folder, source, executable=script.exists()), ()


def _skill(
    front: dict[str, Any], body: str, folder: Path, source: str, *, executable: bool
) -> Skill:
    metadata = front["metadata"]
    return Skill(
        name=front["name"],
        description=front["description"],
        scope=metadata["scope"],
        tags=tuple(metadata["tags"]),
        version=metadata["version"],
        body=body.strip() + "\n",
        path=str(folder),
        executable=executable,
        source=source,
        requires=conditions.requirements(metadata.get("requires")),
        recipe=conditions.recipe(metadata.get("recipe")),
    )


# --- reading -----------------------------------------------------------------------------


def _text(path: Path, wrong: Wrong) -> str | None:
    try:
        raw = foreign.read_bytes(path, most=MAX_BYTES)
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        wrong(
            "file",
            "missing",
            "a skill folder needs a SKILL.md; remove the folder if it is no skill",
        )
    except OSError as error:
        if error.errno == errno.EFBIG:
            wrong(
                "file", str(error.strerror), f"stay under {MAX_BYTES}; move details to other files"
            )
        else:
            wrong(
                "file",
                f"cannot be read: {error.strerror}",
                "make it a regular file that you may read",
            )
    except UnicodeDecodeError as error:
        wrong("file", f"byte {error.start} is not UTF-8", "save the file as UTF-8")
    return None


class _FrontMatterLoader(yaml.SafeLoader):
    """Plain YAML without aliases (eight lines of them can stand for gigabytes) or repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As yaml does. Raises YAMLError for an alias: it can grow without bound."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """As yaml does. Raises YAMLError for a key that is given twice."""
        seen = set[str]()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.YAMLError(f"{key.value!r} is given twice")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


@functools.lru_cache(maxsize=512)  # a library is read anew for each job, and seldom another one
def _yaml(text: str) -> Any:
    return yaml.load(text, _FrontMatterLoader)


def _front_matter(text: str, wrong: Wrong) -> dict[str, Any] | None:
    try:
        front = copy.deepcopy(_yaml(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 2}" if mark else ""
        what = getattr(error, "problem", None) or str(error) or type(error).__name__
        wrong("front matter", f"not YAML{where}: {what}", "quote values that contain `: ` or `#`")
        return None
    if not isinstance(front, dict):
        wrong("front matter", "holds no fields", "write one `key: value` per line")
        return None
    return front


# --- checking ----------------------------------------------------------------------------


def _check_fields(front: dict[str, Any], folder: str, wrong: Wrong) -> None:
    _check_keys(front, KEYS, "", ("name", "description", "metadata"), wrong)
    if "name" in front:
        _check_name(front["name"], folder, wrong)
    if "description" in front:
        _check_description(front["description"], wrong)
    if "license" in front and not isinstance(front["license"], str):
        wrong("license", "no text", "write an SPDX identifier, e.g. Apache-2.0")
    if "metadata" in front:
        _check_metadata(front["metadata"], wrong)


def _check_keys(
    found: dict[str, Any], known: Iterable[str], prefix: str, required: Iterable[str], wrong: Wrong
) -> None:
    for key in islice((key for key in found if key not in known), MAX_UNKNOWN):
        near = difflib.get_close_matches(str(key), known, n=1)
        wrong(f"{prefix}{key}", "unknown field", _remedy_for_unknown(str(key), near, prefix, known))
    for key in required:
        if key not in found:
            wrong(f"{prefix}{key}", "missing", f"add `{key}:` to the front matter")


def _remedy_for_unknown(key: str, near: list[str], prefix: str, known: Iterable[str]) -> str:
    if near:
        return f"did you mean `{prefix}{near[0]}`?"
    if not prefix and key in METADATA_KEYS:
        return f"move it under `metadata:`, as `metadata.{key}`"
    return f"remove it; known fields are {', '.join(known)}"


def _check_name(name: Any, folder: str, wrong: Wrong) -> None:
    if not isinstance(name, str) or not _KEBAB.fullmatch(name) or len(name) > MAX_NAME:
        wrong(
            "name",
            f"{_short(name)} is no kebab-case name",
            f"use a-z, 0-9 and -, up to {MAX_NAME} characters",
        )
    elif name != folder:
        wrong("name", f"{name!r} differs from the folder {folder!r}", "give both the same name")


def _check_description(text: Any, wrong: Wrong) -> None:
    if not isinstance(text, str) or not text.strip():
        wrong("description", "no text", "say in one line what it does and when to use it")
    elif len(text) > MAX_DESCRIPTION:
        wrong("description", f"{len(text)} characters", f"stay within {MAX_DESCRIPTION}")
    elif "\n" in text or "<" in text or ">" in text:
        wrong("description", "has a line break or an angle bracket", "write one plain line")


def _check_metadata(metadata: Any, wrong: Wrong) -> None:
    if not isinstance(metadata, dict):
        wrong("metadata", "holds no fields", "indent scope, tags and version under `metadata:`")
        return
    _check_keys(metadata, METADATA_KEYS, "metadata.", ("scope", "tags", "version"), wrong)
    scope, version = metadata.get("scope", SCOPES[0]), metadata.get("version", 1)
    if scope not in SCOPES:
        wrong("metadata.scope", f"{_short(scope)} is unknown", f"use one of {', '.join(SCOPES)}")
    if type(version) is not int or version < 1:
        wrong(
            "metadata.version",
            f"{_short(version)} is no version",
            "use a whole number from 1 on, without quotes",
        )
    if "tags" in metadata:
        _check_tags(metadata["tags"], wrong)
    sentences = metadata.get("preconditions", [])
    if not isinstance(sentences, list) or not all(isinstance(c, str) for c in sentences):
        wrong("metadata.preconditions", "no list of sentences", "write one `- condition` per line")
    conditions.check(metadata, wrong)


def _mapping(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _check_tags(tags: Any, wrong: Wrong) -> None:
    if not isinstance(tags, list) or not 1 <= len(tags) <= MAX_TAGS:
        wrong(
            "metadata.tags",
            f"no list of 1 to {MAX_TAGS} words",
            "write e.g. `tags: [softmax, row-reduction]`",
        )
        return
    bad = [tag for tag in tags if not isinstance(tag, str) or not _TAG.fullmatch(tag)]
    if bad:
        wrong(
            "metadata.tags",
            f"{_short(bad[0])} is no tag",
            "use a-z, 0-9, - and _, in quotes if YAML objects",
        )
    elif len(set(tags)) != len(tags):
        wrong("metadata.tags", "a tag is given twice", "remove the repetition")


def _check_body(body: str, wrong: Wrong) -> None:
    sections = _sections(body)
    present = [title for title, _ in sections if title in SECTIONS]
    for title in SECTIONS:
        if title not in present:
            near = difflib.get_close_matches(title, [t for t, _ in sections], n=1)
            remedy = (
                f"did you mean it by `## {near[0]}`?" if near else f"add a heading `## {title}`"
            )
            wrong(f"section {title}", "missing", remedy)
        elif present.count(title) > 1:
            wrong(f"section {title}", "given twice", "merge the two")
        elif not dict(sections)[title].strip():
            wrong(
                f"section {title}", "empty", "write it, or the skill cannot be judged by a reader"
            )
    if sorted(present) == sorted(SECTIONS) and present != list(SECTIONS):
        wrong(
            "sections", f"in the order {', '.join(present)}", f"use the order {', '.join(SECTIONS)}"
        )
    example = dict(sections).get("Example", "")
    if example.strip() and not any(_FENCE.match(line) for line in example.splitlines()):
        wrong(
            "section Example", "has no code block", "show the code before and after in ``` fences"
        )


def _sections(body: str) -> list[tuple[str, str]]:
    """(title, text) per heading; a `#` inside a code block is a comment."""
    sections: list[tuple[str, list[str]]] = []
    fenced = False
    for line in body.splitlines(keepends=True):
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _HEADING.match(line)
        if heading and (title := heading["title"].strip().rstrip("#").rstrip()):
            sections.append((title, []))
        elif sections:
            sections[-1][1].append(line)
    return [(title, "".join(lines)) for title, lines in sections]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
