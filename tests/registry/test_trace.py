"""EPCTX_TRACE: a line for each call of a hook, and nothing at all when it is off."""

from __future__ import annotations

import logging
import re
import sys
import threading

import numpy as np
import pytest
from registry.providers import ep, raising
from support.engine_eps import Alpha
from support.small_models import chain

import epctx_core as epctx
from epctx_core.errors import EPFail


@pytest.fixture
def tracing(monkeypatch):
    monkeypatch.setenv("EPCTX_TRACE", "1")


def lines(capsys):
    """Return what was written, without durations, which are checked to be there."""
    written = capsys.readouterr().err.splitlines()
    assert all(
        re.fullmatch(r"epctx\.trace: .* \[\d+\.\d{3} ms\]", line) for line in written
    ), written
    return [re.sub(r"^epctx\.trace: (.*) \[.* ms\]$", r"\1", line) for line in written]


def test_each_call_is_a_line_with_ep_hook_arguments_and_result(
    tracing, session, capsys
):
    instances = session(ep("A"), ep("B", on_run_start=lambda self, tag: None))

    instances.call("A", "compile", partitions=["p", "q"])
    instances.call("B", "on_run_start", tag="warm-up")

    assert lines(capsys) == [
        "A.compile(partitions=[2 str]) -> [2 tuple]",
        "B.on_run_start(tag='warm-up') -> None",
    ]


def test_a_call_that_fails_is_a_line_with_the_exception_that_passes_unchanged(
    tracing, session, capsys
):
    instances = session(ep("A", compile=raising(ValueError("no memory"))))

    with pytest.raises(EPFail, match="no memory") as caught:
        instances.call("A", "compile", partitions=[])

    (line,) = lines(capsys)
    assert line.startswith(
        "A.compile(partitions=[]) raised EPFail: A (epctx-test 1.2) failed in compile"
    )
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_whole_session_is_traced_to_the_end(tracing, capsys):
    registry = epctx.Registry(entry_points=False)
    registry.register(Alpha)
    model = chain(["Relu", "Sigmoid", "Relu"]).SerializeToString()

    with epctx.InferenceSession(
        model, providers=["Alpha"], registry=registry
    ) as session:
        session.run(None, {"x": np.ones((2, 3), np.float32)})

    said = lines(capsys)
    assert [line.partition("(")[0] for line in said] == [
        "AlphaExecutionProvider.get_capability",
        "AlphaExecutionProvider.compile",
    ]
    assert "partitions=[2 GraphPartition]) -> [2 CompiledPartition]" in said[1]


def test_where_the_host_logs_such_lines_its_log_gets_them(
    tracing, session, capsys, caplog
):
    caplog.set_level(logging.INFO, logger="epctx.trace")
    instances = session(ep("A"))

    instances.call("A", "compile", partitions=[])

    assert "A.compile(partitions=[]) -> []" in caplog.text
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("value", [None, "", "0"])
def test_when_it_is_off_there_is_no_line(monkeypatch, session, capsys, value):
    monkeypatch.delenv("EPCTX_TRACE", raising=False)
    if value is not None:
        monkeypatch.setenv("EPCTX_TRACE", value)
    instances = session(ep("A"))

    instances.call("A", "compile", partitions=[])

    assert capsys.readouterr().err == ""


class Absent:
    """Python's own answer where the package is not installed."""

    @staticmethod
    def find_spec(name, *_):
        if name == "epctx_conformance":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_without_the_package_that_tells_them_the_request_is_an_error(
    tracing, monkeypatch
):
    for name in [name for name in sys.modules if name.startswith("epctx_conformance")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])

    with pytest.raises(
        epctx.errors.PackageMissing,
        match="EPCTX_TRACE needs the package epctx-conformance",
    ):
        epctx.InferenceSession(chain(["Relu"]).SerializeToString())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"password": "hunter2"}, "{password}"),
        ("x" * 1000, f"'{'x' * 60}…'"),
        ((1, 2, 3), "(1, 2, 3)"),
        (list(range(1000)), "[1000 int]"),
        ([], "[]"),
        ([1, "a", None], "[3 int | str | NoneType]"),
        (bytes(1000), "bytes"),
        (np.zeros(1000), "ndarray"),
        (np.dtype("float32"), "Float32DType"),
        (None, "None"),
        (True, "True"),
        (threading.Event(), "Event"),
    ],
)
def test_arguments_are_abbreviated_and_no_value_of_an_option_is_shown(
    value, text, tracing, session, capsys
):
    session(ep("A", on_run_start=lambda self, tag: None)).call(
        "A", "on_run_start", tag=value
    )

    assert lines(capsys) == [f"A.on_run_start(tag={text}) -> None"]
