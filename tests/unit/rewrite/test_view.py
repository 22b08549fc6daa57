"""What a confined child sees: other content at a path, folders it changes for itself, what it was
named."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confined_helpers import AS, confined, folder_in, permits_namespaces

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces are Linux's")
PLACES = [
    place
    for place in map(Path, ("/home", "/opt", "/mnt", "/root", "/tmp"))
    if os.access(place, os.W_OK)
]


@pytest.fixture(params=AS)
def who(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scratch(who: str) -> Iterator[Path]:
    with folder_in(Path("/tmp"), who) as folder:
        yield folder


@pytest.fixture
def project(request: pytest.FixtureRequest, who: str) -> Iterator[Path]:
    """A project somewhere, with a neighbor."""
    place = getattr(request, "param", PLACES[0])
    if who == "user" and place == Path("/root"):
        pytest.skip("a user has nothing there")
    with folder_in(place, who) as folder:
        for name in ("project", "neighbor"):
            (folder / name).mkdir()
            (folder / name / "model.py").write_text(f"WHOSE = '{name}'\n")
        if who == "user":
            for path in (folder / "project", folder / "project" / "model.py"):
                os.chown(path, folder.stat().st_uid, folder.stat().st_gid)
        yield folder / "project"


def _namespaces(who: str, scratch: Path) -> list[str]:
    found = confined("", scratch, who=who, overlaid=[str(scratch)]).layers["namespaces"]
    assert isinstance(found, list)
    return found


READS_EDITED = """
import linecache, subprocess
assert open('FILE').read() == 'edited', open('FILE').read()
assert linecache.getline('FILE', 1) == 'edited\\n'
assert subprocess.run(['cat', 'FILE'], capture_output=True, text=True).stdout == 'edited'
"""


def test_a_file_is_seen_with_other_content(who: str, scratch: Path, project: Path) -> None:
    file, edited = project / "model.py", scratch / "edited"
    edited.write_text("edited")
    code = READS_EDITED.replace("FILE", str(file))
    order = {"readable": [str(project)], "replaced": {str(file): str(edited)}}
    said = confined(code, scratch, who=who, **order)
    if "mounts" not in said.layers["namespaces"] and not permits_namespaces():
        pytest.skip("this machine permits no mounts")
    assert said.error == "" and "replaced files" in said.layers["namespaces"]
    assert file.read_text() == "WHOSE = 'project'\n"
    bare = confined(code, scratch, who=who, without=("namespaces",), **order)
    assert bare.layers["namespaces"] == [] and "WHOSE = 'project'" in bare.error


def test_the_file_in_its_place_is_read_only(who: str, scratch: Path, project: Path) -> None:
    file, edited = project / "model.py", scratch / "edited"
    edited.write_text("edited")
    order = {"readable": [str(project)], "replaced": {str(file): str(edited)}}
    for without in ((), ("landlock",)):
        said = confined(f"open('{file}', 'w')", scratch, who=who, without=without, **order)
        assert "Error" in said.error
    assert (file.read_text(), edited.read_text()) == ("WHOSE = 'project'\n", "edited")


CHANGES = """
import os
os.rename('FOLDER/model.py', 'FOLDER/renamed.py')
open('FOLDER/renamed.py', 'a').write('more')
os.makedirs('FOLDER/build/deep')
open('FOLDER/build/deep/object', 'w').write('made')
assert open('FOLDER/build/deep/object').read() == 'made'
assert open('FOLDER/renamed.py').read().endswith('more')
os.unlink('FOLDER/renamed.py')
assert os.listdir('FOLDER') == ['build']
assert not os.path.exists('/tmp/.overlays')
"""


def test_what_is_written_to_an_overlaid_folder_is_thrown_away(
    who: str, scratch: Path, project: Path
) -> None:
    code = CHANGES.replace("FOLDER", str(project))
    said = confined(code, scratch, who=who, overlaid=[str(project)])
    if "mounts" not in said.layers["namespaces"] and not permits_namespaces():
        pytest.skip("this machine permits no mounts")
    if "overlays" in said.layers["namespaces"]:
        assert said.error == ""
    else:
        assert "Error" in said.error
    assert [path.name for path in project.iterdir()] == ["model.py"]
    assert (project / "model.py").read_text() == "WHOSE = 'project'\n"


def test_without_overlays_the_folder_is_read_only_and_the_layer_missing(
    who: str, scratch: Path, project: Path
) -> None:
    for without in (("overlays",), ("namespaces",)):
        said = confined(
            CHANGES.replace("FOLDER", str(project)),
            scratch,
            who=who,
            without=without,
            overlaid=[str(project)],
        )
        assert "overlays" not in said.layers["namespaces"] and "Error" in said.error
        assert [path.name for path in project.iterdir()] == ["model.py"]


def test_a_file_is_replaced_within_an_overlaid_folder(
    who: str, scratch: Path, project: Path
) -> None:
    file, edited = project / "model.py", scratch / "edited"
    edited.write_text("edited")
    if "overlays" not in _namespaces(who, scratch):
        pytest.skip("this machine permits no overlays")
    code = READS_EDITED.replace("FILE", str(file)) + f"open('{project}/new', 'w').write('x')"
    order = {"overlaid": [str(project)], "replaced": {str(file): str(edited)}}
    assert confined(code, scratch, who=who, **order).error == ""
    assert [path.name for path in project.iterdir()] == ["model.py"]


@pytest.mark.parametrize("without", [(), ("namespaces",), ("landlock",)], ids=str)
@pytest.mark.parametrize(
    ("named", "project"),
    [*(("folder", place) for place in PLACES), ("file", PLACES[0])],
    ids=str,
    indirect=["project"],
)
def test_what_is_named_is_seen_and_its_neighbor_is_not(
    named: str, without: tuple[str, ...], who: str, scratch: Path, project: Path
) -> None:
    file = project / "model.py"
    readable = [str(project if named == "folder" else file)]
    code = f"assert 'project' in open('{file}').read()"
    assert confined(code, scratch, who=who, without=without, readable=readable).error == ""
    neighbor = project.parent / "neighbor" / "model.py"
    said = confined(f"open('{neighbor}')", scratch, who=who, without=without, readable=readable)
    if without == ("landlock",) and "mounts" not in said.layers["namespaces"]:
        pytest.skip("nothing is left that hides a file")
    assert "FileNotFoundError" in said.error or "PermissionError" in said.error
    writes = confined(f"open('{file}', 'w')", scratch, who=who, without=without, readable=readable)
    assert "Error" in writes.error and file.read_text() == "WHOSE = 'project'\n"


def test_the_neighbor_is_seen_without_the_layers_that_hide_it(
    who: str, scratch: Path, project: Path
) -> None:
    neighbor = project.parent / "neighbor" / "model.py"
    said = confined(f"open('{neighbor}')", scratch, who=who, without=("namespaces", "landlock"))
    assert said.error == ""


@pytest.mark.parametrize("without", [(), ("namespaces",), ("landlock",)], ids=str)
def test_a_link_is_read_by_both_of_its_names(
    without: tuple[str, ...], who: str, scratch: Path, project: Path
) -> None:
    link = project.parent / "link"
    link.symlink_to(project)
    code = f"open('{link}/model.py').read(); open('{project}/model.py').read()"
    assert confined(code, scratch, who=who, without=without, readable=[str(link)]).error == ""


def test_a_link_in_a_folder_that_is_seen_is_no_place_for_a_mount(
    who: str, scratch: Path, project: Path
) -> None:
    """As `/bin` is one, and an environment's interpreter."""
    (project / "link").symlink_to(project / "model.py")
    named = [str(project), str(project / "link"), "/bin", "/usr/bin"]
    said = confined(f"open('{project}/link').read()", scratch, who=who, readable=named)
    assert said.error == "" and ("mounts" in said.layers["namespaces"]) >= permits_namespaces()
