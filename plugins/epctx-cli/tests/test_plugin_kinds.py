"""`epctx plugins list` and `info` on plugins of other kinds than EPs."""

from __future__ import annotations

import pytest
from support.installed import install_distribution

GROUPS = {
    "engines": "epctx.engines",
    "commands": "epctx.commands",
    "host_plugins": "epctx.host_plugins",
    "model_formats": "epctx.model_formats",
    "isolations": "epctx.isolation",
    "native_formats": "epctx.native_formats",
}
CODE = '''
"""Parts of Acme.

More about them.
"""
from epctx_core.plugin import BaseEngine

print("noise of an import")

class Engine(BaseEngine):
    """Engine of Acme, which computes
    slowly.

    And more.
    """

    name = "acme 7.5"

    def prepare(self, model, weights=None, *, heavy=None):
        raise NotImplementedError

def declare(parser):
    """Declare nothing."""
    parser.description = "Measure how long a model takes."
'''
TARGETS = {
    "engines": "acme_parts:Engine",
    "commands": "acme_parts:declare",
    "host_plugins": "acme_parts:missing",
    "model_formats": "acme_parts",
    "isolations": "acme_absent",
    "native_formats": "acme_absent",
}


@pytest.fixture
def parts(tmp_path):
    """A folder with a package that has one plugin of each kind, `my-<kind>`."""
    folder = tmp_path / "parts"
    entries = {GROUPS[key]: {f"my-{key}": TARGETS[key]} for key in GROUPS}
    install_distribution(folder, "Acme_Parts", entries)
    (folder / "acme_parts.py").write_text(CODE.lstrip())
    return folder


@pytest.mark.parametrize("key", GROUPS)
def test_plugins_of_each_kind_are_listed_with_their_packages(process, parts, key):
    said = process("plugins", "list", "--json", path=[parts])

    assert said.code == 0
    assert {
        "name": f"my-{key}",
        "distribution": "Acme_Parts",
        "version": "1.0",
        "entry_point": TARGETS[key],
    } in said.json[key]


def test_the_list_for_people_has_a_table_for_each_kind_that_is_installed(
    process, parts
):
    without, added = (
        process("plugins", "list"),
        process("plugins", "list", path=[parts]),
    )

    assert "\n  engine       distribution       version" in without.out
    for label in ("engine", "command", "host plugin"):
        assert f"\n  {label} " in added.out
    assert "my-model_formats" in added.out
    assert "my-isolations" in added.out


def test_an_engine_is_described_with_its_version_and_its_first_paragraph(
    process, parts
):
    said = process("plugins", "info", "my-engines", "--json", path=[parts])

    (found,) = said.json["others"]
    assert (said.code, said.json["plugins"]) == (0, [])
    assert (found["kind"], found["provides"]) == ("engine", "acme 7.5")
    assert found["doc"] == "Engine of Acme, which computes slowly."
    assert found["entry_point"] == "acme_parts:Engine"
    assert found["state"] == "loaded"


def test_a_command_is_described_with_its_summary(process, parts):
    said = process("plugins", "info", "my-commands", path=[parts])

    assert said.code == 0
    assert "kind          command" in said.out
    assert "summary       Measure how long a model takes." in said.out
    assert "distribution  Acme_Parts\n" in said.out


def test_a_module_is_described_by_its_own_docstring(process, parts):
    said = process("plugins", "info", "my-model_formats", path=[parts])

    assert "description   Parts of Acme.\n" in said.out


def test_a_distribution_has_all_of_its_plugins_described(process, parts):
    said = process("plugins", "info", "acme-parts", "--json", path=[parts])

    assert said.code == 0
    assert {each["name"] for each in said.json["others"]} == {
        f"my-{key}" for key in GROUPS
    }


def test_one_plugin_of_a_distribution_may_be_named_with_it(process, parts):
    said = process("plugins", "info", "acme-parts:my-engines", "--json", path=[parts])
    other = process("plugins", "info", "other:my-engines", path=[parts])

    assert [each["name"] for each in said.json["others"]] == ["my-engines"]
    assert other.code != 0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my-host_plugins", "AttributeError: module 'acme_parts' has no attribute"),
        ("my-isolations", "ModuleNotFoundError: No module named 'acme_absent'"),
    ],
)
def test_one_that_cannot_be_loaded_is_broken_with_the_reason(process, parts, name, why):
    said = process("plugins", "info", name, path=[parts])
    verbose = process("plugins", "info", name, "-v", path=[parts])

    assert said.code == 3
    assert "state         broken\n" in said.out
    assert f"reason        {why}" in said.out
    assert "Fix or reinstall Acme_Parts." in said.out
    assert "Traceback" not in said.out
    assert "Traceback" in verbose.out


def test_one_that_ends_its_process_is_broken_and_the_command_goes_on(process, parts):
    (parts / "acme_parts.py").write_text("import os; os._exit(9)\n")

    said = process("plugins", "info", "my-engines", path=[parts])

    assert said.code == 3
    assert "its process ended with exit code 9 while it was tried" in said.out


def test_packages_that_have_a_plugin_of_any_kind_are_not_remarked_on(process, parts):
    metadata = parts / "Acme_Parts-1.0.dist-info" / "METADATA"
    metadata.write_text(f"{metadata.read_text().rstrip()}\nRequires-Dist: epctx-core\n")
    points = metadata.with_name("entry_points.txt")
    points.write_text("[epctx.model_formats]\nmine = acme_parts\n")

    said = process("doctor", path=[parts])

    assert "Acme_Parts" not in said.out
    assert "acme-parts needs epctx-core" not in said.out
