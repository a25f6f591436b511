"""Mistakes in an EP's class that the registry accepts and the kit names."""

from __future__ import annotations

import pytest
from epctx_conformance.class_rules import find_mistakes

from epctx_core.plugin import ExecutionProvider, ProviderOption, hookimpl

pytestmark = pytest.mark.internal


class Valid(ExecutionProvider):
    name = "ValidExecutionProvider"

    @hookimpl
    def get_capability(self, ep, graph):
        return []

    @hookimpl
    def compile(self, partitions):
        return []


def mistake(**attributes):
    """Return the only mistake of a class, and its hint."""
    [found] = find_mistakes(type("Changed", (Valid,), attributes))
    return found


def test_a_valid_class_has_none():
    assert list(find_mistakes(Valid)) == []


def test_a_hook_and_an_override_without_their_marks_are_named():
    def compile_(self, partitions):
        return []

    def shutdown(self):
        pass

    fault, hint = mistake(compile=compile_)

    assert fault.startswith("compile has a hook's name but no @hookimpl")
    assert "@hookimpl" in hint
    assert "no @hookimpl" in mistake(shutdown=shutdown)[0]
    assert "no @hookimpl" in mistake(shutdown=property(hookimpl(shutdown)))[0]


def test_a_hook_set_to_none_is_a_hook_left_out():
    assert list(find_mistakes(type("Changed", (Valid,), {"shutdown": None}))) == []


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        ({"vendor": None}, "vendor is None, not of type str"),
        ({"binary_suffix": None}, "binary_suffix is None, not of type str"),
        ({"simulated": "yes"}, "simulated is 'yes', not of type bool"),
        (
            {"needs_verified_payloads": "sometimes"},
            "needs_verified_payloads is 'sometimes', not of type bool",
        ),
        ({"environment": "ACME_TARGET"}, "environment is 'ACME_TARGET', no tuple"),
        ({"environment": None}, "environment is None, no tuple"),
    ],
)
def test_an_attribute_of_another_type_is_named(attributes, fault):
    assert mistake(**attributes)[0] == fault


def test_an_option_of_another_ones_name_is_named():
    option = ProviderOption("level", int, default=1, doc="How hard to try.")

    assert mistake(options=(option, option))[0] == "option name 'level' is used twice"


@pytest.mark.parametrize("options", [{"wrapper": True}, {"hookwrapper": True}])
def test_a_wrapper_is_named(options):
    def on_run_start(self, ep, tag):
        return (yield)

    fault, _ = mistake(on_run_start=hookimpl(on_run_start, **options))

    assert "is a hook wrapper" in fault


@pytest.mark.parametrize("mark", ["tryfirst", "trylast", "optionalhook"])
def test_a_mark_without_effect_is_named(mark):
    method = hookimpl(**{mark: True})(lambda self, partitions: [])

    assert f"marked with {mark}" in mistake(compile=method)[0]


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (lambda self, partition: [], "takes 'partition', which the hook does not give"),
        (lambda self, partitions=(): [], "has a default for 'partitions'"),
        (lambda self, *partitions: [], "takes *partitions"),
        (lambda self, **partitions: [], "takes **partitions"),
        (lambda self, *, partitions: [], "takes 'partitions' by keyword only"),
    ],
)
def test_an_argument_that_would_not_be_passed_is_named(method, why):
    fault, hint = mistake(compile=hookimpl(method))

    assert why in fault
    assert "Arguments of compile: ep, partitions" in hint


def test_an_unknown_argument_is_named_with_the_nearest_one():
    _, hint = mistake(compile=hookimpl(lambda self, partition: []))

    assert "Did you mean 'partitions'?" in hint


def test_hooks_that_would_do_nothing_when_called_are_named():
    async def compile_(self, partitions):
        return []

    def shutdown(self):
        yield

    assert "compile is async" in mistake(compile=hookimpl(compile_))[0]
    assert "shutdown has a yield" in mistake(shutdown=hookimpl(shutdown))[0]


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("keeps_functions", [("mine",)]),
        ("keeps_functions", [("mine", 1)]),
        ("keeps_functions", [["mine", "Scaled"]]),
        ("keeps_functions", [7]),
        ("environment", (7,)),
        ("environment", ("",)),
        ("weightless_modes", (1,)),
        ("weightless_modes", ("all",)),
        ("factory", ("make", {})),
        ("factory", ("module:make", [])),
        ("factory", ("module:make",)),
        ("factory", (7, {})),
    ],
)
def test_an_attribute_with_wrong_items_is_named(attribute, value):
    fault, _ = mistake(**{attribute: value})

    assert fault.startswith(attribute)
