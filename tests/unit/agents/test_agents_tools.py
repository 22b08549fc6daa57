"""The tools' schemas: what they permit, how long that can be, and the dialect that grammars
keep."""

import json
from typing import Any

import jsonschema
import pytest
from agents_helpers import OF, SITES, SKILLS, TOOLS, instances
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lsp.agents import tools
from kernel_lsp.records import Json, Site

relaxed = settings(deadline=None)  # the machine is shared
BOUNDED = tuple(
    tool for tool in TOOLS if tool.name in ("select_skills", "read_skill", "apply_skill")
)
scalars = st.none() | st.booleans() | st.integers() | st.text(min_size=1, max_size=9)
sites = st.builds(
    Site,
    skill=st.sampled_from(SKILLS),
    site=st.text(min_size=1, max_size=20),
    summary=st.just(""),
    proofs=st.just(()),
    parameters=st.dictionaries(
        st.text(min_size=1, max_size=9), st.lists(scalars, min_size=1, max_size=4)
    ),
)


@relaxed
@given(st.data())
def test_an_instance_of_the_envelope_is_valid_and_no_longer_than_was_said(
    data: st.DataObject,
) -> None:
    schema = tools.envelope(
        data.draw(st.lists(st.sampled_from(BOUNDED), min_size=1, unique_by=lambda tool: tool.name))
    )
    value = data.draw(instances(schema))
    jsonschema.validate(value, schema)
    longest = tools.longest_chars(schema)
    assert longest is not None and len(json.dumps(value)) <= longest


@relaxed
@given(st.lists(sites, min_size=1, max_size=5), st.data())
def test_the_length_holds_for_any_sites(made: list[Site], data: st.DataObject) -> None:
    schema = tools.apply_skill(made).parameters
    longest = tools.longest_chars(schema)
    assert longest is not None and len(json.dumps(data.draw(instances(schema)))) <= longest


def test_the_longest_text_by_hand() -> None:
    assert tools.longest_chars(tools.read_skill(["ab", "abcd"]).parameters) == len(
        '{"name": "abcd"}'
    )
    assert tools.longest_chars({"type": "boolean"}) == len("false")
    assert tools.longest_chars({"type": "integer", "minimum": -10, "maximum": 5}) == len("-10")
    assert tools.longest_chars({"type": "integer"}) is None
    item = {"enum": ["abc"]}
    assert tools.longest_chars({"type": "array", "items": item, "maxItems": 2}) == len(
        '["abc", "abc"]'
    )
    assert tools.longest_chars({"type": "array", "items": item}) is None
    one_reason = len('{"name": "fused-pointwise", "reason": ""}') + tools.TEXT_LIMIT
    whole = len('{"think": "", "selected_skills": [, , ]}') + tools.TEXT_LIMIT + 3 * one_reason
    assert tools.longest_chars(OF["select_skills"].parameters) == whole


@pytest.mark.parametrize("name", ["write_rewrite", "update_skill_library"])
def test_source_text_has_no_longest(name: str) -> None:
    assert tools.longest_chars(OF[name].parameters) is None
    assert tools.longest_chars(tools.envelope([OF[name], OF["read_skill"]])) is None


def test_what_changes_the_result_is_not_offered() -> None:
    (branch,) = (
        b
        for b in OF["apply_skill"].parameters["anyOf"]
        if b["properties"]["site"]["const"] == "add+gelu"
    )
    assert branch["properties"]["parameters"]["properties"]["nonfinite"] == {"enum": ["keep"]}


def test_an_empty_choice_of_skills_is_valid() -> None:
    jsonschema.validate({"think": "", "selected_skills": []}, OF["select_skills"].parameters)
    jsonschema.validate({"think": "", "new_skills": []}, OF["update_skill_library"].parameters)


KEPT = {"type", "properties", "required", "additionalProperties", "enum", "const", "anyOf", "items"}
KEPT |= {"minItems", "maxItems", "pattern"}


@pytest.mark.parametrize("schema", [*(tool.parameters for tool in TOOLS), tools.envelope(TOOLS)])
def test_the_dialect_is_what_grammars_keep(schema: Json) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    for one in _schemas(schema):
        assert set(one) <= KEPT
        if one.get("type") == "object" and "properties" in one:
            assert (
                one["required"] == list(one["properties"]) and one["additionalProperties"] is False
            )
        if "pattern" in one:  # a repeat of 129 is HTTP 500 in vLLM 0.32
            assert int(one["pattern"].rpartition(",")[2].rstrip("}$")) <= 128


def test_a_flat_schema_permits_whatever_the_full_one_does() -> None:
    flat = tools.flat(OF["apply_skill"])
    assert "anyOf" not in flat and flat["properties"]["skill"]["enum"] == [
        "fused-pointwise",
        "diagonal-matmul",
    ]
    jsonschema.validate(
        {"skill": "diagonal-matmul", "site": "diag+matmul", "parameters": {"exact": True}}, flat
    )
    assert tools.flat(OF["read_skill"]) == OF["read_skill"].parameters


def test_in_words_every_choice_is_named() -> None:
    text = tools.in_words(TOOLS)
    assert (
        '{"skill": "fused-pointwise", "site": "add+gelu", "parameters": {"BLOCK": 1024 | 512 '
        "| 2048, " in text
    )
    assert all(tool.name in text for tool in TOOLS) and '"nonfinite": "keep"}' in text
    assert all(site.site in text for site in SITES)


def _schemas(schema: Any) -> list[Json]:
    inner = (
        [schema]
        if isinstance(schema, dict) and set(schema) & {"type", "enum", "const", "anyOf"}
        else []
    )
    if not inner:
        return []
    for branch in (
        *schema.get("anyOf", ()),
        *schema.get("properties", {}).values(),
        schema.get("items"),
    ):
        inner += _schemas(branch)
    return inner
