"""Content of the wheels and sdists: all that is needed, and nothing else."""

from __future__ import annotations

import email
import sysconfig
import tarfile
import tomllib
import zipfile

import pytest
from epctx_cli.pages import list_files
from packaged.distributions import (
    BATCH,
    BENCH,
    BRIDGE,
    CACHE,
    COMMANDS,
    CORE,
    ENGINE,
    FILES,
    FOLDERS,
    GENAI,
    ISOLATION,
    KIT,
    REPORT,
    ROOT,
    build,
    unpacked,
)

pytestmark = pytest.mark.internal

NAMES = sorted(FOLDERS)
EXACT = [
    BATCH,
    BENCH,
    BRIDGE,
    CACHE,
    COMMANDS,
    ENGINE,
    FILES,
    GENAI,
    ISOLATION,
    KIT,
    REPORT,
]
PACKAGES = {
    name: ROOT / "epctx_core"
    if name == CORE
    else FOLDERS[name] / "src" / name.replace("-", "_")
    for name in NAMES
}


def read(wheel, ending):
    """Return the text of the file in a wheel whose name ends so."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(ending)]
        return archive.read(name).decode()


def metadata(wheel):
    return email.message_from_string(read(wheel, ".dist-info/METADATA"))


def project(name):
    return tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text("utf-8"))[
        "project"
    ]


def pages():
    """Return the pages for users by their paths in `docs`."""
    docs = ROOT / "docs"
    return [path.relative_to(docs).as_posix() for path, _ in list_files(docs)]


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_holds_its_package_whole_and_its_metadata_alone(wheels, name):
    package = PACKAGES[name]
    source = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }

    if name == COMMANDS:
        # The file of the site has the order of the pages.
        source |= {f"epctx_cli/docs/{page}" for page in [*pages(), "mkdocs.yml"]}

    with zipfile.ZipFile(wheels[name]) as archive:
        names = set(archive.namelist())

    described = {found for found in names if ".dist-info/" in found}
    assert names - described == source
    assert f"{package.name}/py.typed" in names
    assert {found.partition("/")[2] for found in described} - {"entry_points.txt"} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "licenses/LICENSE",
    }


def test_the_pages_in_the_wheel_of_the_commands_are_the_repositorys(wheels):
    assert len(pages()) > 30
    with zipfile.ZipFile(wheels[COMMANDS]) as archive:
        for page in pages():
            text = archive.read(f"epctx_cli/docs/{page}")
            assert text == (ROOT / "docs" / page).read_bytes()


def test_the_sdist_of_the_core_has_all_pages(sdists):
    docs = {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.*")}

    with tarfile.open(sdists[CORE]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {name for name in names if name.startswith("docs/")} == docs


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_carries_the_projects_licence(wheels, name):
    assert read(wheels[name], "licenses/LICENSE") == (ROOT / "LICENSE").read_text(
        "utf-8"
    )
    assert metadata(wheels[name])["License-Expression"] == "MIT"


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_says_what_pip_and_people_need(wheels, name):
    said, asked = metadata(wheels[name]), project(name)

    assert said["Name"] == name
    assert said["Requires-Python"] == asked["requires-python"] == ">=3.11"
    assert said["Summary"] == asked["description"]
    assert said.get_payload().startswith(f"# {'epctx' if name == CORE else name}")
    assert set(said.get_all("Classifier")) == set(asked["classifiers"])
    assert "Typing :: Typed" in asked["classifiers"]


def test_the_core_depends_on_four_libraries_and_names_its_extras(wheels):
    said = metadata(wheels[CORE])
    plain = [need for need in said.get_all("Requires-Dist") if "extra ==" not in need]

    assert sorted(need.partition(">")[0] for need in plain) == [
        "importlib-metadata",
        "numpy",
        "onnx",
        "pluggy",
    ]
    assert set(said.get_all("Provides-Extra")) == {
        "all",
        "batch",
        "bench",
        "ort",
        "cli",
        "cache",
        "files",
        "genai",
        "isolation",
        "openvino",
        "report",
        "test",
        "tools",
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {CORE, *EXACT}])
def test_a_plugin_needs_a_core_of_the_same_minor_version(wheels, name):
    core = metadata(wheels[CORE])["Version"]
    major, minor, _ = core.split(".")

    needs = metadata(wheels[name]).get_all("Requires-Dist")

    assert f"epctx-core<{major}.{int(minor) + 1},>={major}.{minor}" in needs


def test_the_wheel_for_onnxruntime_has_a_library_for_every_python_of_this_machine(
    wheels,
):
    with zipfile.ZipFile(wheels[BRIDGE]) as archive:
        names = archive.namelist()
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")

    assert "onnxruntime_ep_epctx/libonnxruntime_ep_epctx.so" in names
    assert wheels[BRIDGE].name.endswith(f"-py3-none-{platform}.whl")


def test_a_wheels_library_is_not_compiled_into_the_sources(sdists, tmp_path):
    sources = unpacked(sdists[BRIDGE], tmp_path / "unpacked")

    # That of an editable install may be for another machine.
    build(sources, "wheel", tmp_path / "built")

    assert not list(sources.rglob("*.so"))


@pytest.mark.parametrize("name", EXACT)
def test_a_package_that_uses_the_cores_own_names_needs_exactly_that_core(wheels, name):
    core = metadata(wheels[CORE])["Version"]

    assert metadata(wheels[name])["Version"] == core
    assert f"epctx-core=={core}" in metadata(wheels[name]).get_all("Requires-Dist")


@pytest.mark.parametrize("name", NAMES)
def test_an_sdist_builds_the_same_wheel_byte_for_byte(wheels, sdists, name, tmp_path):
    rebuilt = build(
        unpacked(sdists[name], tmp_path / "unpacked"), "wheel", tmp_path / "rebuilt"
    )

    assert rebuilt.name == wheels[name].name
    assert rebuilt.read_bytes() == wheels[name].read_bytes()
