"""Writes docs/reference/ from the code: python docs/generate.py

Commands come from typer, settings from kernel_lsp/config.py, rules from kernel_lsp/analysis/rules,
skills from skills/*/SKILL.md, commands of the server from kernel_lsp/server/commands.py. Nothing in
docs/reference/ is edited by hand; tests/unit/test_docs_site.py says when it is out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import typer
from pydantic import TypeAdapter

from kernel_lsp import config, skillbook
from kernel_lsp.analysis.rules import RULES, SCRIPT_RULES, Rule, ScriptRule
from kernel_lsp.commands.app import PLACES as COMMANDS
from kernel_lsp.commands.app import application
from kernel_lsp.records import Skill
from kernel_lsp.server.commands import COMMANDS as SERVER_COMMANDS
from trainer.config import Recipe

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
WIDTH = 100
GENERATED = "<!-- Written by docs/generate.py from the code. Do not edit. -->"
SCOPES = {
    "graph": "PyTorch programs",
    "triton": "Triton kernels of your own",
    "advice": "Advice for language models (words only)",
}


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)
        print(f"docs/reference/{name} is written")


def pages() -> dict[str, str]:
    """The text of every page of docs/reference/, by file name."""
    return {
        "commands.md": "\n".join(command_lines()),
        "settings.md": "\n".join(setting_lines()),
        "rules.md": "\n".join(rule_lines()),
        "skills.md": "\n".join(skill_lines()),
        "server.md": "\n".join(server_lines()),
        "settings.schema.json": json.dumps(settings_schema(), indent=2) + "\n",
        "recipe.schema.json": json.dumps(recipe_schema(), indent=2) + "\n",
    }


def wrap(text: str, lead: str = "") -> list[str]:
    """`text` as one paragraph, or one item of a list, of lines that fit, the first after `lead`."""
    return textwrap.wrap(
        " ".join(text.split()),
        WIDTH,
        initial_indent=lead,
        subsequent_indent="  " if (lead + text).startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


def paragraphs(text: str) -> Iterator[str]:
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text).strip()):
        yield from [*wrap(escape(part)), ""]


def escape(text: str) -> str:
    """Keeps what looks like HTML outside of code as it is written."""
    parts = re.split(r"(`+[^`]*`+)", text)
    return "".join(p if p.startswith("`") else p.replace("<", "&lt;") for p in parts)


# commands


def command_lines() -> Iterator[str]:
    yield from ["# Commands", "", GENERATED, ""]
    yield from wrap(
        "`kernel-lsp COMMAND --help` says the same in a terminal. Every command takes "
        "`--help`; where "
        "`--json` is listed, standard output is one JSON document and everything else is on "
        "standard error."
    )
    yield ""
    group: Any = typer.main.get_command(application(COMMANDS))
    for name, command in group.commands.items():
        yield from one_command(f"kernel-lsp {name}", command, "##")


def one_command(path: str, command: Any, heading: str) -> Iterator[str]:
    yield from [f"{heading} `{path}`", ""]
    if subcommands := getattr(command, "commands", None):
        yield from paragraphs(command.help or "")
        for name, sub in subcommands.items():
            yield from one_command(f"{path} {name}", sub, heading + "#")
        return
    arguments = [p for p in command.params if not option(p)]
    options = [p for p in command.params if option(p) and not getattr(p, "hidden", False)]
    usage = [path, *map(argument_word, arguments), *(["[OPTIONS]"] if options else [])]
    yield from ["```text", *textwrap.wrap(" ".join(usage), WIDTH), "```", ""]
    yield from paragraphs(command.help or "")
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    listed = [
        line
        for p in [*arguments, *options]
        for line in parameter_lines(p, hints.get(p.name, str))
        if p.name != "help"
    ]
    yield from [*listed, ""] if listed else []


def option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def argument_word(parameter: Any) -> str:
    word = parameter.metavar or parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return word if parameter.required or word.startswith(("[", "{")) else f"[{word}]"


def parameter_lines(parameter: Any, hint: Any) -> list[str]:
    if not option(parameter):
        return wrap(escape(parameter.help or ""), f"- `{argument_word(parameter)}`: ")
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    word, default = value_word(hint, parameter.metavar), plain_value(parameter.default)
    shown = (
        "" if default in (None, False, "", []) or callable(default) else f" Default: `{default}`."
    )
    text = sentence(escape(parameter.help or "")) + shown
    return wrap(text, f"- `{names}{' ' + word if word else ''}`: ")


def sentence(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?", ")")) else text + "."


def plain_value(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain_value(v) for v in value]
    return value


def value_word(hint: Any, metavar: str | None = None) -> str:
    """What stands for a value of that type: choices, N, TEXT; nothing for a switch."""
    hint = without_none(hint)
    if hint is bool:
        return ""
    if metavar:
        return metavar
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "|".join(str(one.value) for one in hint)
    if typing.get_origin(hint) in (list, tuple):
        return value_word(typing.get_args(hint)[0])
    return {int: "N", float: "X", Path: "PATH"}.get(hint, "TEXT")


def without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return next(one for one in typing.get_args(hint) if one is not NoneType)
    return hint


# settings


def setting_lines() -> Iterator[str]:
    yield from ["# Settings", "", GENERATED, ""]
    yield from wrap(
        "Later wins: defaults, `[tool.kernel-lsp]` of the folder's `pyproject.toml`, the "
        "environment "
        "(`KERNEL_LSP_` and the name in capitals), the editor (under `kernel-lsp`), flags of a "
        "command. "
        "In TOML and in editors dashes may stand for underscores. A value that cannot be used is "
        "reported, and the next lower source counts. Settings marked *not from a project* are "
        "ignored in "
        "`pyproject.toml`: a repository that you cloned may not decide them for you. "
        "[A JSON schema](settings.schema.json) has all of them."
    )
    yield ""
    described = attribute_docs(config)
    hints = typing.get_type_hints(config.Settings)
    for one in dataclasses.fields(config.Settings):
        yield from [f"## `{one.name}`", "", *wrap(limits_of(one, hints[one.name])), ""]
        yield from paragraphs(described[one.name])


def limits_of(one: dataclasses.Field[Any], hint: Any) -> str:
    default = "the user's data folder" if one.name == "data_dir" else written(one.default)
    parts = [f"Default: {default}"]
    if choices := one.metadata.get("choices"):
        parts.append("one of " + ", ".join(f"`{choice}`" for choice in choices))
    elif "low" in one.metadata:
        parts.append(f"from {one.metadata['low']:g} to {one.metadata['high']:g}")
    elif words := one.metadata.get("table_of"):
        values = "lists of rules" if words == "lists" else ", ".join(f"`{word}`" for word in words)
        parts.append(f"a table whose values are {values}")
    elif typing.get_origin(hint) is tuple:
        parts.append("a list of words")
    if one.name in config.NOT_FROM_PROJECT:
        parts.append("*not from a project*")
    return "; ".join(parts) + "."


def written(default: Any) -> str:
    if default is None:
        return "unset"
    if default == ():
        return "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def settings_schema() -> dict[str, Any]:
    """`[tool.kernel-lsp]`, or the settings of an editor, as a JSON schema."""
    described = attribute_docs(config)
    hints = typing.get_type_hints(config.Settings)
    properties = {}
    for one in dataclasses.fields(config.Settings):
        text = " ".join(described[one.name].split())
        properties[one.name] = {"description": text, **value_schema(one, hints[one.name])}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of kernel-lsp",
        "type": "object",
        "additionalProperties": False,
        "properties": properties
        | {n.replace("_", "-"): p for n, p in properties.items() if "_" in n},
    }


def recipe_schema() -> dict[str, Any]:
    """A recipe of `kernel-lsp train` as a JSON schema; keys that a recipe's file does not have are
    left out."""
    schema = TypeAdapter(Recipe).json_schema()
    del schema["properties"]["folder"]
    schema["required"].remove("name")  # the file's own, where it says none
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "A recipe of kernel-lsp train",
    }


def value_schema(one: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    if choices := one.metadata.get("choices"):
        return {"enum": list(choices)}
    hint = without_none(hint)
    if words := one.metadata.get("table_of"):
        texts = {"type": "array", "items": {"type": "string"}}
        return {
            "type": "object",
            "additionalProperties": texts if words == "lists" else {"enum": [*words]},
        }
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": {"type": "string"}}
    name = {bool: "boolean", int: "integer", float: "number"}.get(hint, "string")
    limits = {"low": "minimum", "high": "maximum"}
    return {"type": name} | {
        limits[key]: one.metadata[key] for key in limits if key in one.metadata
    }


def attribute_docs(module: Any) -> dict[str, str]:
    """The string below each field of `Settings`, which Python itself does not keep."""
    tree = ast.parse(inspect.getsource(module))
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Settings")
    found = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = ast.literal_eval(text.value)
    return found


# rules and skills


def rule_lines() -> Iterator[str]:
    yield from ["# Rules", "", GENERATED, ""]
    yield from wrap(
        "Static findings: they come from the text of a file alone, nothing runs, and they are no "
        "claims "
        "of speed. `warning` and `error` mean that results can be wrong or that a kernel does not "
        "compile. A comment `# kernel-lsp: ignore[KL101]` silences a rule for its line, below "
        "it for a "
        "target, and before the first statement for a file; [settings](../how-to/check.md) do so "
        "everywhere or by file."
    )
    rules: list[Rule | ScriptRule] = sorted([*RULES, *SCRIPT_RULES], key=lambda rule: rule.id)
    for digit, title in (
        ("1", "PyTorch modules"),
        ("2", "Triton kernels"),
        ("3", "Training scripts"),
    ):
        yield from ["", f"## {title}", ""]
        for rule in rules:
            if rule.id[2] == digit:
                name = f"- [{rule.id} {rule.name}][{rule.id}] ({rule.severity}): "
                yield from wrap(name + sentence(escape(rule.summary)), "")
    yield ""
    for rule in rules:
        yield f"[{rule.id}]: ../../kernel_lsp/analysis/rules/docs/{rule.id}-{rule.name}.md"
    yield ""


def skill_lines() -> Iterator[str]:
    skills = skillbook.load([ROOT / "skills"]).skills
    yield from ["# Skills", "", GENERATED, ""]
    yield from wrap(
        f"The {len(skills)} built-in skills: named techniques that the engine applies where their "
        "preconditions are proved. `kernel-lsp skills list` shows these and what was learned here; "
        "[writing one](../how-to/writing-skills.md) takes a folder with two files."
    )
    for scope, title in SCOPES.items():
        chosen = sorted((s for s in skills if s.scope == scope), key=lambda skill: skill.name)
        if chosen:
            yield from ["", f"## {title}", ""]
        for skill in chosen:
            yield from skill_entry(skill)
    yield ""


def skill_entry(skill: Skill) -> Iterator[str]:
    link = f"[{skill.name}](../../skills/{skill.name}/SKILL.md)"
    yield from wrap(sentence(escape(skill.description)), f"- {link}: ")


# the server


def server_lines() -> Iterator[str]:
    yield from ["# Commands of the server", "", GENERATED, ""]
    yield from wrap(
        "For key bindings and scripts: `workspace/executeCommand` with one object as its argument. "
        "Each answers at once; what takes time runs as a job that the editor shows and can cancel."
    )
    yield ""
    for name, handler in SERVER_COMMANDS.items():
        yield from [f"## `kernel-lsp.{name}`", ""]
        yield from paragraphs(handler.__doc__ or "")


if __name__ == "__main__":
    main()
