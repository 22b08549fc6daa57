"""Which policy a job gets, and the reason where it is the rule. Nothing is started."""

import json
import shutil
from pathlib import Path

import pytest
from test_models import CHECK, checkpoint

from kernel_lsp.models import Store, seal
from kernel_lsp.pipeline.policies import Policies


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", packaged=tmp_path / "package")


def policies(store: Store, tmp_path: Path) -> Policies:
    return Policies(tmp_path / "data", store)


def test_a_switch_counts_from_the_next_request(store: Store, tmp_path: Path) -> None:
    mine = policies(store, tmp_path)
    assert mine.used("cuda") is None and mine.trouble is None
    store.install(checkpoint(tmp_path / "made"))
    assert mine.used("cuda") is None  # installing is not using
    store.use("plan-small")
    used = mine.used("cuda")
    assert used is not None and used.id == "plan-small@1"
    store.use("rule")
    assert mine.used("cuda") is None and mine.trouble is None


def test_where_it_was_not_trained_the_rule_plans(store: Store, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "made")
    seal(folder, name="plan-small", version="1", held_out=CHECK, devices=("cuda",))
    store.install(folder)
    store.use("plan-small")
    mine = policies(store, tmp_path)
    assert mine.used("cuda") is not None
    assert mine.used("cpu") is None
    assert mine.trouble == "plan-small@1 was not trained for cpu"


def test_what_is_gone_or_cannot_be_read_is_a_reason_and_no_failure(store: Store, tmp_path: Path) -> None:
    store.install(checkpoint(tmp_path / "made"))
    store.use("plan-small")
    mine = policies(store, tmp_path)
    shutil.rmtree(tmp_path / "data" / "models" / "plan-small-1")
    assert mine.used("cuda") is None
    assert mine.trouble is not None and "no policy is called plan-small@1" in mine.trouble
    (tmp_path / "data" / "models" / "used.json").write_text(json.dumps({"schema": 99, "history": []}))
    assert mine.used("cuda") is None
    assert "another version" in str(mine.trouble)
