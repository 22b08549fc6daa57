"""Signatures by the real ssh-keygen: what holds, what does not, and who refuses what nobody has
signed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernel_lsp import signatures, skillbook
from kernel_lsp.commands.app import application
from kernel_lsp.errors import SignatureError, Unsigned
from kernel_lsp.signatures import Keyring
from kernel_lsp.skillbook.library import SkillFolder


@pytest.fixture(scope="module")
def made_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ada", "mallory"):
        command = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            name,
            "-f",
            str(folder / name),
        ]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def ring(tmp_path: Path, made_keys: Path) -> Keyring:
    """Who trusts ada, and nobody else."""
    trusting = Keyring(tmp_path / "data")
    trusting.trust("ada@example.com", made_keys / "ada.pub")
    return trusting


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    folder = tmp_path / "library" / "a-skill"
    (folder / "deep").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: a-skill\n---\n")
    (folder / "deep" / "rewrite.py").write_text("x = 1\n")
    return folder


def test_what_is_signed_is_known_and_a_single_file_too(
    ring: Keyring, skill: Path, made_keys: Path
) -> None:
    signatures.sign(skill, key=made_keys / "ada", kind="skill")
    one = ring.verify(skill, kind="skill")
    assert (one.signer, one.name, one.release) == ("ada@example.com", "a-skill", 1)
    evidence = skill.parent / "accepted.json"
    evidence.write_text("{}")
    signatures.sign(evidence, key=made_keys / "ada", kind="evidence", release=7)
    assert ring.verify(evidence).release == 7


def test_nobody_and_another_kind(ring: Keyring, skill: Path, made_keys: Path) -> None:
    with pytest.raises(Unsigned):
        ring.verify(skill)
    signatures.sign(skill, key=made_keys / "ada", kind="recording")
    with pytest.raises(SignatureError, match="signed as recording"):
        ring.verify(skill, kind="skill")


def change(folder: Path) -> None:
    (folder / "SKILL.md").write_text("---\nname: a-skill\n---\nmore")


def add(folder: Path) -> None:
    (folder / "deep" / "other.py").write_text("")


def remove(folder: Path) -> None:
    (folder / "deep" / "rewrite.py").unlink()


def link(folder: Path) -> None:
    (folder / "deep" / "rewrite.py").unlink()
    (folder / "deep" / "rewrite.py").symlink_to("/etc/hostname")


def edit_statement(folder: Path) -> None:
    file = folder / signatures.STATEMENT
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "release": 99}))


def drop_signature(folder: Path) -> None:
    (folder / (signatures.STATEMENT + signatures.SIG)).unlink()


def spoil_signature(folder: Path) -> None:
    (folder / (signatures.STATEMENT + signatures.SIG)).write_bytes(os.urandom(200))


@pytest.mark.parametrize(
    "tamper",
    [change, add, remove, link, edit_statement, drop_signature, spoil_signature],
    ids=lambda f: f.__name__,
)
def test_whatever_was_changed_is_refused(
    ring: Keyring, skill: Path, made_keys: Path, tamper: Callable[[Path], None]
) -> None:
    signatures.sign(skill, key=made_keys / "ada", kind="skill")
    tamper(skill)
    with pytest.raises(SignatureError) as refused:
        ring.verify(skill)
    assert not isinstance(refused.value, Unsigned)


def test_a_strangers_key_a_signature_for_another_purpose_and_a_revoked_key(
    ring: Keyring, skill: Path, made_keys: Path
) -> None:
    statement = signatures.sign(skill, key=made_keys / "mallory", kind="skill")
    with pytest.raises(SignatureError, match="not trusted"):
        ring.verify(skill)
    signature = statement.with_name(statement.name + signatures.SIG)
    signature.unlink()
    command = [
        "ssh-keygen",
        "-q",
        "-Y",
        "sign",
        "-f",
        str(made_keys / "ada"),
        "-n",
        "git",
        str(statement),
    ]
    subprocess.run(command, check=True)
    with pytest.raises(SignatureError, match="does not hold"):
        ring.verify(skill)
    signatures.sign(skill, key=made_keys / "ada", kind="skill")
    ring.verify(skill)
    ring.revoke("ada@example.com")
    with pytest.raises(SignatureError, match="revoked"):
        ring.verify(skill)
    assert [one.revoked for one in ring.signers()] == [True]
    with pytest.raises(SignatureError, match="revoked"):
        ring.trust("ada-again", made_keys / "ada.pub")


def test_releases_only_rise(ring: Keyring, skill: Path, made_keys: Path) -> None:
    key = made_keys / "ada"
    signatures.sign(skill, key=key, kind="skill", release=3)
    ring.verify(skill)
    change(skill)
    signatures.sign(skill, key=key, kind="skill")
    assert ring.verify(skill).release == 4
    signatures.sign(skill, key=key, kind="skill", release=3)
    with pytest.raises(SignatureError, match="4 was here before"):
        ring.verify(skill)
    remove(skill)
    signatures.sign(skill, key=key, kind="skill", release=4)
    with pytest.raises(SignatureError, match="another content"):
        ring.verify(skill)
    assert ring.verify(skill, allow_rollback=True).release == 4


@pytest.mark.parametrize("name", ["", "*", "a b", "a,b", "!a", "a\nb", '"a"'])
def test_a_name_cannot_mean_everybody(ring: Keyring, made_keys: Path, name: str) -> None:
    with pytest.raises(SignatureError, match="no name"):
        ring.trust(name, made_keys / "ada.pub")


@pytest.mark.parametrize(
    "text", ["", "hello", "cert-authority ssh-ed25519 AAAA", "ssh-ed25519 AAAA\n* ssh-rsa AAAA"]
)
def test_what_is_no_public_key_is_not_trusted(ring: Keyring, tmp_path: Path, text: str) -> None:
    (tmp_path / "x.pub").write_text(text)
    with pytest.raises(SignatureError, match="no public key"):
        ring.trust("x", tmp_path / "x.pub")


def test_without_the_tool_it_says_what_to_install(
    ring: Keyring, skill: Path, made_keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "_MACHINE_PATH", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SignatureError, match="apt install openssh-client"):
        signatures.sign(skill, key=made_keys / "ada", kind="skill")


def test_a_skill_of_somebody_else_is_left_out_when_its_signature_does_not_hold(
    ring: Keyring, tmp_path: Path, made_keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = skillbook.built_in_folder()
    name = next(path.name for path in sorted(source.iterdir()) if (path / "SKILL.md").exists())
    folder = tmp_path / "theirs"
    folder.mkdir()
    subprocess.run(["cp", "-r", str(source / name), str(folder / name)], check=True)
    place = SkillFolder(path=folder, source="configured")

    def fields() -> list[str]:
        return [p.field for p in skillbook.load([place], data_dir=tmp_path / "data").problems]

    assert fields() == []
    monkeypatch.setenv("CI", "true")
    assert fields() == ["signature"]
    monkeypatch.setenv("KERNEL_LSP_UNSIGNED", "yes")
    assert fields() == []
    signatures.sign(folder / name, key=made_keys / "mallory", kind="skill")
    assert fields() == ["signature"]
    monkeypatch.delenv("KERNEL_LSP_UNSIGNED")
    signatures.sign(folder / name, key=made_keys / "ada", kind="skill")
    assert fields() == []
    (folder / name / "SKILL.md").write_text("other")
    assert fields() == ["signature"]


def test_the_commands(
    tmp_path: Path, skill: Path, made_keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(application(["keys"]), list(arguments))
        return result.exit_code, result.output

    keys = ("keys",) if run("keys", "--help")[0] == 0 else ()
    assert run(*keys, "verify", str(skill))[0] == 1
    assert run(*keys, "sign", str(skill), "--key", str(made_keys / "ada"))[0] == 0
    assert run(*keys, "verify", str(skill))[0] == 1  # nobody is trusted yet
    assert run(*keys, "trust", "ada", str(made_keys / "ada.pub"))[0] == 0
    code, output = run(*keys, "verify", str(skill), "--json")
    assert (code, json.loads(output)["signed"][0]["signer"]) == (0, "ada")
    code, output = run(*keys, "list", "--json")
    assert json.loads(output)["signers"][0]["fingerprint"].startswith("SHA256:")
    assert run(*keys, "revoke", "nobody")[0] == 2
    assert run(*keys, "revoke", "ada")[0] == 0
    assert run(*keys, "verify", str(skill))[0] == 1


def test_in_ci_a_policy_that_nobody_has_signed_is_refused(
    tmp_path: Path, made_keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no policy at all, so that only the signature decides what is said first."""
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CI", "true")
    Keyring(tmp_path / "data").trust("ada", made_keys / "ada.pub")
    place = tmp_path / "policy"
    place.mkdir()
    (place / "manifest.json").write_text("{}")

    def said(*more: str) -> str:
        result = CliRunner().invoke(
            application(["models", "keys"]), ["models", "use", str(place), *more]
        )
        assert result.exit_code == 2
        return " ".join(result.stderr.split())

    assert "signed by nobody" in said()
    assert "cannot be read" in said("--unsigned")
    signatures.sign(place, key=made_keys / "mallory", kind="policy")
    assert "not trusted" in said("--unsigned")
    signatures.sign(place, key=made_keys / "ada", kind="policy")
    assert "cannot be read" in said()
