"""Plugins of hosts wrap the hooks of EPs: they see, change within the contract, refuse;
and what they do wrong is never blamed on an EP.
"""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import replace

import numpy as np
import pytest
from support.engine_eps import Alpha, Beta
from support.packages import Packages
from support.small_models import chain

import epctx_core as epctx
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph, NotFound, PluginError
from epctx_core.plugin import hookimpl

MODEL = chain(["Add", "Relu", "Sigmoid", "Relu", "Add"]).SerializeToString()
INPUT = {"x": np.ones((2, 3), np.float32)}


class Runs(Alpha):
    """Has a hook of runs."""

    name = "RunsExecutionProvider"

    @hookimpl
    def on_run_start(self):
        pass


class Tells:
    """Remembers what it wraps."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    @hookimpl(wrapper=True)
    def get_capability(self, ep, graph):
        self.calls.append((self.name, ep, "before", len(graph.nodes)))
        result = yield
        self.calls.append((self.name, ep, "after", len(result)))
        return result


@pytest.fixture
def registry():
    made = epctx.Registry(entry_points=False)
    made.register(Alpha)
    made.register(Beta)
    return made


def options(*eps, **entries):
    made = epctx.SessionOptions()
    for ep in eps or (Alpha,):
        made.add_provider(ep.name)
    for key, value in entries.items():
        made.add_session_config_entry(f"ep.{key}", value)
    return made


def run(registry, session=None):
    """Make a session, run it once and close it; return the result."""
    with epctx.InferenceSession(
        MODEL, session or options(), registry=registry
    ) as running:
        return running.run(None, INPUT)[0]


def wrapping(hook, wrapper, names="ep"):
    """Return a plugin that wraps one hook by a generator function."""
    return type("Wraps", (), {hook: hookimpl(wrapper=True)(wrapper)})()


# -- what they see
# -------------------------------------------------------------------------------------


def test_a_registered_plugin_wraps_the_hooks_of_every_ep(registry):
    calls = []
    registry.register_host_plugin(Tells("first", calls))

    result = run(registry, options(Alpha, Beta))

    assert [ep for _, ep, when, _ in calls if when == "before"] == [
        Alpha.name,
        Beta.name,
    ]
    np.testing.assert_array_equal(
        result, run(epctx.default_registry, epctx.SessionOptions())
    )


def test_a_plugin_sees_arguments_and_results_of_an_ep(registry):
    seen = {}

    class Sees:
        @hookimpl(wrapper=True)
        def compile(self, ep, partitions):
            seen["ep"] = ep
            seen["compile"] = [p.inputs[0].name for p in partitions]
            result = yield
            seen["compiled"] = [type(item).__name__ for item in result]
            return result

    registry.register_host_plugin(Sees())
    run(registry, options())

    assert seen["compile"][0] == "x"
    assert set(seen["compiled"]) == {"CompiledPartition"}
    assert seen["ep"] == Alpha.name


def test_plugins_of_the_registry_are_around_those_of_the_session(registry):
    calls = []
    registry.register_host_plugin(Tells("first", calls))
    registry.register_host_plugin(Tells("second", calls))
    session = options()
    session.add_host_plugin(Tells("session", calls))

    run(registry, session)

    order = [name for name, _, when, _ in calls if when == "before"]
    assert order == ["first", "second", "session"]
    assert [name for name, _, when, _ in calls if when == "after"] == order[::-1]


def test_a_plugin_is_there_in_sessions_made_while_it_is_registered(registry):
    calls = []
    plugin = Tells("p", calls)

    run(registry)
    with registry.host_plugin(plugin):
        assert [host.plugin for host in registry.host_plugins] == [plugin]
        run(registry)
    during = len(calls)
    run(registry)

    assert during == len(calls) == 2
    assert registry.host_plugins == ()


def test_a_hook_that_an_ep_does_not_have_is_not_called(registry):
    calls = []

    def on_run_start(self, ep, tag):
        calls.append(ep)
        return (yield)

    registry.register_host_plugin(wrapping("on_run_start", on_run_start))
    run(registry)

    assert calls == []


def test_a_plugin_may_change_a_result_within_the_contract(registry):
    def get_capability(self):
        return [
            replace(claim, nodes=[n for n in claim.nodes if n.op_type != "Relu"])
            for claim in (yield)
        ]

    registry.register_host_plugin(wrapping("get_capability", get_capability))

    before, after = (
        epctx.explain_model(MODEL, options(), registry=each)
        for each in (fresh(), registry)
    )

    assert count(after) == count(before) - 2 > 0


def fresh():
    made = epctx.Registry(entry_points=False)
    made.register(Alpha)
    return made


def count(explained):
    """Return how many nodes an EP takes."""
    return sum(node.ep == Alpha.name for node in explained.nodes)


def test_a_plugin_refuses_by_a_typed_error_which_is_raised_as_it_is(registry):
    refusal = Fail("not on Sundays.", hint="Come back tomorrow.")

    def compile_(self):
        raise refusal
        yield

    registry.register_host_plugin(wrapping("compile", compile_))

    with pytest.raises(Fail, match="not on Sundays") as caught:
        run(registry)

    assert caught.value is refusal
    assert not isinstance(caught.value, PluginError)


def test_a_refusal_while_a_payload_is_read_back_is_the_hosts(registry, tmp_path):
    def refuse(self, ep):
        raise InvalidGraph(f"{ep} may load nothing here.")
        yield

    own = epctx.Registry(entry_points=False)
    own.register(type("Loads", (Alpha,), {"loads_without_device": True}))
    own.register_host_plugin(wrapping("load_context", refuse))
    compiler = epctx.ModelCompiler(options(), MODEL, registry=own)

    with pytest.raises(InvalidGraph) as info:
        compiler.compile_to_file(tmp_path / "m_ctx.onnx")

    assert info.value.message == f"{Alpha.name} may load nothing here."
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_ep_reaches_the_plugin_typed_and_blamed(registry):
    class Broken(Alpha):
        name = "BrokenExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            raise OSError("no device")

    registry.register(Broken)
    seen = []

    def get_capability(self):
        try:
            return (yield)
        except PluginError as error:
            seen.append(error.ep)
            raise

    registry.register_host_plugin(wrapping("get_capability", get_capability))

    with pytest.raises(PluginError, match="no device"):
        run(registry, options(Broken))

    assert seen == [Broken.name]


# -- what they do wrong
# -------------------------------------------------------------------------------------


def gives_five(self):
    yield
    return 5


def gives_a_list_of_numbers(self):
    yield
    return [5]


def drops_a_result(self):
    return (yield)[1:]


def drops_a_result_in_place(self):
    result = yield
    del result[0]
    return result


def fails_before(self):
    raise LookupError("lost")
    yield


def fails_after(self):
    yield
    raise LookupError("lost")


class Odd(BaseException):
    """No Exception, as some libraries raise to end a thread or a task."""


def ends_the_process_after(self):
    yield
    raise SystemExit(3)


def raises_no_exception(self):
    yield
    raise Odd


def yields_twice(self):
    yield
    yield


def never_yields(self):
    if False:
        yield
    return []


WRONG = [
    gives_five, gives_a_list_of_numbers, drops_a_result, drops_a_result_in_place,
    fails_before, fails_after, yields_twice, never_yields, ends_the_process_after,
    raises_no_exception,
]  # fmt: skip


# An EP may make fewer claims, but gives a result for each partition.
WRONG_IN = [
    (hook, wrong)
    for hook in ("get_capability", "compile")
    for wrong in WRONG
    if hook == "compile" or wrong not in (drops_a_result, drops_a_result_in_place)
]


@pytest.mark.parametrize(
    ("hook", "wrong"), WRONG_IN, ids=lambda value: getattr(value, "__name__", value)
)
def test_what_a_plugin_does_wrong_is_not_blamed_on_the_ep(registry, hook, wrong):
    registry.register_host_plugin(wrapping(hook, wrong))

    with pytest.raises(InvalidArgument, match="Wraps") as caught:
        run(registry)

    assert f"wraps {hook} of {Alpha.name}" in caught.value.message
    assert "not in the EP" in caught.value.hint


def test_an_interrupt_of_the_user_in_a_plugin_passes(registry):
    def compile_(self):
        raise KeyboardInterrupt
        yield

    registry.register_host_plugin(wrapping("compile", compile_))

    with pytest.raises(KeyboardInterrupt):
        run(registry)


def takes_partitions_away(self, partitions):
    partitions.clear()
    return (yield)


def takes_weights_away(self, weights):
    weights.clear()
    return (yield)


def takes_the_graph_away(self, model):
    del model.graph.node[:]
    return (yield)


def empties_the_result(self):
    result = yield
    del result.graph.node[:]
    return result


def gives_more_nodes(self):
    result = yield
    result[0].nodes.append("no node")
    return result


def reshapes_memory(self):
    result = yield
    result.shape = (result.size,)
    return result


def locks_memory(self):
    result = yield
    result.flags.writeable = False
    return result


IN_PLACE = [
    ("compile", takes_partitions_away), ("optimize_model", takes_weights_away),
    ("optimize_model", takes_the_graph_away), ("optimize_model", empties_the_result),
    ("get_capability", gives_more_nodes), ("allocate", reshapes_memory),
    ("allocate", locks_memory),
]  # fmt: skip


class Changes(Alpha):
    """Has hooks whose arguments or results can be changed in place."""

    name = "ChangesExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return [
            replace(claim, nodes=list(claim.nodes))
            for claim in super().get_capability(graph)
        ]

    @hookimpl
    def optimize_model(self, model):
        return model

    @hookimpl
    def allocate(self, shape, dtype):
        return np.empty(shape, dtype)


@pytest.mark.parametrize(
    ("hook", "change"), IN_PLACE, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_change_in_place_is_not_blamed_on_the_ep(registry, hook, change):
    registry.register(Changes)

    run(registry, options(Changes))
    registry.register_host_plugin(wrapping(hook, change))
    with pytest.raises(InvalidArgument, match="Wraps") as caught:
        run(registry, options(Changes))

    assert f"wraps {hook} of {Changes.name}" in caught.value.message


def test_of_several_plugins_that_could_be_wrong_all_are_named(registry):
    for _ in range(2):
        registry.register_host_plugin(wrapping("compile", gives_five))

    with pytest.raises(InvalidArgument, match=r"host plugin .*Wraps or .*Wraps"):
        run(registry)


def test_what_an_ep_does_wrong_stays_the_eps(registry):
    class Wrong(Alpha):
        name = "WrongExecutionProvider"

        @hookimpl
        def compile(self, partitions):
            return []

    registry.register(Wrong)
    registry.register_host_plugin(Tells("p", []))

    with pytest.raises(PluginError, match="gave 0 results"):
        run(registry, options(Wrong))


# -- which are taken
# -------------------------------------------------------------------------------------


class NoMethod:
    pass


class Misspelt:
    @hookimpl(wrapper=True)
    def get_capabilities(self):
        yield


class UnknownArgument:
    @hookimpl(wrapper=True)
    def compile(self, graphs):
        yield


class Implements:
    @hookimpl
    def compile(self, partitions):
        return []


class OldStyle:
    @hookimpl(hookwrapper=True)
    def compile(self):
        yield


class NoYield:
    @hookimpl(wrapper=True)
    def compile(self):
        return []


class ClassMethod:
    @hookimpl(wrapper=True)
    def get_compatibility_info(self):
        yield


REFUSED = [
    NoMethod,
    Misspelt,
    UnknownArgument,
    Implements,
    OldStyle,
    NoYield,
    ClassMethod,
]


@pytest.mark.parametrize("cls", REFUSED, ids=lambda cls: cls.__name__)
def test_what_wraps_no_hook_is_not_a_plugin(registry, cls):
    with pytest.raises(InvalidArgument, match=cls.__name__) as caught:
        registry.register_host_plugin(cls())

    assert "@hookimpl(wrapper=True)" in caught.value.hint
    assert registry.host_plugins == ()


@pytest.mark.parametrize("plugin", [Tells, None, 5])
def test_what_is_not_an_object_with_methods_is_not_a_plugin(registry, plugin):
    with pytest.raises(InvalidArgument, match="not a plugin of a host"):
        registry.register_host_plugin(plugin)


def test_a_wrong_plugin_of_a_session_is_refused_when_the_session_is_made(registry):
    session = options()
    session.add_host_plugin(Misspelt())

    with pytest.raises(InvalidArgument, match="get_capabilities"):
        run(registry, session)


def test_a_plugin_is_registered_once(registry):
    plugin = Tells("p", [])
    registry.register_host_plugin(plugin)

    with pytest.raises(InvalidArgument, match="is registered"):
        registry.register_host_plugin(plugin)
    registry.unregister_host_plugin(plugin)
    with pytest.raises(InvalidArgument, match="no host plugin Tells"):
        registry.unregister_host_plugin(plugin)


def test_options_are_copied_with_their_plugins(registry):
    calls = []
    session = options()
    session.add_host_plugin(Tells("p", calls))

    run(registry, session.copy())

    assert calls


# -- those of packages
# -------------------------------------------------------------------------------------

PACKAGE = """
from epctx_core.plugin import hookimpl

class Counts:
    calls = []

    @hookimpl(wrapper=True)
    def shutdown(self, ep):
        Counts.calls.append(ep)
        return (yield)
"""


@pytest.fixture
def installed(packages):
    """A package with a host plugin `counts`, and one that cannot be made."""
    packages.write_module("host_counts", PACKAGE)
    entries = (
        "[epctx.host_plugins]\ncounts = host_counts:Counts\nbad = host_counts:Missing"
    )
    packages.write_metadata("host-counts", entries)
    packages.install(
        "epctx-a", "A", body="    @hookimpl\n    def shutdown(self): pass\n"
    )
    return packages


def session_of_a():
    epctx.InferenceSession(MODEL, providers=["A"], registry=epctx.Registry()).close()


def test_a_plugin_that_is_merely_installed_wraps_nothing(installed, monkeypatch):
    session_of_a()
    from host_counts import Counts

    assert Counts.calls == []
    monkeypatch.setenv("EPCTX_HOST_PLUGINS", " counts ")
    session_of_a()
    assert Counts.calls == ["A"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("count", NotFound, "Did you mean 'counts'"),
        ("bad", PluginError, "the host plugin 'bad' of host-counts .* failed"),
    ],
)
def test_a_plugin_that_cannot_be_had_is_an_error(
    installed, monkeypatch, name, kind, words
):
    monkeypatch.setenv("EPCTX_HOST_PLUGINS", name)

    with pytest.raises(kind, match=words):
        session_of_a()


@pytest.mark.parametrize("name", ["counts", "host-counts:counts"])
def test_a_session_uses_an_installed_plugin_by_its_name(installed, name):
    from host_counts import Counts

    chosen = options()
    chosen.providers = [("A", {})]
    chosen.add_host_plugin(name)
    epctx.InferenceSession(MODEL, chosen, registry=epctx.Registry()).close()

    assert chosen.host_plugins == (name,)
    assert Counts.calls == ["A"]


def test_of_two_packages_with_a_plugin_of_one_name_neither_is_taken(installed):
    installed.write_metadata(
        "other", "[epctx.host_plugins]\ncounts = host_counts:Counts"
    )
    chosen = options()
    chosen.providers = [("A", {})]
    chosen.add_host_plugin("counts")

    with pytest.raises(InvalidArgument, match="ambiguous: host-counts and other"):
        epctx.InferenceSession(MODEL, chosen, registry=epctx.Registry())


def test_a_compile_makes_an_installed_plugin_once(installed, tmp_path):
    installed.write_module(
        "host_made",
        PACKAGE.replace("Counts", "Made")
        + "    def __init__(self):\n        Made.calls.append('made')\n",
    )
    installed.write_metadata("host-made", "[epctx.host_plugins]\nmade = host_made:Made")
    from host_made import Made

    own = epctx.Registry(entry_points=False)
    own.register(type("Lone", (Alpha,), {"loads_without_device": True}))
    chosen = options()
    chosen.add_host_plugin("made")
    path = tmp_path / "m_ctx.onnx"
    report = epctx.ModelCompiler(chosen, MODEL, registry=own).compile_to_file(path)

    assert report.compiled
    assert Made.calls == ["made"]


WITH_PROCESSES = """
import os
from pathlib import Path
from epctx_core.plugin import hookimpl

class Notes:
    @hookimpl(wrapper=True)
    def compile(self, ep):
        self.note("compile")
        return (yield)

    @hookimpl(wrapper=True)
    def load_context(self, ep):
        self.note("load_context")
        return (yield)

    @hookimpl(wrapper=True)
    def on_run_start(self, ep):
        self.note("on_run_start")
        return (yield)

    def note(self, hook):
        with Path(os.environ["NOTES"]).open("a") as file:
            file.write(f"{hook} {os.getpid()}\\n")
"""


@pytest.mark.parametrize("isolate", ["", "compile", "all"])
def test_each_call_is_wrapped_once_and_in_the_process_where_the_ep_works(
    tmp_path, monkeypatch, isolate
):
    # Every process of the host's has the variable.
    folder = tmp_path / "site"
    packages = Packages(folder)
    packages.write_module("host_notes", WITH_PROCESSES)
    packages.write_metadata(
        "host-notes", "[epctx.host_plugins]\nnotes = host_notes:Notes"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("EPCTX_HOST_PLUGINS", "notes")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    own = epctx.Registry(entry_points=False)
    own.register(Runs)

    run(own, options(Runs, isolate=isolate))

    lines = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    here = [(hook, int(process) == os.getpid()) for hook, process in lines]
    assert (
        here
        == {
            "": [("compile", True), ("on_run_start", True)],
            "compile": [
                ("compile", False),
                ("load_context", True),
                ("on_run_start", True),
            ],
            "all": [("compile", False), ("on_run_start", False)],
        }[isolate]
    )


# -- what is left
# -------------------------------------------------------------------------------------


def test_a_closed_session_keeps_neither_ep_nor_plugin(registry):
    made = []

    class Kept(Alpha):
        name = "KeptExecutionProvider"

        def __init__(self, context):
            super().__init__(context)
            made.append(weakref.ref(self))

    registry.register(Kept)
    session = options(Kept)
    plugin = Tells("p", [])
    made.append(weakref.ref(plugin))
    session.add_host_plugin(plugin)
    del plugin
    gc.collect()
    gc.disable()
    try:
        run(registry, session)
        del session
        assert [reference() for reference in made] == [None, None]
    finally:
        gc.enable()
