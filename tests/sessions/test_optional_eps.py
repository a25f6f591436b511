"""Optional EPs: a host goes without them, and is told why; every other EP that cannot
be had is an error.
"""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from support.command_line import main
from support.engine_eps import Alpha
from support.installed import install_distribution
from support.small_models import chain, example, saved

import epctx_core as epctx
from epctx_core.plugin import Availability, Purpose

CPU = "CPUExecutionProvider"
X = {"x": example()}


def lacking(*purposes):
    """Return Alpha on a machine that lacks what these purposes need."""

    def availability(asked):
        return Availability(
            asked not in purposes,
            reason="libalpha.so is missing",
            hint="Install the driver.",
        )

    return type("Lame", (Alpha,), {"availability": staticmethod(availability)})


def registry_with(*classes):
    registry = epctx.Registry(entry_points=False)
    for cls in classes:
        registry.register(cls)
    return registry


def with_optional(*names):
    options = epctx.SessionOptions()
    for name in names:
        options.add_provider(name, optional=True)
    return options


@pytest.fixture
def source(tmp_path):
    return saved(chain(["Relu", "Add", "Relu"]), tmp_path / "m.onnx")


@pytest.fixture
def on_cpu(source):
    with epctx.InferenceSession(source) as session:
        return session.run(None, X)


def test_a_session_goes_without_an_optional_ep_that_is_unavailable(
    source, on_cpu, caplog
):
    lame = lacking(Purpose.RUN)

    with epctx.InferenceSession(
        source, with_optional(lame.name), registry=registry_with(lame)
    ) as session:
        result = session.run(None, X)
        names = session.get_providers()

    assert names == [CPU]
    np.testing.assert_array_equal(result, on_cpu)
    (said,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert said.name == "epctx.providers"
    assert f"the optional EP {lame.name} is skipped" in said.getMessage()
    assert "libalpha.so is missing" in said.getMessage()


def test_the_same_ep_is_an_error_where_the_host_did_not_call_it_optional(source):
    lame = lacking(Purpose.RUN)
    options = epctx.SessionOptions()
    options.add_provider(lame.name)

    with pytest.raises(
        epctx.NotImplementedByProvider, match=r"libalpha\.so is missing"
    ):
        epctx.InferenceSession(source, options, registry=registry_with(lame))


def test_an_optional_ep_that_is_available_is_used(source):
    registry = registry_with(Alpha)

    with epctx.InferenceSession(
        source, with_optional(Alpha.name), registry=registry
    ) as session:
        assert session.get_providers() == [Alpha.name, CPU]


def test_a_compile_reports_the_optional_eps_that_it_went_without_and_why(source):
    lame = lacking(Purpose.EXPORT)
    options = with_optional(lame.name, "Nowhere")

    report = epctx.ModelCompiler(
        options, source, registry=registry_with(lame)
    ).compile_to_file()

    first, second = report.skipped_providers
    assert (first.name, first.hint) == (lame.name, "Install the driver.")
    assert "libalpha.so is missing" in first.reason
    assert (
        "no installed plugin provides the Execution Provider 'Nowhere'" in second.reason
    )
    assert report.as_dict()["skipped_providers"][0] == first.as_dict()
    assert report.partitions == ()


def test_only_the_purpose_at_hand_counts(source):
    lame = lacking(Purpose.RUN, Purpose.LOAD)
    registry, options = registry_with(lame), with_optional(lame.name)

    report = epctx.ModelCompiler(options, source, registry=registry).compile_to_file()

    assert report.skipped_providers == ()
    assert report.assignments[lame.name] > 0


def test_a_broken_optional_plugin_is_skipped_with_its_reason(
    source, tmp_path, monkeypatch, caplog
):
    entries = {"BrokenExecutionProvider": "no_such_module:Provider"}
    install_distribution(
        tmp_path / "site", "broken", {"epctx.execution_providers": entries}
    )
    monkeypatch.syspath_prepend(tmp_path / "site")

    with epctx.InferenceSession(
        source, with_optional("Broken"), registry=epctx.Registry()
    ) as session:
        assert session.get_providers() == [CPU]

    assert "No module named 'no_such_module'" in caplog.text


def test_the_argument_providers_takes_optional_eps_by_the_session_option(source):
    options = epctx.SessionOptions()
    options.add_session_config_entry("ep.optional_providers", "nowhere, Absent")
    providers = [
        "NowhereExecutionProvider",
        ("Absent", {"level": "3"}),
        "AlphaExecutionProvider",
    ]

    session = epctx.InferenceSession(
        source, options, providers, registry=registry_with(Alpha)
    )

    with session:
        assert session.get_providers() == [Alpha.name, CPU]


def test_options_of_an_absent_optional_ep_are_let_pass_in_session_entries(source):
    options = with_optional("Nowhere")
    options.add_session_config_entry("ep.nowhereexecutionprovider.level", "3")

    with epctx.InferenceSession(source, options, registry=registry_with()) as session:
        assert session.get_providers() == [CPU]


def test_a_wrong_option_is_an_error_for_an_optional_ep_too(source):
    options = epctx.SessionOptions()
    options.add_provider(Alpha.name, {"no_such_option": "1"}, optional=True)

    with pytest.raises(epctx.InvalidArgument, match="no_such_option"):
        epctx.InferenceSession(source, options, registry=registry_with(Alpha))


def test_a_name_that_is_optional_but_not_asked_for_is_refused_with_a_suggestion(source):
    options = epctx.SessionOptions()
    options.add_provider(Alpha.name)
    options.add_session_config_entry("ep.optional_providers", "AlphExecutionProvider")

    with pytest.raises(
        epctx.InvalidArgument, match="Did you mean 'AlphaExecutionProvider'"
    ):
        epctx.InferenceSession(source, options, registry=registry_with(Alpha))


def test_nodes_of_a_skipped_ep_cannot_be_loaded_and_the_error_says_why_it_was_skipped(
    source, tmp_path
):
    made = registry_with(Alpha)
    epctx.ModelCompiler(
        with_optional(Alpha.name), source, registry=made
    ).compile_to_file(tmp_path / "m_ctx.onnx")
    lame = lacking(Purpose.LOAD)

    with pytest.raises(
        epctx.NotImplementedByProvider, match=r"skipped: .* libalpha\.so is missing"
    ) as caught:
        epctx.InferenceSession(
            tmp_path / "m_ctx.onnx",
            with_optional(lame.name),
            registry=registry_with(lame),
        )

    assert caught.value.node
    assert caught.value.hint == "Install the driver."


def warnings_of(caplog, act):
    """Return what is logged about optional EPs while something is done."""
    caplog.clear()
    act()
    return [
        r.getMessage() for r in caplog.records if "the optional EP" in r.getMessage()
    ]


@pytest.mark.parametrize("others", [[Alpha], []], ids=["beside another", "alone"])
@pytest.mark.parametrize(
    "lame", [lacking(*Purpose), None], ids=["unavailable", "absent"]
)
def test_each_call_to_the_cache_says_once_what_it_goes_without(
    source, tmp_path, caplog, others, lame
):
    lame = lame and type("Lame", (lame,), {"name": "LameExecutionProvider"})
    name = lame.name if lame else "Nowhere"
    registry, options = (
        registry_with(*others, *filter(None, [lame])),
        with_optional(name),
    )
    for other in others:
        options.add_provider(other.name)

    def load():
        epctx.load_or_compile(
            source, options, tmp_path / "cache", registry=registry
        ).close()

    def find():
        epctx.compile_cached(source, options, tmp_path / "cache", registry=registry)

    said = {"compiled": warnings_of(caplog, load), "found": warnings_of(caplog, load)}
    said["path"] = warnings_of(caplog, find)

    assert {way: len(texts) for way, texts in said.items()} == {
        "compiled": 1,
        "found": 1,
        "path": 1,
    }
    assert all(
        f"the optional EP {name} is skipped" in text
        for texts in said.values()
        for text in texts
    )


def test_an_optional_ep_that_can_compile_but_not_load_is_named_by_the_load_out_of_the_cache(
    source, tmp_path, caplog
):
    lame = lacking(Purpose.LOAD, Purpose.RUN)

    def load():
        with pytest.raises(epctx.NotImplementedByProvider):
            epctx.load_or_compile(
                source,
                with_optional(lame.name),
                tmp_path / "cache",
                registry=registry_with(lame),
            )

    (said,) = warnings_of(caplog, load)

    assert "cannot load on this machine" in said


def test_a_share_group_goes_without_an_optional_ep(source):
    options = with_optional("QNN", "Nowhere")

    with epctx.ShareGroup() as group:
        group.compile(source, options)

    assert [skip.name for skip in group.report.members[0].skipped_providers] == [
        "Nowhere"
    ]


def test_the_command_line_spells_it_the_same_way(source, capsys):
    command = ["compile", str(source), "--ep", "QNN", "--ep", "Nowhere"]

    without = main([*command, "--json"])
    capsys.readouterr()
    code = main([*command, "-c", "ep.optional_providers=Nowhere", "--json"])
    printed = capsys.readouterr()

    assert (without, code) == (3, 0)
    assert json.loads(printed.out)["skipped_providers"][0]["name"] == "Nowhere"
    assert "the optional EP Nowhere is skipped" in printed.err


def test_the_command_line_runs_without_an_optional_ep(source, capsys):
    code = main(
        [
            "run",
            str(source),
            "--ep",
            "Nowhere",
            "--ep",
            "QNN",
            "-c",
            "ep.optional_providers=Nowhere",
        ]
    )

    assert code == 0
    assert "the optional EP Nowhere is skipped" in capsys.readouterr().err
