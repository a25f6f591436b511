"""Rules of features: each is one place, and costs nothing where it is off."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
from support.small_models import chain, saved

import epctx_core
from epctx_core.feature_table import FEATURES, METHODS, PARTS
from epctx_core.sessions.stages import CORE, Stages, make_stages

pytestmark = pytest.mark.internal

CORE_FOLDER = Path(epctx_core.__file__).parent
LOAD = """
import sys
import epctx_core as epctx

options = epctx.SessionOptions()
options.add_session_config_entry("ep.context_verify", "full")
epctx.InferenceSession(sys.argv[1], options).close()
print([name for name in sys.modules if name.startswith("epctx_core.features")])
"""


def configured(**entries):
    """Return the options of a host that set some entries."""
    options = epctx_core.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(f"ep.{key}", value)
    return options.config()


def test_a_session_without_an_option_of_a_feature_asks_the_core():
    assert make_stages(configured()) is CORE
    assert make_stages(configured(context_verify="full")) is CORE


def test_features_that_are_on_are_around_each_other_in_the_order_of_the_table():
    config = configured(optional_providers="QNN", on_compile_failure="next")

    stages = make_stages(config)

    assert [cls.__name__ for cls in type(stages).__mro__[1:]] == [
        "OptionalProviders",
        "CompileFailures",
        "Stages",
        "object",
    ]


def test_a_mark_of_a_model_switches_a_feature_on_without_an_option():
    (feature,) = [each for each in FEATURES if "source_weights" in each.marks]

    stages = make_stages(configured(), ["source_weights"])

    assert resolve_name(feature.stages) in type(stages).__mro__
    assert make_stages(configured(), ["other"]) is CORE


def test_each_key_of_the_manifest_switches_the_feature_on_that_owns_it():
    marks = [mark for feature in FEATURES for mark in feature.marks]

    assert {key: marks.count(key) for key in PARTS} == dict.fromkeys(PARTS, 1)


def test_what_the_tables_name_is_there():
    places = [*PARTS.values(), *METHODS.values()]

    assert all(callable(resolve_name(place)) for place in places)
    assert all(hasattr(resolve_name(METHODS[name]), name) for name in METHODS)


def test_a_load_imports_no_feature_that_is_off(tmp_path):
    model = saved(chain(["Relu"]), tmp_path / "m.onnx")

    done = subprocess.run(
        [sys.executable, "-c", LOAD, model], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


OPTIONS = {feature.option or "read_back": feature.stages for feature in FEATURES}
"""Each feature by its option; that of one that a mark switches on, it reads itself."""


@pytest.mark.parametrize(("option", "place"), OPTIONS.items())
def test_the_option_of_a_feature_is_read_by_it_alone(option, place):
    own = Path(resolve_name(place.partition(":")[0]).__file__)
    readers = {
        path
        for path in CORE_FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == option
    }

    assert readers <= {own, CORE_FOLDER / "options" / "session_options.py"}


def test_only_the_table_names_features():
    named = {
        path.relative_to(CORE_FOLDER).as_posix()
        for path in CORE_FOLDER.rglob("*.py")
        if "epctx_core.features" in path.read_text()
    }

    assert named == {"feature_table.py"}


def test_no_feature_overrides_more_than_six_decisions():
    decisions = [name for name in vars(Stages) if not name.startswith("_")]
    assert len(decisions) <= 14

    for feature in FEATURES:
        own = [name for name in decisions if name in vars(resolve_name(feature.stages))]
        assert 0 < len(own) <= 6
