"""The documentation: generated pages are up to date, every link leads somewhere, lines are
short."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

from kernel_lsp import config
from kernel_lsp.errors import ConfigError
from trainer import config as recipes

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
MAP = ROOT / "kernel_lsp" / "ARCHITECTURE.md"
PROSE = [*sorted(DOCS.rglob("*.md")), *TOP, MAP]
RECIPES = ROOT / "trainer" / "recipes"
COLUMNS = 100


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", site]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def prose_lines(page: Path) -> list[str]:
    """Lines outside of code and tables, which Markdown cannot break."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    return [line for line in text.splitlines() if not line.lstrip().startswith(("|", "<!--"))]


def test_the_reference_is_what_the_code_says() -> None:
    pages = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    committed = {page.name: page.read_text() for page in (DOCS / "reference").iterdir()}
    stale = [name for name in {*pages, *committed} if pages.get(name) != committed.get(name)]
    assert not stale, "run: python docs/generate.py"


def test_the_schema_of_settings_takes_what_the_program_takes() -> None:
    schema = json.loads((DOCS / "reference" / "settings.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for table in ({"budget": 4, "disabled-rules": ["KL101"]}, {"budget": 0}, {"devise": "cpu"}):
        _, problems = config.load(None, editor=table, environ={})
        assert validator.is_valid(table) == (problems == []), table


def test_the_schema_of_recipes_takes_what_the_trainer_takes() -> None:
    schema = json.loads((DOCS / "reference" / "recipe.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    found = {path: tomllib.loads(path.read_text()) for path in RECIPES.glob("*.toml")}
    assert all(validator.is_valid(recipe) for recipe in found.values())
    good = found[RECIPES / "cpu-smoke.toml"]
    for changed in ({"seed": 3}, {"seed": -1}, {"sead": 3}, {"optimizer": {"rate": "fast"}}):
        try:
            recipes.read(good | changed, RECIPES / "recipe.toml")
        except ConfigError:
            assert not validator.is_valid(good | changed), changed
        else:
            assert validator.is_valid(good | changed), changed


def test_the_site_builds_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    done = build(ROOT / ".ci" / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "reference" / "commands" / "index.html").exists()


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    page = (
        "# Page\n\n[inside](../gone.md) [outside](../../kernel_lsp/gone.py) "
        "[part](privacy.md#gone)\n"
    )
    (tmp_path / "docs" / "explanation" / "silence.md").write_text(page)
    done = build(tmp_path / ".ci" / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert {"../gone.md", "../../kernel_lsp/gone.py", "#gone"} <= set(
        re.findall(r"[\w./]*gone(?:\.\w+)?|#gone", done.stderr)
    )


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_fit(page: Path) -> None:
    assert [line for line in prose_lines(page) if len(line) > COLUMNS] == []


def test_the_first_page_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) < 120
    assert max(map(len, lines)) <= COLUMNS


EXAMPLES = {
    "kernel_lsp/analysis/rules/kl109_norm_squared.py",
    "kernel_lsp/analysis/rules/docs/KL109-norm-squared.md",
    "tests/cases/KL109_norm_squared.py",
    "skills/double-negation/",
    "kernel_lsp/rewrite/codegen/distance.py",
    "skills/pairwise-distance/rewrite.py",
}
"""Files that CONTRIBUTING.md has a reader write."""


def named_paths(page: Path) -> set[str]:
    """Files and folders that a page names in code or links; `*` stands for several."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    linked = re.findall(r"\]\(([^)#:]+)\)", text)
    quoted = re.findall(r"`([\w.*-]+/[\w./*-]*)`", text)
    return {*linked, *quoted} - EXAMPLES


def there(page: Path, name: str) -> bool:
    """A path stands beside the page, in the package or in the repository."""
    places = (page.parent, ROOT / "kernel_lsp", ROOT)
    return any(list(place.glob(name.rstrip("/"))) for place in places if name.strip("./"))


@pytest.mark.parametrize("page", [MAP, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_the_map_names_what_is_there(page: Path) -> None:
    names = named_paths(page)
    assert len(names) > 5
    assert sorted(name for name in names if not there(page, name)) == []


def test_the_map_has_every_package() -> None:
    text = MAP.read_text()
    packages = [path.parent.name for path in MAP.parent.glob("*/__init__.py")]
    assert [name for name in packages if f"({name})" not in text] == []


def test_every_feature_that_is_ours_names_a_test_and_what_is_not_has_a_reason() -> None:
    page = (DOCS / "explanation" / "features.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) > 25 and all(len(row) == len(rows[0]) for row in rows)
    assert rows[0][1].strip() == "kernel-lsp"
    for name, ours, *_ in rows[1:]:
        tests = re.findall(r"`(tests/[\w/]+\.py)`", ours)
        assert tests or "(#reasons)" in ours, name
        assert all((ROOT / test).is_file() for test in tests), tests
