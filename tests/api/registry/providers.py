"""EP classes and host wrappers for the tests of a session's instances."""

from __future__ import annotations

from epctx_core.plugin import ExecutionProvider, Refusal, hookimpl


def ep(name, **attributes):
    """Make an EP class; every attribute given as a function becomes a hook."""

    class Provider(ExecutionProvider):
        @hookimpl
        def get_capability(self, graph):
            return [Refusal(self.name, [graph])]

        @hookimpl
        def compile(self, partitions):
            return [(self.name, partition) for partition in partitions]

    marked = {
        key: hookimpl(value) if callable(value) and key[0] != "_" else value
        for key, value in attributes.items()
    }
    return type(name, (Provider,), {"name": name, **marked})


def raising(error):
    def method(self):
        raise error

    return method


def breaks_early(self):
    raise ValueError("disk full")
    yield


def breaks_late(self):
    yield
    raise ValueError("disk full")


def wrapping(hook, function):
    """Make an object that wraps one hook with a copy of a function, so that the function keeps no mark."""

    def wrapper(self):
        return (yield from function(self))

    return type("Wrapper", (), {hook: hookimpl(wrapper, wrapper=True)})()
