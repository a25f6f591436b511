"""The check of an EP's class: each mistake an author can make is named, with what to do."""

from __future__ import annotations

import functools

import pytest

from epctx_core.errors import PluginError
from epctx_core.plugin import ExecutionProvider, ProviderOption, hookimpl
from epctx_core.plugin.hookspecs import CLASS_METHODS, HOOKS
from epctx_core.registry.loading import check_provider_class, find_problems, implemented_hooks


class Valid(ExecutionProvider):
    name = "ValidExecutionProvider"
    options = (ProviderOption("level", int, default=1, doc="How hard to try."),)

    @hookimpl
    def get_capability(self, ep, graph, kernels):
        return []

    @hookimpl
    def compile(self, partitions):
        return []


def changed(**attributes):
    return type("Changed", (Valid,), attributes)


def without(*names):
    kept = {
        key: value for key, value in vars(Valid).items() if key not in (*names, "__dict__", "__weakref__")
    }
    return type("Changed", (ExecutionProvider,), kept)


def through(decorator):
    def mark(function):
        return hookimpl(decorator(function))

    return mark


def passing_on(function):
    @functools.wraps(function)
    def inner(*arguments, **more):
        return function(*arguments, **more)

    return inner


def problem_of(cls, **known):
    (problem,) = find_problems(cls, **known)
    return problem


def test_a_valid_class_has_no_problem():
    check_provider_class(Valid, name="ValidExecutionProvider", distribution="epctx-valid", version="1.0")

    assert find_problems(Valid) == []


@pytest.mark.parametrize("hook", [hook.name for hook in HOOKS.values() if hook.needed_to == "run"])
def test_a_missing_required_hook_is_named(hook):
    assert problem_of(without(hook)).what == f"the required hook {hook} is missing"


def test_a_hook_without_its_mark_is_named():
    def shutdown(self):
        pass

    problem = problem_of(changed(shutdown=shutdown))

    assert "shutdown has a hook's name but no @hookimpl" in problem.what
    assert "@hookimpl" in problem.hint


def test_an_override_without_its_mark_is_named():
    def compile_(self, partitions):
        return []

    assert "compile has a hook's name but no @hookimpl" in problem_of(changed(compile=compile_)).what


def test_a_hook_set_to_none_is_a_hook_left_out():
    with_shutdown = changed(shutdown=hookimpl(lambda self: None))
    quiet = type("Quiet", (with_shutdown,), {"shutdown": None})

    assert find_problems(quiet) == []
    assert "shutdown" not in implemented_hooks(quiet)


def test_a_misspelt_hook_is_named_with_the_nearest_one():
    problem = problem_of(changed(load_contxt=hookimpl(lambda self, nodes: [])))

    assert "there is no hook 'load_contxt'" in problem.what
    assert "Did you mean 'load_context'?" in problem.hint


@pytest.mark.parametrize("options", [{"specname": "shutdwn"}, {"specname": "shutdwn", "optionalhook": True}])
def test_a_misspelt_hook_is_named_also_where_pluggy_would_let_it_pass(options):
    problem = problem_of(changed(release=hookimpl(lambda self: None, **options)))

    assert "there is no hook 'shutdwn'" in problem.what


def test_a_hook_may_be_implemented_under_another_name_but_only_once():
    once = changed(release=hookimpl(lambda self: None, specname="shutdown"))
    twice = changed(release=hookimpl(lambda self, partitions: [], specname="compile"))

    assert find_problems(once) == []
    assert {p.what for p in find_problems(twice)} == {
        "compile is not the only implementation of compile",
        "release is not the only implementation of compile",
    }


@pytest.mark.parametrize("name", ["validate_compatibility", "get_compatibility_info"])
def test_a_class_method_marked_as_a_hook_is_named(name):
    method = classmethod(lambda cls, *, info=None, options=None: None)
    method.__func__.epctx_impl = {}

    problem = problem_of(changed(**{name: method}))

    assert f"{name} is marked with @hookimpl but is no hook" in problem.what


@pytest.mark.parametrize("name", CLASS_METHODS)
def test_a_class_method_without_its_decorator_is_named(name):
    assert problem_of(changed(**{name: lambda self, source: True})).what == f"{name} is not a class method"


@pytest.mark.parametrize("options", [{"wrapper": True}, {"hookwrapper": True}])
def test_a_wrapper_is_refused(options):
    def on_run_start(self, ep, tag):
        return (yield)

    assert "is a hook wrapper" in problem_of(changed(on_run_start=hookimpl(on_run_start, **options))).what


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (
            lambda self, partition: [],
            "takes 'partition', which the hook does not give (it gives ep, partitions)",
        ),
        (lambda self, partitions=(): [], "has a default for 'partitions'"),
        (lambda self, *partitions: [], "takes *partitions"),
        (lambda self, **partitions: [], "takes **partitions"),
        (lambda self, *, partitions: [], "takes 'partitions' by keyword only"),
    ],
)
def test_an_argument_that_would_not_be_passed_is_named(method, why):
    problem = problem_of(changed(compile=hookimpl(method)))

    assert why in problem.what
    assert "Arguments of compile: ep, partitions" in problem.hint


def test_an_unknown_argument_is_named_with_the_nearest_one():
    problem = problem_of(changed(compile=hookimpl(lambda self, partition: [])))

    assert "Did you mean 'partitions'?" in problem.hint


def test_hooks_that_would_do_nothing_when_called_are_named():
    async def compile_(self, partitions):
        return []

    def shutdown(self):
        yield

    assert "compile is async" in problem_of(changed(compile=hookimpl(compile_))).what
    assert "shutdown has a yield" in problem_of(changed(shutdown=hookimpl(shutdown))).what


@pytest.mark.parametrize(
    "decorated",
    [
        staticmethod(hookimpl(lambda partitions: [])),
        hookimpl(staticmethod(lambda partitions: [])),
        classmethod(hookimpl(lambda cls, partitions: [])),
        through(passing_on)(lambda self, partitions: []),
        hookimpl(lambda this, ep, partitions: []),
    ],
    ids=["static", "static marked outside", "class method", "decorated", "other name for self"],
)
def test_the_usual_forms_of_a_method_are_hooks(decorated):
    assert find_problems(changed(compile=decorated)) == []


def test_a_property_is_not_evaluated_and_a_hook_that_is_one_is_named():
    def explode(self):
        raise AssertionError("evaluated")

    assert find_problems(changed(device=property(explode))) == []
    assert "no @hookimpl" in problem_of(changed(shutdown=property(hookimpl(explode)))).what


def test_something_callable_that_is_no_method_is_named():
    class Callable:
        def __call__(self, partitions):
            return []

    assert "compile is no method" in problem_of(changed(compile=hookimpl(Callable()))).what


def test_an_object_that_answers_to_every_attribute_is_not_taken_for_a_hook():
    class Anything:
        def __getattr__(self, name):
            return {}

        def __call__(self):
            raise AssertionError("called")

    assert find_problems(changed(log=Anything())) == []


@pytest.mark.parametrize("name", [None, "", 7, "QNN/../x", "a b", "über"])
def test_a_name_that_can_not_be_a_source_or_part_of_a_file_name_is_refused(name):
    assert "name is" in problem_of(changed(name=name)).what


def test_a_class_without_a_name_is_refused():
    assert "name is None" in problem_of(without("name")).what


@pytest.mark.parametrize("suffix", ["../x", "a/b", None, 3])
def test_a_binary_suffix_that_can_not_be_part_of_a_file_name_is_refused(suffix):
    assert "binary_suffix is" in problem_of(changed(binary_suffix=suffix)).what


@pytest.mark.parametrize("version", ["1", 0, -1, None, True, 1.0])
def test_an_api_version_that_is_no_number_is_refused(version):
    assert "api_version is" in problem_of(changed(api_version=version)).what


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (Valid.options[0], "options is of type ProviderOption, not a tuple"),
        ({"level": 1}, "options is of type dict"),
        (("level",), "'level', which is not a ProviderOption"),
        ((Valid.options[0], Valid.options[0]), "'level' is empty or used twice"),
        ((ProviderOption("", int, default=1, doc=""),), "'' is empty"),
        ((ProviderOption("x", list, default=[], doc=""),), "has the type <class 'list'>"),
    ],
)
def test_options_that_are_no_provider_options_are_refused(options, why):
    assert why in problem_of(changed(options=options)).what


def test_a_vendor_that_is_no_text_is_refused():
    assert problem_of(changed(vendor=None)).what == "vendor is None, not text"


def test_all_problems_are_told_at_once_with_who_brings_the_class():
    cls = changed(vendor=3, compile=hookimpl(lambda self, partition: []))

    with pytest.raises(PluginError) as caught:
        check_provider_class(cls, name="Other", distribution="epctx-test", version="1.2")

    error = caught.value
    assert "of epctx-test 1.2 is no valid Execution Provider" in error.message
    assert error.message.count(";") == 2
    assert (error.ep, error.distribution, error.version) == ("Other", "epctx-test", "1.2")
    assert "Did you mean 'partitions'?" in error.hint
