"""`epctx plugins info`."""

from __future__ import annotations

import re

OPTIONS = """
    vendor = "Far Inc."
    options = (
        ProviderOption("depth", int, default=3, choices=(1, 3), doc="How deep it looks."),
        ProviderOption("key", str, default="hidden", doc="The key.", secret=True),
    )
    @classmethod
    def availability(cls, purpose):
        return Availability(purpose.value != "run", reason="no device found", hint="Plug one in.")
"""
HEAD = "from epctx_core.plugin import ProviderOption\n"


def far(site):
    folder = site("epctx-far", "FarExecutionProvider", body=OPTIONS)
    module = folder / "epctx_far.py"
    module.write_text(HEAD + module.read_text())
    return folder


def test_all_that_a_plugin_says_of_itself_is_told(process, site):
    said = process("plugins", "info", "far", "--json", path=[far(site)])

    (plugin,) = said.json["plugins"]
    assert said.code == 0
    assert (plugin["name"], plugin["distribution"], plugin["version"]) == (
        "FarExecutionProvider",
        "epctx-far",
        "1.0",
    )
    assert (plugin["state"], plugin["vendor"], plugin["api_version"]) == (
        "loaded",
        "Far Inc.",
        1,
    )
    assert plugin["entry_point"] == "epctx_far:Provider"
    assert plugin["sources"] == ["FarExecutionProvider"]
    assert plugin["hooks"] == [
        "compile",
        "get_capability",
        "get_ep_context_nodes",
        "load_context",
    ]
    assert plugin["class_methods"] == ["availability"]
    assert plugin["binary_suffix"] == "FarExecutionProvider"


def test_it_is_told_for_each_purpose_whether_the_plugin_is_available(process, site):
    said = process("plugins", "info", "far", path=[far(site)])

    assert "can export     yes" in said.out
    assert "can run        no: no device found Plug one in." in said.out


def test_options_are_listed_with_their_rules_and_no_secret(process, site):
    folder = far(site)

    said = process("plugins", "info", "far", path=[folder])
    options = {
        o["name"]: o
        for o in process("plugins", "info", "far", "--json", path=[folder]).json[
            "plugins"
        ][0]["options"]
    }

    assert "depth (1 | 3; default 3)\n      How deep it looks." in said.out
    assert "key (text; secret)" in said.out
    assert options["depth"] == {
        "name": "depth",
        "type": "int",
        "default": 3,
        "choices": [1, 3],
        "doc": "How deep it looks.",
        "secret": False,
    }
    assert options["key"]["default"] is None
    assert "hidden" not in said.out


def test_a_broken_plugin_is_told_with_the_reason_and_what_to_do(process, site):
    folder = site("epctx-bad", "BadExecutionProvider", code="import no_such_sdk\n")

    said = process("plugins", "info", "Bad", path=[folder])
    verbose = process("plugins", "info", "Bad", "-v", path=[folder])

    assert said.code == 3
    assert "broken" in said.out
    assert "No module named 'no_such_sdk'" in said.out
    assert "Fix or reinstall epctx-bad" in said.out
    assert "plugins info" not in said.out + verbose.out
    assert "Traceback" not in said.out
    assert 'epctx_bad.py", line 1' in verbose.out


def test_a_plugin_may_be_named_by_its_distribution(process):
    said = process("plugins", "info", "epctx-sim-qnn", "--json")

    assert [plugin["name"] for plugin in said.json["plugins"]] == [
        "QNNExecutionProvider"
    ]


def test_two_distributions_with_one_ep_are_both_told(process, site):
    folder = site("epctx-one", "SameExecutionProvider")
    site("epctx-two", "SameExecutionProvider")

    said = process("plugins", "info", "same", "--json", path=[folder])

    assert said.code == 3
    assert [(p["distribution"], p["state"]) for p in said.json["plugins"]] == [
        ("epctx-one", "duplicate"),
        ("epctx-two", "duplicate"),
    ]


def test_one_of_two_distributions_is_told_alone_if_it_is_named(process, site):
    folder = site("epctx-one", "SameExecutionProvider")
    site("epctx-two", "SameExecutionProvider")

    said = process("plugins", "info", "Epctx_Two:same", "--json", path=[folder])

    assert said.code == 0
    (plugin,) = said.json["plugins"]
    assert (plugin["distribution"], plugin["state"]) == ("epctx-two", "loaded")


def test_the_one_of_two_distributions_that_is_named_may_be_broken(process, site):
    folder = site("epctx-one", "SameExecutionProvider")
    site("epctx-two", "SameExecutionProvider", code="import no_such_sdk\n")

    said = process("plugins", "info", "epctx-two:same", path=[folder])

    assert said.code == 3
    assert "No module named 'no_such_sdk'" in said.out


def test_a_plugin_that_is_not_installed_is_missing(process):
    said = process("plugins", "info", "QNNN")

    assert said.code == 3
    assert "no installed plugin provides the Execution Provider 'QNNN'" in said.err
    assert "Did you mean 'QNN'?" in said.err


def test_the_cpu_ep_is_no_plugin(process):
    said = process("plugins", "info", "CPU")

    assert said.code == 2
    assert "CPUExecutionProvider is built in" in said.err


def test_facts_have_labels_for_people(process):
    said = process("plugins", "info", "QNN")

    facts = dict(re.findall(r"^  (\S.*?\S)  +(\S.*)$", said.out, re.MULTILINE))
    assert facts["plugin API"] == "1"
    assert re.fullmatch(r"<model>_\w+\.bin", facts["binaries"])
    assert facts.keys().isdisjoint({"api version", "binary suffix", "dynamic options"})
