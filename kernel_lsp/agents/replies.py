"""What a reply asks for: at most one action, valid against the schema of its tool, and what was
wrong.

Calls are read from where finding.py finds them. The kind of the first valid one counts. Several
apply_skill calls are a chain; of other repetitions the last counts, since a model that repeats
itself corrects itself. Never raises, linear in the reply. One that was cut at its limit says that
and no more: half a call is none. Not covered: what a call does, and whether its code compiles
(pipeline/writing.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kernel_lsp.agents import blocks, finding, repairs
from kernel_lsp.agents.finding import FoundCall
from kernel_lsp.agents.notes import MISSING, Notes, list_choices, short
from kernel_lsp.agents.plan import MAX_CHAIN
from kernel_lsp.agents.tools import APPLY, WRITE, names
from kernel_lsp.agents.wording import restore_text
from kernel_lsp.records import Finish, Json, Parsed, Reply, ToolCall, ToolSchema


def parse(reply: Reply, tools: Sequence[ToolSchema]) -> Parsed:
    """The calls of a reply and its problems; there is always at least one of the two.

    Problems beside a call were mended or left out: the call is valid all the same.
    """
    note = Notes()
    if reply.finish is Finish.LENGTH:
        note("reply", "was cut at the limit of tokens", "answer shorter: one call, little thinking")
        return Parsed(problems=tuple(note.problems))
    fitted = [_fit_call(found, tools, note) for found in finding.find(reply, tools, note)]
    chosen = _settle_action([call for call in fitted if call is not None], note)
    if not chosen and not note.problems:
        cause = "calls no tool" if reply.text.strip() else "is empty"
        note("reply", cause, f"call one of {names(tools)}")
    return Parsed(calls=chosen, problems=tuple(note.problems))


def _fit_call(found: FoundCall, tools: Sequence[ToolSchema], note: Notes) -> ToolCall | None:
    tool = _tool(found.name, tools, note)
    if tool is None:
        return None
    arguments: Any = found.arguments
    schema: Json | None = tool.parameters
    if tool.name == APPLY:
        arguments, schema = _complete_arguments(arguments, tool.parameters, note)
    if tool.name == WRITE:
        arguments = _code(arguments, note)
    if schema is None:
        return None
    fitted = repairs.fit(arguments, schema, tool.name, note)
    if fitted is MISSING:
        return None
    return ToolCall(name=tool.name, arguments=fitted, id=found.id, form=found.form)


def _tool(name: Any, tools: Sequence[ToolSchema], note: Notes) -> ToolSchema | None:
    wrong = Notes()
    chosen = repairs.fit(name, {"enum": [tool.name for tool in tools]}, "tool", wrong)
    note.take(wrong)
    return next((tool for tool in tools if tool.name == chosen), None)


def _complete_arguments(arguments: Any, schema: Json, note: Notes) -> tuple[Any, Json | None]:
    """apply_skill with the defaults of what it leaves out, and the schema of its skill and site."""
    branches = schema.get("anyOf", [schema])
    arguments = _with_only_site(repairs.unpack_json(arguments, dict, APPLY, note), branches, note)
    branch = repairs.branch_of(arguments, branches, APPLY, note)
    if branch is None:
        return arguments, None
    where, choices = f"{APPLY}.parameters", branch["properties"]["parameters"]["properties"]
    given = repairs.unpack_json(arguments.get("parameters") or {}, dict, where, note)
    if not isinstance(given, dict):
        return arguments, branch
    given = repairs.rename_keys(given, choices, where, note)
    if left_out := [key for key in choices if key not in given]:
        note(where, f"leaves out {list_choices(left_out)}", "their defaults were taken")
    defaults = {key: of_key["enum"][0] for key, of_key in choices.items()}
    return {**arguments, "parameters": {**defaults, **given}}, branch


def _with_only_site(arguments: Any, branches: Sequence[Json], note: Notes) -> Any:
    """With the site that was left out, where its skill has one alone."""
    if not isinstance(arguments, dict) or "site" in arguments:
        return arguments
    of_skill = [
        b["properties"]
        for b in branches
        if b["properties"]["skill"]["const"] == arguments.get("skill")
    ]
    if len(of_skill) != 1:
        return arguments
    only = of_skill[0]["site"]["const"]
    note(f"{APPLY}.site", f"is missing and was read as {short(only)}", "name the site")
    return {**arguments, "site": only}


def _code(arguments: Any, note: Notes) -> Any:
    """Without a fence around it, and with what the prompt had to break (wording.py) whole again."""
    code = arguments.get("code") if isinstance(arguments, dict) else None
    if not isinstance(code, str):
        return arguments
    fences = code.lstrip().startswith(("```", "~~~")) and [
        block for block in blocks.blocks(code) if block.kind is blocks.BlockKind.FENCE
    ]
    if fences:
        note(
            f"{WRITE}.code", "stands in a code block", "was read all the same; send the code alone"
        )
        code = fences[0].text
    return {**arguments, "code": restore_text(code)}


def _settle_action(calls: Sequence[ToolCall], note: Notes) -> tuple[ToolCall, ...]:
    """The action that counts, see above."""
    if not calls:
        return ()
    first = calls[0].name
    same = [call for call in calls if call.name == first]
    if others := sorted({call.name for call in calls} - {first}):
        note(
            "reply",
            f"asks for {first} and {list_choices(others)}",
            f"only {first} counts; make one call",
        )
    if first != APPLY:
        if len(same) > 1:
            note("reply", f"calls {first} {len(same)} times", "the last one counts; make one call")
        return (same[-1],)
    chain = list(_distinct(same))
    if len(chain) < len(same):
        note("reply", "applies the same skill at the same site twice", "the last one counts")
    if len(chain) > MAX_CHAIN:
        note("reply", f"chains {len(chain)} skills", f"the first {MAX_CHAIN} count")
    return tuple(chain[:MAX_CHAIN])


def _distinct(calls: Sequence[ToolCall]) -> Iterator[ToolCall]:
    """One call per skill and site: where it first stood, with the parameters of the last."""
    last = {(call.arguments["skill"], call.arguments["site"]): call for call in calls}
    return iter(last.values())
