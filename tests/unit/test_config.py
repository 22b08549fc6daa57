"""Settings: order of sources, and values that cannot be used."""

import dataclasses
from pathlib import Path

from kernel_lsp import wire
from kernel_lsp.config import Settings, load


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(f"[tool.kernel-lsp]\n{text}\n")
    return folder


def test_later_sources_win(tmp_path: Path) -> None:
    folder = project(
        tmp_path, 'budget = 1\nthreshold = 1.1\nmax_hints_per_file = 3\ndevice = "cpu"'
    )
    settings, problems = load(
        folder,
        environ={
            "KERNEL_LSP_THRESHOLD": "1.2",
            "KERNEL_LSP_MAX_HINTS_PER_FILE": "4",
            "KERNEL_LSP_DEVICE": "auto",
        },
        editor={"max_hints_per_file": 5, "device": "cuda"},
        flags={"device": "cpu"},
    )
    assert problems == []
    found = (settings.budget, settings.threshold, settings.max_hints_per_file, settings.device)
    assert found == (1, 1.2, 5, "cpu")


def test_a_bad_value_is_reported_and_the_lower_source_counts(tmp_path: Path) -> None:
    folder = project(tmp_path, "budget = 3")
    settings, problems = load(folder, environ={}, editor={"budget": "many"})
    assert settings.budget == 3
    assert [str(p) for p in problems] == [
        "editor settings: budget = 'many' cannot be used (allowed: a whole number; 3 is used)"
    ]


def test_choices_and_limits_are_named() -> None:
    settings, problems = load(None, environ={}, flags={"device": "tpu", "threshold": 0.5})
    assert settings == dataclasses.replace(Settings(), device="auto", threshold=1.05)
    assert "allowed: auto, cuda, cpu" in str(problems[0])
    assert "allowed: 1.0 to 100.0" in str(problems[1])


def test_an_unknown_setting_lists_the_known_ones() -> None:
    _, problems = load(None, environ={}, editor={"colour": 1})
    assert "unknown setting 'colour'" in str(problems[0])
    assert "code_lens" in str(problems[0])


def test_a_project_may_not_grant_itself_consent(tmp_path: Path) -> None:
    settings, problems = load(project(tmp_path, 'consent = "always"'), environ={})
    assert settings.consent == "ask"
    assert "may not decide" in str(problems[0])


def test_a_broken_project_file_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kernel-lsp\n")
    settings, problems = load(tmp_path, environ={})
    assert settings == Settings()
    assert len(problems) == 1


def test_a_project_file_that_is_not_text_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe\x00")
    assert len(load(tmp_path, environ={})[1]) == 1


def test_switches_of_our_own_processes_are_no_settings() -> None:
    assert load(None, environ={"KERNEL_LSP_NO_BWRAP": "1", "KERNEL_LSP_HOST": "x"})[1] == []


def test_words_for_booleans_and_lists() -> None:
    environ = {
        "KERNEL_LSP_HOVER": "off",
        "KERNEL_LSP_KEEP_SOURCE": "Yes",
        "KERNEL_LSP_SKILL_FOLDERS": "a:b",
    }
    settings, problems = load(None, environ=environ)
    assert problems == []
    assert (settings.hover, settings.keep_source, settings.skill_folders) == (
        False,
        True,
        ("a", "b"),
    )


def test_settings_survive_the_wire() -> None:
    settings = Settings(python="/x", skill_folders=("a",), data_dir="/d")
    assert wire.from_json(Settings, wire.to_json(settings)) == settings


def test_how_a_gpu_is_shared_is_its_users_to_say(tmp_path: Path) -> None:
    text = (
        'gpu_when_busy = "ignore"\ngpu_minutes_per_hour = 60\ngpu_memory_mb = 1000\ngpu_wait_s = 1'
    )
    settings, problems = load(project(tmp_path, text), environ={"KERNEL_LSP_GPU_MEMORY_MB": "2048"})
    assert len(problems) == 4 and all("may not decide" in str(problem) for problem in problems)
    assert (settings.gpu_when_busy, settings.gpu_minutes_per_hour) == ("wait", 20.0)
    assert settings.gpu_memory_mb == 2048 and Settings().gpu_memory_mb is None
    _, problems = load(
        None, environ={}, editor={"gpu_minutes_per_hour": 61, "gpu-memory-mb": "much"}
    )
    assert "allowed: 0.0 to 60.0; 20.0 is used" in str(problems[0])
    assert "allowed: a whole number; None is used" in str(problems[1])


def test_a_project_names_no_skills_and_no_limits_of_time(tmp_path: Path) -> None:
    """A clone could run skills of its own choice, and a pull request hold a runner for a day."""
    text = (
        'skill_folders = ["/x"]\nevaluate_timeout_s = 86400\njob_timeout_s = '
        "86400\ncapture_timeout_s = 1"
    )
    settings, problems = load(project(tmp_path, text), environ={})
    assert len(problems) == 4 and all("may not decide" in str(problem) for problem in problems)
    assert settings == Settings()


def test_the_server_that_openais_clients_use_is_the_endpoint_where_no_other_is_set() -> None:
    common = {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}
    assert load(None, environ=common)[0].endpoint == "http://127.0.0.1:8000/v1"
    ours = {**common, "KERNEL_LSP_ENDPOINT": "http://127.0.0.1:9000/v1"}
    assert load(None, environ=ours)[0].endpoint == "http://127.0.0.1:9000/v1"
    assert load(None, environ={"OPENAI_BASE_URL": " "})[0].endpoint is None
