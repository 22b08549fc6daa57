"""Calls and replies for tests of the agents: every form in which a call can be written, and random
ones."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from kernel_lsp.agents import tools
from kernel_lsp.records import CallForm, Finish, Json, Reply, Site, ToolCall, ToolSchema

SITES = (
    Site(
        skill="fused-pointwise",
        site="add+gelu",
        summary="fuse add and gelu into one kernel",
        proofs=(),
        parameters={"BLOCK": [1024, 512, 2048], "warps": [4, 8], "nonfinite": ["keep", "ignore"]},
        benefit=0.6,
        plain=False,
    ),
    Site(
        skill="fused-pointwise",
        site="mul+tanh",
        summary="fuse mul and tanh",
        proofs=(),
        benefit=0.2,
    ),
    Site(
        skill="diagonal-matmul",
        site="diag+matmul",
        summary="scale rows",
        proofs=(),
        parameters={"exact": [True, False], "shape": [[64, 64], [128, 32]], "mode": [None, "fast"]},
    ),
)
SKILLS = ("fused-pointwise", "diagonal-matmul", "cuda-graph")
TOOLS = (
    tools.select_skills(SKILLS),
    tools.read_skill(SKILLS),
    tools.apply_skill(SITES),
    tools.write_rewrite(10_000),
    tools.update_skill_library(),
)
OF = {tool.name: tool for tool in TOOLS}


def reply(text: str = "", *calls: ToolCall, finish: Finish = Finish.STOP) -> Reply:
    return Reply(text=text, calls=calls, finish=finish, latency_s=0.0, model="m")


def call(name: str, form: CallForm = CallForm.NATIVE, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, form=form)


def written(name: str, arguments: Json, form: CallForm) -> Reply:
    """A reply that makes this call in this form."""
    envelope = json.dumps({"name": name, "arguments": arguments})
    match form:
        case CallForm.NATIVE:
            return reply("", ToolCall(name=name, arguments=arguments, id="call_1"))
        case CallForm.ENVELOPE:
            return reply(envelope)
        case CallForm.TAGGED:
            return reply(f"Let me see.\n<tool_call>\n{envelope}\n</tool_call>")
        case CallForm.FENCED:
            return reply(f"I do this:\n```json\n{envelope}\n```\n")
        case CallForm.CODE:
            return reply(f"Here it is:\n~~~~~python\n{arguments['code']}\n~~~~~\nDone.")


def xml(name: str, arguments: Json) -> Reply:
    """Qwen's XML, in which text stands as it is and everything else as JSON."""
    parts = [
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>"
        for key, value in arguments.items()
    ]
    return reply(
        "\n".join(["<tool_call>", f"<function={name}>", *parts, "</function>", "</tool_call>"])
    )


def instances(schema: Json) -> st.SearchStrategy[Any]:
    """Everything that a schema of our dialect permits."""
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return st.one_of([instances(branch) for branch in schema["anyOf"]])
    if schema["type"] == "object":
        return st.fixed_dictionaries(
            {key: instances(value) for key, value in schema["properties"].items()}
        )
    if schema["type"] == "array":
        low, high = schema.get("minItems", 0), schema["maxItems"]
        return st.lists(instances(schema["items"]), min_size=low, max_size=high)
    if "pattern" in schema:
        return st.from_regex(schema["pattern"].replace("$", r"\Z"), fullmatch=True)
    return st.text(st.characters(codec="utf-8"), min_size=1)


def calls(of: tuple[ToolSchema, ...] = TOOLS) -> st.SearchStrategy[tuple[str, Json]]:
    """(name, arguments), valid."""
    return st.one_of([st.tuples(st.just(tool.name), instances(tool.parameters)) for tool in of])
