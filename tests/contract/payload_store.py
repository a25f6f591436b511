"""A store of payloads that both callbacks use, and what compiles into one and loads out
of it.
"""

from __future__ import annotations

from support.engine_eps import Alpha
from support.small_models import chain, example
from support.validating_eps import options_with, registry_with

import epctx_core as epctx

NODES = ["Relu", "Add", "Sigmoid", "Add"]
LIMIT = 1 << 20


class Store:
    """Keeps what it is given by name and gives it again; both callbacks, and what they
    were called with.
    """

    def __init__(self):
        self.payloads = {}
        self.asked = []

    def write(self, name, data):
        assert name not in self.payloads, "a second call for one payload"
        self.payloads[name] = data.read()

    def read(self, name, buffer):
        self.asked.append(name)
        buffer.allocate(len(self.payloads[name]))
        buffer.write(self.payloads[name])


def compiler_of(source, *eps, **entries):
    return epctx.ModelCompiler(
        options_with(*eps, **entries), source, registry=registry_with(*eps)
    )


def kept(source, store, ep=Alpha):
    """Compile into a store; return the model's bytes."""
    compiler = compiler_of(source, ep)
    compiler.set_ep_context_data_write_func(store.write)
    return compiler.compile_to_bytes()


def reading(read, *eps, limit=LIMIT, **entries):
    """Return options with a read callback."""
    options = options_with(*eps, **entries)
    options.set_ep_context_data_read_func(read, limit)
    return options


def opened(model, read, ep=Alpha, *, limit=LIMIT, **entries):
    return epctx.InferenceSession(
        model, reading(read, ep, limit=limit, **entries), registry=registry_with(ep)
    )


def result(session):
    with session:
        return session.run(None, {"x": example()})[0]


def expected():
    with epctx.InferenceSession(chain(NODES).SerializeToString()) as session:
        return session.run(None, {"x": example()})[0]


class HostError(Exception):
    """Error that a host's callback raises."""


def raising(*_):
    raise HostError("the cloud is down")
