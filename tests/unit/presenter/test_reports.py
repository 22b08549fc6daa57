"""Findings as text, JSON and SARIF: places count from 1, and SARIF has what its 2.1.0 schema
requires."""

import json
import os
from pathlib import Path

import jsonschema

from kernel_lsp.analysis import analyze
from kernel_lsp.presenter.reports import (
    findings_json,
    findings_sarif,
    findings_text,
    sarif_uri,
)
from kernel_lsp.records import Analysis, ParseProblem, Snapshot

TEXT = "import torch\nµ = '🚀'\ndef f(a: torch.Tensor):\n    s = '🚀'; return torch.diag(a) @ a\n"
FOUND = analyze(Snapshot(uri="u", text=TEXT))
BROKEN = Analysis(problem=ParseProblem(line=3, column=5, message="invalid syntax"))
RESULTS = [
    (Path("src/a b.py"), FOUND),
    (Path("/abs/broken.py"), BROKEN),
    (Path("empty.py"), Analysis()),
]

# The parts of the SARIF 2.1.0 schema that are required or restricted, for what is written here.
PLACE = {"type": "integer", "minimum": 1}
LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "required": ["artifactLocation", "region"],
            "properties": {
                "artifactLocation": {
                    "required": ["uri"],
                    "properties": {"uri": {"type": "string", "pattern": "^[^ ]+$"}},
                },
                "region": {
                    "required": ["startLine"],
                    "properties": dict.fromkeys(
                        ("startLine", "startColumn", "endLine", "endColumn"), PLACE
                    ),
                },
            },
        }
    },
}
MESSAGE = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "minLength": 1}},
}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
NOTICE = {
    "type": "object",
    "required": ["message"],
    "properties": {"message": MESSAGE, "level": LEVEL, "locations": {"items": LOCATION}},
}
RUN = {
    "type": "object",
    "required": ["tool", "results"],
    "properties": {
        "tool": {
            "required": ["driver"],
            "properties": {
                "driver": {
                    "required": ["name"],
                    "properties": {
                        "rules": {
                            "type": "array",
                            "uniqueItems": True,
                            "items": {"required": ["id"]},
                        }
                    },
                }
            },
        },
        "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        "invocations": {
            "items": {
                "required": ["executionSuccessful"],
                "properties": {"toolExecutionNotifications": {"items": NOTICE}},
            }
        },
        "results": {
            "type": "array",
            "items": {**NOTICE, "required": ["message", "ruleId", "locations"]},
        },
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {"version": {"const": "2.1.0"}, "runs": {"type": "array", "items": RUN}},
}


def test_text_has_one_line_per_finding_and_a_summary() -> None:
    lines = findings_text(RESULTS).splitlines()
    assert lines[0].startswith("src/a b.py:4:21: KL105 hint: ") and lines[0].endswith(
        "(diag-matmul)"
    )
    assert lines[1] == "/abs/broken.py:3:5: invalid syntax"
    assert lines[2] == "1 finding in 3 files, KL105 1, 1 could not be checked"


def test_the_name_of_a_file_begins_no_line_of_its_own() -> None:
    """The runner of a CI takes a line that begins with `::` as an order."""
    text = findings_text([("a\n::stop-commands::x.py", FOUND), ("b\r::error::y", BROKEN)])
    assert len(text.splitlines()) == 3 and "\n::" not in text


def test_text_without_findings_says_so() -> None:
    assert findings_text([]) == "0 findings in 0 files\n"


def test_json_is_one_versioned_object() -> None:
    report = json.loads(findings_json(RESULTS))
    assert report["schema_version"] == 1
    found, broken, empty = report["files"]
    assert found["targets"] == [{"name": "f", "kind": "function"}]
    (finding,) = found["findings"]
    place = ("line", "column", "end_line", "end_column")
    assert [finding[key] for key in place] == [4, 21, 4, 38]
    assert (finding["rule"], finding["target"], finding["severity"]) == ("KL105", "f", "hint")
    assert broken["problem"] == {"line": 3, "column": 5, "message": "invalid syntax"}
    assert empty == {
        "path": "empty.py",
        "problem": None,
        "failures": [],
        "targets": [],
        "findings": [],
    }


def test_sarif_keeps_to_the_schema_and_points_at_the_place() -> None:
    log = json.loads(findings_sarif(RESULTS))
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "KL105"
    where = result["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "src/a%20b.py"
    assert where["region"] == {"startLine": 4, "startColumn": 21, "endLine": 4, "endColumn": 38}
    assert result["level"] == "note"
    (notice,) = run["invocations"][0]["toolExecutionNotifications"]
    assert (
        notice["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        == "file:///abs/broken.py"
    )


def test_sarif_of_nothing_keeps_to_the_schema() -> None:
    jsonschema.validate(json.loads(findings_sarif([])), SARIF)


def test_the_page_that_a_rule_points_to_exists() -> None:
    (rule,) = json.loads(findings_sarif(RESULTS))["runs"][0]["tool"]["driver"]["rules"]
    page = rule["helpUri"].split("/blob/main/")[1]
    assert (Path(__file__).parents[3] / page).is_file()


def test_a_name_that_is_no_utf_8_has_a_uri() -> None:
    assert sarif_uri(Path(os.fsdecode(b"a\xff.py"))) == "a%FF.py"
