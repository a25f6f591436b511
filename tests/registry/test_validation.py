"""The check of an EP's class: each mistake an author can make is named, with what to
do.
"""

from __future__ import annotations

import functools

import pytest
from support.packages import PROVIDER
from support.small_models import chain

from epctx_core import InferenceSession, Registry
from epctx_core.errors import PluginError
from epctx_core.plugin import ExecutionProvider, ProviderOption, Purpose, hookimpl


class Valid(ExecutionProvider):
    name = "ValidExecutionProvider"
    options = (ProviderOption("level", int, default=1, doc="How hard to try."),)

    @hookimpl
    def get_capability(self, ep, graph):
        return []

    @hookimpl
    def compile(self, partitions):
        return []


def changed(**attributes):
    return type("Changed", (Valid,), attributes)


def without(*names):
    kept = {
        key: value
        for key, value in vars(Valid).items()
        if key not in (*names, "__dict__", "__weakref__")
    }
    return type("Changed", (ExecutionProvider,), kept)


class Unbound:
    """Something callable that is no method."""

    def __call__(self, partitions):
        return []


def through(decorator):
    def mark(function):
        return hookimpl(decorator(function))

    return mark


def passing_on(function):
    @functools.wraps(function)
    def inner(*arguments, **more):
        return function(*arguments, **more)

    return inner


def registered(cls):
    """Return the record of a class that passes the check."""
    registry = Registry(entry_points=False)
    registry.register(cls)
    return registry.resolve(cls.name)


def error_of(cls):
    """Return the error for a class with a single mistake."""
    with pytest.raises(PluginError) as caught:
        registered(cls)
    assert ";" not in caught.value.message
    return caught.value


def test_a_valid_class_has_no_problem():
    assert registered(Valid).usable


@pytest.mark.parametrize("hook", ["get_capability", "compile"])
def test_a_missing_required_hook_is_named(hook):
    assert error_of(without(hook)).message.endswith(
        f": the required hook {hook} is missing."
    )


def test_a_hook_set_to_none_is_a_hook_left_out():
    with_shutdown = changed(shutdown=hookimpl(lambda self: None))
    quiet = type("Quiet", (with_shutdown,), {"shutdown": None})

    registry = Registry(entry_points=False)
    registry.register(quiet)
    with InferenceSession(
        chain(["Relu"]).SerializeToString(), providers=["Valid"], registry=registry
    ) as session:
        assert session.get_providers() == [
            "ValidExecutionProvider",
            "CPUExecutionProvider",
        ]


def test_a_misspelt_hook_is_named_with_the_nearest_one():
    error = error_of(changed(load_contxt=hookimpl(lambda self, nodes: [])))

    assert "there is no hook 'load_contxt'" in error.message
    assert "Did you mean 'load_context'?" in error.hint


@pytest.mark.parametrize(
    "options", [{"specname": "shutdwn"}, {"specname": "shutdwn", "optionalhook": True}]
)
def test_a_misspelt_hook_is_named_also_where_pluggy_would_let_it_pass(options):
    error = error_of(changed(release=hookimpl(lambda self: None, **options)))

    assert "there is no hook 'shutdwn'" in error.message


def test_a_hook_may_be_implemented_under_another_name_but_only_once():
    once = changed(release=hookimpl(lambda self: None, specname="shutdown"))
    twice = changed(release=hookimpl(lambda self, partitions: [], specname="compile"))

    assert registered(once).usable
    with pytest.raises(PluginError) as caught:
        registered(twice)
    assert "it implements compile more than once" in caught.value.message


@pytest.mark.parametrize("name", ["validate_compatibility", "get_compatibility_info"])
def test_a_class_method_marked_as_a_hook_is_named(name):
    method = classmethod(lambda cls, *, info=None, options=None: None)
    method.__func__.epctx_impl = {}

    error = error_of(changed(**{name: method}))

    assert f"there is no hook {name!r}" in error.message


def test_a_class_method_without_its_decorator_is_a_fault_of_the_plugin_when_called():
    registry = Registry(entry_points=False)
    registry.register(changed(availability=lambda self, purpose: True))

    with pytest.raises(PluginError, match="failed in availability: TypeError"):
        registry.availability(registry.resolve("Valid"), Purpose.RUN)


@pytest.mark.parametrize(
    "decorated",
    [
        staticmethod(hookimpl(lambda partitions: [])),
        hookimpl(staticmethod(lambda partitions: [])),
        classmethod(hookimpl(lambda cls, partitions: [])),
        through(passing_on)(lambda self, partitions: []),
        hookimpl(lambda this, ep, partitions: []),
    ],
    ids=[
        "static",
        "static marked outside",
        "class method",
        "decorated",
        "other name for self",
    ],
)
def test_the_usual_forms_of_a_method_are_hooks(decorated):
    assert registered(changed(compile=decorated)).usable


def test_a_property_is_not_evaluated_and_is_no_hook():
    def explode(self):
        raise AssertionError("evaluated")

    assert registered(changed(device=property(explode))).usable
    assert registered(changed(shutdown=property(hookimpl(explode)))).usable


def test_an_object_that_answers_to_every_attribute_is_not_taken_for_a_hook():
    class Anything:
        def __getattr__(self, name):
            return {}

        def __call__(self):
            raise AssertionError("called")

    assert registered(changed(log=Anything())).usable


@pytest.mark.parametrize("name", [None, "", 7, "QNN/../x", "a b", "über"])
def test_a_name_that_can_not_be_a_source_or_part_of_a_file_name_is_refused(name):
    assert "name is" in error_of(changed(name=name)).message


def test_a_class_without_a_name_is_refused():
    assert "name is None" in error_of(without("name")).message


@pytest.mark.parametrize("suffix", ["../x", "a/b", 3])
def test_a_binary_suffix_that_can_not_be_part_of_a_file_name_is_refused(suffix):
    assert "binary_suffix is" in error_of(changed(binary_suffix=suffix)).message


@pytest.mark.parametrize("version", ["1", 0, -1, None, True, 1.0])
def test_an_api_version_that_is_no_number_is_refused(version):
    assert "api_version is" in error_of(changed(api_version=version)).message


@pytest.mark.parametrize("options", [Valid.options[0], {"level": 1}, None])
def test_options_that_are_no_sequence_are_refused(options):
    error = error_of(changed(options=options))

    assert "options is" in error.message
    assert "not of type tuple or list" in error.message


@pytest.mark.parametrize(
    "option",
    [
        "level",
        ProviderOption(7, int, default=1, doc=""),
        ProviderOption("n", list, default=None, doc=""),
        ProviderOption("n", "int", default=None, doc=""),
        ProviderOption("n", int, default=[], doc=""),
        ProviderOption("n", int, default=1, choices=5, doc=""),
        ProviderOption("n", int, default=1, doc=None),
    ],
)
@pytest.mark.parametrize("attribute", ["options", "dynamic_options"])
def test_an_option_that_cannot_parse_what_a_host_sets_is_refused(attribute, option):
    error = error_of(changed(**{attribute: (option,)}))

    assert f"{attribute} holds {option!r}"[:100] in error.message
    assert "which is not a ProviderOption that a host can set" in error.message


def test_an_option_may_be_unset_and_a_number_whole():
    option = ProviderOption("a", float, default=1, choices=(1, 2.5), doc="A factor.")
    unset = ProviderOption("b", str, default=None, choices=("x",), doc="A mode.")

    assert registered(changed(options=(option, unset))).usable


def test_the_first_problem_is_told_with_what_to_do():
    cls = changed(load_contxt=hookimpl(lambda self, nodes: []))

    with pytest.raises(
        PluginError, match="is not a valid Execution Provider: "
    ) as caught:
        registered(cls)

    error = caught.value
    assert "there is no hook 'load_contxt'" in error.message
    assert "Did you mean 'load_context'?" in error.hint


def test_the_error_about_a_class_of_another_name_says_who_brings_it(packages):
    packages.install("epctx-test", "Other", version="1.2", value="epctx_test:Provider")
    packages.write_module("epctx_test", PROVIDER.format(name="Changed", body=""))
    registry = Registry()

    with pytest.raises(PluginError) as caught:
        registry.load(registry.resolve("Other"))

    error = caught.value
    assert "Other (epctx-test 1.2)" in error.message
    assert "its name is 'Changed', but it was found as 'Other'" in error.message
    assert (error.ep, error.distribution, error.version) == (
        "Other",
        "epctx-test",
        "1.2",
    )


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        (lambda self, partition: [], "PluginValidationError"),
        (Unbound(), "Unbound"),
    ],
)
def test_a_hook_that_cannot_be_called_is_a_fault_of_the_plugin_when_a_session_makes_one(
    method, fault
):
    registry = Registry(entry_points=False)
    registry.register(changed(compile=hookimpl(method)))

    with pytest.raises(PluginError) as caught:
        InferenceSession(
            chain(["Relu"]).SerializeToString(), providers=["Valid"], registry=registry
        )

    assert "Changed" not in caught.value.message
    assert caught.value.ep == "ValidExecutionProvider"
    assert fault in caught.value.message
