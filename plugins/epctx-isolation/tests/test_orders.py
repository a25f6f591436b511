"""An order arrives with its arguments; what stays with the host arrives as a reference,
and what no other process can have is refused with an error that says why.
"""

from __future__ import annotations

import io
import sys
import types
from contextlib import contextmanager
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from epctx_isolation.orders import (
    CANCEL,
    FUNCTION,
    OBJECT,
    OBSERVER,
    isolate_options,
    keep_objects,
    receive_order,
    send_order,
)
from epctx_isolation.shared_memory import ChildMemory
from support.engine_eps import Alpha
from support.made_eps import make_ep
from support.small_models import chain

import epctx_core as epctx
from epctx_core.errors import InvalidArgument, PluginError
from epctx_core.ext import Request
from epctx_core.plugin import hookimpl

pytestmark = pytest.mark.internal


class Line(io.BytesIO):
    """Line to which a host writes, and from which its child reads."""

    sendall = io.BytesIO.write


@pytest.fixture
def transfer(host):
    """Function that returns an order as it arrives, references as they are."""

    def transfer(order, objects=None, *, is_run=False):
        line = Line()
        kept = objects or keep_objects(None, epctx.Registry(entry_points=False))
        send_order(line, order, kept, host if is_run else None)
        transfer.sent = len(line.getvalue())
        line.seek(0)
        transfer.child = transfer.child or ChildMemory(host.descriptor)
        found = receive_order(line, transfer.child, lambda reference: reference)
        assert line.read() == b"", "the next order follows"
        return found

    transfer.child = None
    return transfer


def host_objects(session=None, *plugins, **functions):
    registry = epctx.Registry(entry_points=False)
    for plugin in plugins:
        registry.register_host_plugin(plugin)
    return keep_objects(session, registry, **functions)


# -- arguments


def test_an_order_arrives_as_it_was_sent(transfer):
    order = (len, ("é", 3, {"a": (None, 0.5)}))

    assert transfer(order) == order


def test_buffers_of_an_order_arrive_behind_it(transfer):
    large = np.arange(1 << 18, dtype=np.float32)

    name, array, view = transfer(("name", large, memoryview(b"bytes")))

    assert name == "name"
    assert np.array_equal(array, large)
    assert bytes(view) == b"bytes"
    assert transfer.sent < large.nbytes + 1000


@pytest.mark.parametrize(
    "kind", ["float32", "bfloat16", "int4", "bool", "float8_e4m3fn"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_of_a_run_arrive_as_they_were(transfer, kind, shape):
    array = np.ones(shape, getattr(ml_dtypes, kind, None) or kind)

    (found,) = transfer([array], is_run=True)

    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int4"])
def test_arrays_of_a_run_are_in_shared_memory_and_not_in_the_order(
    transfer, host, kind
):
    dtype = getattr(ml_dtypes, kind, None) or kind
    arrays = [np.ones((1024, 1024), dtype), np.ones((1024, 2048), dtype)[:, ::2]]

    first, second = transfer(arrays, is_run=True)

    assert transfer.sent < 1000
    assert host.read_state() == (0, {})
    assert transfer.child.used >= first.nbytes + second.nbytes
    assert not np.may_share_memory(first, second)
    for found, sent in zip((first, second), arrays, strict=True):
        assert not found.flags.owndata
        assert not found.flags.writeable
        assert np.array_equal(found, sent)


def test_text_of_a_run_arrives(transfer):
    texts = np.array(["a", "日本"], object)

    (found,) = transfer([texts], is_run=True)

    assert found.tolist() == ["a", "日本"]


def test_the_next_run_has_its_arrays_where_those_of_the_last_were(transfer):
    transfer([np.zeros(1000)], is_run=True)
    used = transfer.child.used

    (found,) = transfer([np.ones(1000)], is_run=True)

    assert transfer.child.used == used
    assert found.all()


@pytest.mark.parametrize("argument", [lambda: 0, (x for x in ()), sys.stdout, sys])
def test_an_argument_that_cannot_be_sent_is_refused(transfer, argument):
    with pytest.raises(InvalidArgument, match="cannot be sent to another process"):
        transfer([argument])


@pytest.mark.parametrize("end", [0, 10, 30, -1])
def test_an_order_that_ends_early_is_the_end(host, end):
    line = Line()
    send_order(line, [np.ones(100)], host_objects(), None)

    with pytest.raises(EOFError):
        receive_order(io.BytesIO(line.getvalue()[:end]), host, lambda _: None)


# -- what stays with the host


def test_functions_of_the_host_arrive_as_references(transfer):
    def progress(stage, done, total):
        raise AssertionError

    def read(name, buffer):
        raise AssertionError

    kept = host_objects(progress=progress, read=read, write=None)

    assert transfer([progress, {"read": read}], kept) == [
        (FUNCTION, "progress"),
        {"read": (FUNCTION, "read")},
    ]
    assert set(kept.functions) == {"progress", "read"}


def test_the_wish_to_cancel_arrives_as_a_reference(transfer):
    session = epctx.SessionOptions()

    assert transfer(session.cancellation) == (CANCEL, None)
    assert transfer(session).cancellation == (CANCEL, None)


def test_options_that_arrive_isolate_nothing_further(transfer):
    session = epctx.SessionOptions()
    session.add_session_config_entry("ep.isolate", "all")
    session.add_session_config_entry("ep.compile_timeout", "9")
    session.add_session_config_entry("ep.context_embed_mode", "1")
    session.add_provider("Alpha", {"level": "3"})

    found = transfer(session)

    assert not found.config().isolation.value
    assert found.config().compile_seconds is None
    assert found.get_session_config_entry("ep.context_embed_mode") == "1"
    assert found.providers == session.providers
    # The host's own stay as they are.
    assert session.get_session_config_entry("ep.isolate") == "all"
    assert isolate_options(session).get_session_config_entry("ep.isolate") == ""


def test_a_model_arrives_with_its_options_and_eps(transfer):
    model = chain(["Relu"]).SerializeToString()
    registry = epctx.Registry(entry_points=False)
    registry.register(Alpha)
    session = epctx.SessionOptions()
    session.add_session_config_entry("ep.isolate", "all")

    def progress(stage, done, total):
        raise AssertionError

    request = Request.from_options(model, session, registry, [Alpha.name], progress)
    found = transfer(request, keep_objects(session, registry, progress=progress))

    assert bytes(found.source) == model
    assert found.requested == [Alpha.name]
    assert found.progress == (FUNCTION, "progress")
    assert found.session.cancellation == (CANCEL, None)
    assert not found.config.isolation.value
    assert [record.name for record in found.registry.records()] == [Alpha.name]
    assert found.registry.load(found.registry.resolve(Alpha.name)) is Alpha


# -- classes of EPs


def test_a_class_of_a_module_arrives_as_itself(transfer):
    assert transfer(Alpha) is Alpha


def test_a_class_that_a_function_makes_is_made_again(transfer):
    found = transfer(make_ep("MadeExecutionProvider", ["Relu"]))

    assert issubclass(found, Alpha)
    assert (found.name, found.operators) == ("MadeExecutionProvider", {"Relu"})


def make_local_class(**attributes):
    return type("Local", (Alpha,), {"name": "LocalExecutionProvider", **attributes})


def make_class_of_the_script():
    return make_local_class(__module__="__main__")


def make_class_of_a_function():
    class Inner(Alpha):
        name = "LocalExecutionProvider"

    return Inner


def make_derived_class():
    made = make_ep("MadeExecutionProvider", ["Relu"])
    return type("Derived", (made,), {"name": "LocalExecutionProvider"})


def make_class_of_a_module_that_is_gone():
    return make_local_class(__module__="no.such.module")


@pytest.mark.parametrize(
    "make",
    [
        make_class_of_the_script,
        make_class_of_a_function,
        make_derived_class,
        make_class_of_a_module_that_is_gone,
    ],
    ids=lambda make: make.__name__,
)
def test_a_class_that_no_other_process_can_import_is_refused(
    transfer, monkeypatch, make
):
    cls = make()
    monkeypatch.setattr(sys.modules["__main__"], cls.__qualname__, cls, raising=False)

    with pytest.raises(PluginError, match="cannot import its class") as caught:
        transfer(cls)

    assert caught.value.ep == "LocalExecutionProvider"
    assert "factory" in caught.value.hint


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (("no.such.module:make", {}), "no.such.module"),
        (("support.made_eps:no_such", {}), "no_such"),
        (("support.made_eps:make_ep", {}), "missing"),
        (
            ("support.made_eps:make_ep", {"name": "Other", "operators": []}),
            "made 'Other'",
        ),
    ],
)
def test_a_function_that_makes_no_such_class_is_refused(transfer, factory, message):
    with pytest.raises(PluginError, match=message) as caught:
        transfer(make_local_class(factory=factory))

    assert caught.value.ep == "LocalExecutionProvider"


# -- host plugins


class Spans:
    """Host plugin that merely observes spans."""

    @contextmanager
    def span(self, name, category, facts):
        yield


class Wrapping:
    """Host plugin that wraps a hook."""

    @hookimpl(wrapper=True)
    def compile(self):
        return (yield)


def test_a_host_plugin_that_merely_observes_stays_with_the_host(transfer):
    first, second = Spans(), Spans()
    session = epctx.SessionOptions()
    session.add_host_plugin(second)

    kept = host_objects(session, first)

    assert kept.observers == [first, second]
    assert transfer([first, second], kept) == [(OBSERVER, 0), (OBSERVER, 1)]
    assert transfer(session, kept).host_plugins == ((OBSERVER, 1),)


@pytest.fixture
def module(monkeypatch):
    """Module that another process can import, with a host plugin."""
    module = types.ModuleType("host_plugins_of_a_test")
    module.Traces = type("Traces", (Wrapping,), {"__module__": module.__name__})
    module.traces = module.Traces()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_host_plugin_that_can_be_imported_is_found_by_its_name(transfer, module):
    session = epctx.SessionOptions()
    session.add_host_plugin(module.traces)

    kept = host_objects(session)

    reference = (OBJECT, "host_plugins_of_a_test:traces")
    assert kept.observers == []
    assert transfer(session, kept).host_plugins == (reference,)


def test_a_host_plugin_by_the_name_of_its_entry_point_stays_a_name(transfer):
    session = epctx.SessionOptions()
    session.add_host_plugin("some-distribution:trace")

    kept = host_objects(session)

    assert transfer(session, kept).host_plugins == ("some-distribution:trace",)


def make_plugin_of(module):
    return type("Plugin", (Wrapping,), {"__module__": module})()


@pytest.mark.parametrize(
    "make",
    [
        Wrapping,
        partial(make_plugin_of, "__main__"),
        partial(make_plugin_of, "no.such.module"),
    ],
    ids=["no name", "name in a script", "module that is gone"],
)
@pytest.mark.parametrize("registered", [True, False])
def test_a_host_plugin_that_wraps_hooks_and_cannot_be_found_is_refused(
    monkeypatch, make, registered
):
    plugin = make()
    monkeypatch.setattr(sys.modules["__main__"], "plugin", plugin, raising=False)
    session = epctx.SessionOptions()
    if not registered:
        session.add_host_plugin(plugin)

    with pytest.raises(InvalidArgument, match="wraps hooks that run in another"):
        host_objects(session, *[plugin] * registered)


def test_a_host_plugin_with_hooks_and_spans_is_no_observer(module):
    module.both = type("Both", (Wrapping, Spans), {"__module__": module.__name__})()

    kept = host_objects(None, module.both)

    assert kept.observers == []
    assert [*kept.references.values()] == ["host_plugins_of_a_test:both"]


# -- values that nobody is to see


def test_values_of_options_of_eps_are_hidden_unless_they_are_short():
    session = epctx.SessionOptions()
    session.add_provider("Alpha", {"token": "a secret", "level": "3"})
    session.add_session_config_entry("ep.context_embed_mode", "1")

    assert keep_objects(session, epctx.Registry(entry_points=False)).values == {
        "a secret"
    }
    assert host_objects().values == set()
