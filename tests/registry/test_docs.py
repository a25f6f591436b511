"""plugins.md says all that the code has, and its examples run."""

from __future__ import annotations

import re

import pytest
from support.engine_eps import Alpha
from support.folders import ROOT
from support.pages import read_page
from support.small_models import chain, saved

import epctx_core as epctx

TEXT = read_page("plugins.md")


def test_each_state_has_a_heading_and_nothing_else_has():
    headings = re.findall(r"^### (.+)$", TEXT, flags=re.MULTILINE)

    assert sorted(headings) == sorted(state.value for state in epctx.PluginState)


def test_the_table_says_truly_which_states_are_usable():
    rows = re.findall(r"^\| ([a-z, -]+) \| (yes|no)", TEXT, flags=re.MULTILINE)
    said = {
        state: answer == "yes"
        for states, answer in rows
        for state in states.split(", ")
    }

    records = [
        epctx.PluginRecord(
            name="A",
            sources=(),
            distribution="a",
            version="1",
            state=state,
            entry_point="",
        )
        for state in epctx.PluginState
    ]
    assert said == {record.state.value: record.usable for record in records}


def test_each_variable_that_chooses_plugins_or_the_engine_is_in_the_table_and_no_other():
    rooms = [ROOT / "epctx_core" / name for name in ("registry", "engines")]
    sources = "".join(
        path.read_text("utf-8") for room in rooms for path in room.glob("*.py")
    )
    documented = set(re.findall(r"^\| `(EPCTX_\w+)` \|", TEXT, flags=re.MULTILINE))

    assert documented == set(
        re.findall(r'= "(EPCTX_\w+)"$', sources, flags=re.MULTILINE)
    )
    assert len(documented) == 6


@pytest.mark.parametrize(
    "code",
    re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE),
)
def test_each_example_runs(code, tmp_path, monkeypatch):
    saved(chain(["Relu"]), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    acme = type("AcmeProvider", (Alpha,), {"name": "AcmeExecutionProvider"})
    names = {"epctx": epctx, "AcmeProvider": acme}

    exec(code, names)  # noqa: S102 - our own text

    if "session" in names:
        assert names["session"].get_providers() == [
            "AcmeExecutionProvider",
            "CPUExecutionProvider",
        ]
        names["session"].close()
    assert "AcmeExecutionProvider" not in epctx.get_available_providers()
