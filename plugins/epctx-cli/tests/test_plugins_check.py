"""`epctx plugins check`: the conformance kit on the command line.

What it finds is shown in plugins/epctx-conformance/tests.
"""

from __future__ import annotations

import pytest
from support.cli_fixtures import PROVIDER, hide_package
from support.install_commands import pip_install

from epctx_core.testing import GROUPS


def test_an_ep_that_keeps_the_contract_is_exit_0(process):
    said = process("plugins", "check", "QNN", "--only", "signatures", "--json")

    assert said.code == 0
    assert (said.json["ok"], said.json["ep"]) == (True, "QNNExecutionProvider")
    assert {check["group"] for check in said.json["checks"]} == {"signatures"}


def test_an_ep_that_breaks_it_is_exit_1_and_the_report_says_how(process, site):
    code = """
from epctx_core.plugin import ExecutionProvider, hookimpl, supported_partitions

class Provider(ExecutionProvider):
    name = "BadExecutionProvider"
    asked = 0
    @hookimpl
    def get_capability(self, graph):
        type(self).asked += 1
        return supported_partitions(graph, lambda node: node.op_type == "Relu" and self.asked % 2 == 1)
    @hookimpl
    def compile(self, partitions):
        return []
"""
    folder = site("epctx-bad", "BadExecutionProvider", code=code)

    said = process("plugins", "check", "Bad", "--only", "claims", path=[folder])

    assert said.code == 1
    assert (
        "FAILED  it claims the same nodes each time, and does not change the graph"
        in said.out
    )
    failed = said.out.partition("\nfailed\n")[2]
    assert (
        "\n  it_claims_the_same_nodes_each_time_and_does_not_change_the_graph\n"
        in f"\n{failed}"
    )
    assert f"Next: epctx plugins check Bad --only {failed.split()[0]}" in failed


def test_a_report_has_failures_and_counts_and_every_check_with_verbose(process):
    only = ["--only", "it_allocates_memory_as_requested", "--only", "signatures"]
    arguments = ["plugins", "check", "QNN", *only]

    brief = process(*arguments)
    whole = process(*arguments, "-v")

    checks = process(*arguments, "--json").json["checks"]
    titles = [check["title"] for check in checks]
    assert brief.code == whole.code == 0
    assert [title for title in titles if title in brief.out] == []
    assert "\nSkipped 1 check: the EP has no allocate hook (1).\n" in brief.out
    assert f" of {len(titles)} checks, " in brief.out
    assert "-v lists every check" in brief.out
    assert [title for title in titles if title not in whole.out] == []
    assert "-v lists" not in whole.out


def test_warnings_about_the_kits_own_models_are_kept_back_unless_more_is_asked_for(
    process, site
):
    code = """
import logging
from epctx_core.plugin import ExecutionProvider, hookimpl

class Provider(ExecutionProvider):
    name = "LoudExecutionProvider"
    @hookimpl
    def get_capability(self, graph):
        logging.getLogger("epctx.ep.Loud").warning("an odd model")
        return []
    @hookimpl
    def compile(self, partitions):
        return []
"""
    folder = site("epctx-loud", "LoudExecutionProvider", code=code)
    command = [
        "plugins",
        "check",
        "Loud",
        "--only",
        "it_returns_claims_and_refusals_of_nodes_of_the_graph",
    ]

    quiet, verbose = (process(*command, *more, path=[folder]) for more in ([], ["-v"]))

    assert "an odd model" not in quiet.err
    assert "an odd model" in verbose.err


@pytest.mark.parametrize(
    "command", [["check", "Endless", "--only", "signatures"], ["info", "Endless"]]
)
def test_a_plugin_whose_thread_never_ends_keeps_no_command_from_ending(
    process, site, command
):
    endless = (
        "import threading\nthreading.Thread(target=threading.Event().wait, name='acme "
        "driver').start()\n"
    )
    text = endless + PROVIDER.format(name="EndlessExecutionProvider", body="")
    folder = site("epctx-endless", "EndlessExecutionProvider", code=text)

    said = process("plugins", *command, path=[folder])

    assert "EndlessExecutionProvider" in said.out
    if "check" in command:
        assert "a plugin left threads that do not end: acme driver" in said.err


def test_one_check_may_be_asked_for_by_its_name(process):
    every = process("plugins", "check", "QNN", "--only", "signatures", "--json").json[
        "checks"
    ]

    said = process("plugins", "check", "QNN", "--only", every[0]["name"], "--json")

    assert [check["name"] for check in said.json["checks"]] == [every[0]["name"]]


def test_a_quick_check_leaves_out_onnx_own_cases(process, site):
    code = PROVIDER.format(name="FarExecutionProvider", body="")
    folder = site("epctx-far", "FarExecutionProvider", code=code)

    said = process("plugins", "check", "Far", "--quick", "--json", path=[folder])

    assert {check["group"] for check in said.json["checks"]} == set(GROUPS) - {
        "node_models"
    }


def test_what_the_ep_is_not_expected_to_do_is_skipped(process):
    said = process(
        "plugins",
        "check",
        "QNN",
        "--only",
        "sharing",
        "--without",
        "share_groups",
        "--json",
    )

    assert {check["outcome"] for check in said.json["checks"]} == {"skipped"}
    assert said.code == 1
    assert "no check passed" in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "clims"], "Did you mean 'claims'?"),
        (["--without", "dynamic_shape"], "Did you mean 'dynamic_shapes'?"),
        (["--quick", "--full"], "not allowed with"),
        (["-p", "Other.key=1"], "only QNN was given"),
    ],
)
def test_wrong_usage_is_exit_2(process, arguments, words):
    said = process("plugins", "check", "QNN", *arguments)

    assert said.code == 2
    assert words in said.err


def test_a_missing_plugin_is_exit_3(process):
    said = process("plugins", "check", "Nobody")

    assert said.code == 3
    assert "no installed plugin provides the Execution Provider 'Nobody'" in said.err


def test_a_broken_plugin_is_exit_3(process, site):
    folder = site("epctx-bad", "BadExecutionProvider", code="import no_such_sdk\n")

    said = process("plugins", "check", "Bad", path=[folder])

    assert said.code == 3
    assert "no_such_sdk" in said.err


def test_without_the_package_of_onnxruntimes_eps_a_check_of_one_says_how_to_install_it(
    process, tmp_path
):
    hide_package("epctx_onnxruntime", tmp_path)
    library = ["--ep", "Acme", "--library", "libacme_ep.so", "--through", "direct"]

    said = process("plugins", "check", *library, path=[tmp_path])

    assert (said.code, said.out) == (3, "")
    assert said.err == (
        "error: `epctx plugins check --ep` needs the package epctx-onnxruntime, which "
        f"is not installed.\n  {pip_install('epctx-onnxruntime')}\n"
    )
    signatures = ["QNN", "--only", "signatures"]
    assert process("plugins", "check", *signatures, path=[tmp_path]).code == 0


def test_without_the_conformance_kit_the_command_says_what_is_missing_and_how_to_install_it(
    process, tmp_path
):
    hide_package("epctx_conformance", tmp_path)

    said = process("plugins", "check", "QNN", path=[tmp_path])

    assert (said.code, said.out) == (3, "")
    assert said.err == (
        "error: `epctx plugins check` needs the package epctx-conformance, which is "
        f"not installed.\n  {pip_install('epctx-conformance')}\n"
    )
    assert process("plugins", "list", path=[tmp_path]).code == 0
