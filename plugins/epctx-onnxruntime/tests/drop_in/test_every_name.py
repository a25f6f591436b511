"""A program that uses every public name of onnxruntime gives the same results under the
drop-in, or a difference that is listed.
"""

from __future__ import annotations

import inspect
import re

import epctx_onnxruntime
import onnxruntime
import pytest
from drop_in import table
from drop_in.differences import DIFFERENCES
from epctx_onnxruntime.drop_in.names import SUBPACKAGES

pytestmark = pytest.mark.internal

NEWEST = (1, 32)
"""Version whose names the drop-in has."""

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < NEWEST,
    reason="an older onnxruntime lacks some of the names",
)
PYTHON_CLASSES = ("InferenceSession", "IOBinding", "ModelCompiler")
"""Those that onnxruntime defines in Python, which have signatures."""


@pytest.fixture(scope="session")
def real():
    return table.run_program()


@pytest.fixture(scope="session")
def ours():
    return table.run_program(*table.DROP_IN)


def public_names() -> set[str]:
    """Return the public names of onnxruntime, with the attributes of its classes."""
    names = {
        name
        for name in dir(onnxruntime)
        # Packages within it are there once somebody has imported them.
        if not name.startswith("_") and (name == "capi" or name not in SUBPACKAGES)
    }
    for name in list(names):
        cls = getattr(onnxruntime, name)
        if inspect.isclass(cls):
            inherited = dir(int) if issubclass(cls, int) else ()
            names |= {
                f"{name}.{attribute}"
                for attribute in dir(cls)
                if not attribute.startswith("_") and attribute not in inherited
            }
    return names


def test_every_public_name_is_used(real):
    assert public_names() - set(real) == set()
    assert {use.partition(": ")[0] for use in real} - public_names() <= {
        # Attributes of instances alone.
        "OrtDeviceVendorId.name",
        "OrtDeviceVendorId.value",
    }


def test_every_use_works_under_onnxruntime(real):
    assert [use for use, result in real.items() if table.is_error(result)] == []


def test_both_runs_have_the_same_uses(real, ours):
    assert list(real) == list(ours)


def test_results_are_the_same_or_the_difference_is_listed(real, ours):
    differing = {use for use in real if not table.agrees(real[use], ours[use])}

    unlisted = sorted(differing - set(DIFFERENCES))
    assert [(use, real[use], ours[use]) for use in unlisted] == []
    assert sorted(set(DIFFERENCES) - differing) == []


def test_what_is_not_supported_is_an_error_of_epctx_that_says_why(ours):
    errors = {use: result for use, result in ours.items() if table.is_error(result)}

    assert {use for use, error in errors.items() if not error["of epctx"]} == set()
    assert {use for use, error in errors.items() if len(error["message"]) < 40} == set()


def test_no_error_is_a_bare_attribute_error(ours):
    def bare(result):
        if isinstance(result, list):
            return any(map(bare, result))
        if not isinstance(result, dict):
            return False
        return result.get("error") == "AttributeError" or result.get("caught as") == [
            "AttributeError"
        ]

    assert [use for use, result in ours.items() if bare(result)] == []


@pytest.mark.parametrize("name", PYTHON_CLASSES)
def test_methods_take_the_arguments_of_onnxruntimes_by_place_and_by_name(name):
    theirs, own = getattr(onnxruntime, name), getattr(epctx_onnxruntime, name)
    wrong = []
    for method, function in inspect.getmembers(theirs, inspect.isfunction):
        if method.startswith("_") and method != "__init__":
            continue
        arguments = inspect.signature(function).parameters.values()
        place = [object() for a in arguments if a.kind is a.POSITIONAL_OR_KEYWORD]
        named = {
            a.name: object()
            for a in list(arguments)[1:]
            if a.kind in (a.POSITIONAL_OR_KEYWORD, a.KEYWORD_ONLY)
        }
        signature = inspect.signature(getattr(own, method))
        try:
            signature.bind(*place)
            signature.bind(object(), **named)
        except TypeError as error:
            wrong.append((method, str(error)))

    assert wrong == []


@pytest.mark.parametrize(
    "name",
    [
        "OrtEpContextData",
        "OrtEpContextDataBuffer",
        "OrtEpDevice",
        "RunOptions",
        "SessionOptions",
    ],
)
def test_arguments_that_onnxruntimes_documentation_names_have_these_names(name):
    theirs, own = getattr(onnxruntime, name), getattr(epctx_onnxruntime, name)
    wrong = []
    for method in (m for m in dir(theirs) if not m.startswith("_")):
        text = (getattr(theirs, method).__doc__ or "").partition(" -> ")[0]
        if not text.startswith(f"{method}(self"):
            continue
        named = [
            each
            for each in re.findall(r"[(,] ?([a-z_]+): ", text)
            if each != "self" and not each.startswith("arg")
        ]
        try:
            inspect.signature(getattr(own, method)).bind_partial(
                None, **dict.fromkeys(named)
            )
        except TypeError as error:
            wrong.append((method, str(error)))

    assert wrong == []


def test_a_result_that_differs_is_noticed():
    caught = {"caught as": ["ValueError"]}

    assert table.agrees([caught], [{"caught as": ["KeyError", "ValueError"]}])
    assert not table.agrees([caught], ["no error"])
    assert not table.agrees(["no error"], [caught])
    assert not table.agrees([1], [1, 1])
    assert not table.agrees(caught, {"error": "ValueError"})


def test_the_page_has_the_table_of_this_run():
    page = table.PAGE.read_text("utf-8")

    assert table.with_table(page) == page, "run `make tables`"
