"""EP classes for the tests of a session's instances."""

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
