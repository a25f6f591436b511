"""Routes that do one thing wrong each, and a case for them."""

from __future__ import annotations

import os
import stat
import time

import numpy as np
from conformance.routes import Route, run_case
from epctx_conformance.cases.case import Case, Data
from epctx_onnxruntime.checking.child import Catalogue
from onnx.backend.base import Backend, BackendRep

from epctx_core.errors import Fail


class Doubling(Backend, BackendRep):
    """Gives twice its input; subclasses do worse."""

    claimed = 1

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        return cls()

    def run(self, inputs, **kwargs):
        return (inputs["x"] * 2,)


class Reused(Doubling):
    """The second run writes into the first one's output."""

    def __init__(self):
        self.output = None

    def run(self, inputs, **kwargs):
        if self.output is not None:
            self.output[:] = -1
        self.output = inputs["x"] * 2
        return (self.output,)


class Overwriting(Doubling):
    def run(self, inputs, **kwargs):
        result = inputs["x"] * 2
        inputs["x"][:] = 0
        return (result,)


class OnceOnly(Doubling):
    runs = 0

    def run(self, inputs, **kwargs):
        self.runs += 1
        return (inputs["x"] * 2 / self.runs,)


class Refusing(Doubling):
    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        raise Fail("no, at 0x7f00aa11bb22.")


class Raising(Doubling):
    def run(self, inputs, **kwargs):
        raise KeyError("x")


class Aborting(Doubling):
    def run(self, inputs, **kwargs):
        os.abort()


class Hanging(Doubling):
    def run(self, inputs, **kwargs):
        time.sleep(60)


class Stuttering(Doubling):
    """Ends its process while that writes a line of results."""

    def run(self, inputs, **kwargs):
        for fd in range(3, 32):
            if stat.S_ISFIFO(_mode_of(fd)):
                os.write(fd, b'{"case": "dou')
        os.abort()


def _mode_of(fd):
    try:
        return os.fstat(fd).st_mode
    except OSError:
        return 0


class Unclaimed(Doubling):
    claimed = 0

    def run(self, inputs, **kwargs):
        raise AssertionError("no payload, nothing to run")


def double():
    x = np.arange(4, dtype=np.float32)
    return [Data(inputs={"x": x}, outputs=[x * 2])]


CASE = Case(name="double", model=bytes, data=double)
ROUTES = [
    Route(eps="aborting", through="direct", backend=Aborting),
    Route(eps="hanging", through="direct", backend=Hanging),
    Route(eps="good", through="direct", backend=Doubling),
    Route(eps="good", through="file", backend=Doubling),
    Route(
        eps="unclaimed",
        through="direct",
        backend=type("None", (Doubling,), {"claimed": 0}),
    ),
    Route(eps="unclaimed", through="file", backend=Unclaimed),
]
STUTTERING = Route(eps="stuttering", through="direct", backend=Stuttering)
CATALOGUE = Catalogue(
    {"double": lambda: {"double": CASE}}, [*ROUTES, STUTTERING], run_case
)
