"""``kernel-lsp keys``: whose skills, policies, recordings and evidence are believed."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

import typer

from kernel_lsp import config, signatures, wire
from kernel_lsp.commands import console
from kernel_lsp.errors import KernelLspError, SignatureError, Unsigned
from kernel_lsp.signatures import Keyring, Signed

app = typer.Typer(
    help="Whose skills, policies, recordings and evidence are believed; signing your own.",
    no_args_is_help=True,
)
AS_JSON = typer.Option(False, "--json", help="One JSON object on standard output.")
ALLOW_ROLLBACK = typer.Option(
    False, "--allow-rollback", help="Take an older release than was here before."
)
UNSIGNED = typer.Option(
    False, "--unsigned", help="Take what nobody has signed; you have looked at it."
)
DEFAULT_KEY = Path("~/.ssh/id_ed25519")


class Kind(StrEnum):
    SKILL = "skill"
    POLICY = "policy"
    RECORDING = "recording"
    EVIDENCE = "evidence"


@app.command("list")
def list_keys(as_json: bool = AS_JSON) -> None:
    """Every trusted signer, with the fingerprint of the key; revoked ones too."""
    ring = keyring()
    try:
        signers = ring.signers()
    except SignatureError as error:
        console.fail(error)
    if as_json:
        console.print_json(file=str(ring.signers_file), signers=wire.to_json(signers))
        return
    for one in signers:
        console.write(f"{one.name}  {one.fingerprint}{'  revoked' if one.revoked else ''}\n")
    if not signers:
        console.write("nobody is trusted: `kernel-lsp keys trust NAME KEY.pub`\n")


@app.command()
def trust(
    name: str = typer.Argument(..., help="How you call the signer, e.g. an address of mail."),
    public_key: Path = typer.Argument(
        ..., help="The signer's public key (.pub), got from the signer."
    ),
) -> None:
    """Believe from now on what this key signs."""
    try:
        one = keyring().trust(name, public_key)
    except SignatureError as error:
        console.fail(error)
    console.write(f"{one.name} is trusted: {one.fingerprint}\n")


@app.command()
def revoke(
    name: str = typer.Argument(..., help="A signer, or the fingerprint of one key."),
) -> None:
    """Believe a signer's keys no more, also what they signed before."""
    try:
        found = keyring().revoke(name)
    except SignatureError as error:
        console.fail(error)
    for one in found:
        console.write(f"{one.name} is revoked: {one.fingerprint}\n")


@app.command()
def sign(
    paths: list[Path] = typer.Argument(
        ..., help="Folders (a skill, a policy, a recording) or files.", exists=True
    ),
    key: Path = typer.Option(
        DEFAULT_KEY, "--key", help="Your private key, or the public one of a key in the agent."
    ),
    kind: Kind | None = typer.Option(None, help="What it is; default: found from what lies there."),
    name: str | None = typer.Option(
        None, help="What its releases are counted for; default: the name of the path."
    ),
    release: int | None = typer.Option(None, min=1, help="Default: one more than the last."),
) -> None:
    """Sign what you made, so that others can see that it is yours and unchanged."""
    for path in paths:
        try:
            chosen = kind or kind_of(path)
            made = signatures.sign(
                path, key=key.expanduser(), kind=chosen.value, name=name, release=release
            )
        except SignatureError as error:
            console.fail(error)
        console.write(f"{made}\n")


@app.command()
def verify(
    paths: list[Path] = typer.Argument(..., help="What was signed.", exists=True),
    allow_rollback: bool = ALLOW_ROLLBACK,
    as_json: bool = AS_JSON,
) -> None:
    """Who has signed it, unchanged. Exit code 1: nobody, or the signature does not hold."""
    ring, good, problems = keyring(), list[Signed](), list[str]()
    for path in paths:
        try:
            good.append(ring.verify(path, allow_rollback=allow_rollback))
        except SignatureError as error:
            problems.append(str(error))
    if as_json:
        console.print_json(signed=wire.to_json(good), problems=problems)
    else:
        for one in good:
            console.write(
                f"{one.path}: {one.kind} {one.name}, release {one.release}, signed by "
                f"{one.signer}\n"
            )
        for problem in problems:
            console.err.print(problem, markup=False, soft_wrap=True)
    raise typer.Exit(console.EXIT_NO if problems else console.EXIT_OK)


def keyring() -> Keyring:
    """The keys that this user believes."""
    return Keyring(config.load(Path.cwd())[0].data_dir)


def kind_of(path: Path) -> Kind:
    """What kind of thing lies at the path. Raises SignatureError."""
    if (path / "SKILL.md").is_file():
        return Kind.SKILL
    if (path / "manifest.json").is_file():
        return Kind.POLICY
    if (path / "about.json").is_file() or path.name.endswith(".recorded.toml"):
        return Kind.RECORDING
    if path.suffix == ".json":
        return Kind.EVIDENCE
    raise SignatureError(f"{path} is no skill, policy, recording or evidence", "say --kind")


def require(
    path: Path, kind: Kind, *, unsigned: bool, allow_rollback: bool = False
) -> Signed | None:
    """What comes from somebody else is signed, or somebody says that it need not be: by
    --unsigned, or in a terminal when asked. None: unsigned and allowed. A signature that does not
    hold is never taken."""
    try:
        return keyring().verify(path, kind=kind.value, allow_rollback=allow_rollback)
    except Unsigned as error:
        if unsigned or _allowed_by_hand(path):
            return None
        console.fail(
            KernelLspError(error.cause, "have it signed (`kernel-lsp keys`), or say --unsigned")
        )
    except SignatureError as error:
        console.fail(error)


def _allowed_by_hand(path: Path) -> bool:
    """In CI nobody is there to be asked; a script elsewhere is somebody's who has named the
    path."""
    if signatures.refuses_unsigned():
        return False
    if sys.stdin.isatty():
        return typer.confirm(f"{path} is signed by nobody. Take it?", default=False, err=True)
    console.err.print(f"{path} is signed by nobody", markup=False, soft_wrap=True)
    return True
