"""A program may list devices, register a vendor's library, load and unregister in any
order that onnxruntime allows, with epctx in its process or in onnxruntime's place.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from support.folders import IMPORTED
from support.vendor_routes import route
from support.vendors_onnxruntime import QNN
from vendors.vendor_networks import network

import epctx_core as epctx

STEPS = (
    *("list", "load", "policy", "plain"),
    *("load_or_compile", "register", "unregister"),
)
PAIRS = [*itertools.product(STEPS, repeat=2)]
PARTS = 6
"""Tests that share these orders: each takes some seconds, not minutes."""
TRIPLES = [*itertools.product(STEPS, repeat=3)]


def draw_orders(seed, count):
    generator = np.random.Generator(np.random.PCG64(seed))
    return [
        generator.choice(STEPS, generator.integers(3, 5)).tolist() for _ in range(count)
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "m.onnx"
    path.write_bytes(network("two_parts").model)
    return path


@pytest.fixture(scope="module")
def of_qnn(source):
    """Return the EP, a model, what it is loaded from, and a folder for the cache."""
    compiler = epctx.ModelCompiler(route("epctx with QNN").session_options(), source)
    context = compiler.compile_to_file().output
    return QNN, source, context, source.with_name("cache")


@pytest.fixture(scope="module")
def of_cpu_ep(source):
    return "cpu_ep", source, source, source.with_name("cache")


def take(kind, subject, orders):
    """Return the text of the error of each step of each order, or None."""
    done = subprocess.run(
        [sys.executable, "-m", "vendors.host_orders", kind, *subject],
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, IMPORTED))},
        timeout=280,
    )
    return json.loads(done.stdout)


def check(kind, subject, orders):
    """Raise AssertionError where onnxruntime has no error and epctx has one, or one
    that says something else.
    """
    native = take("onnxruntime", subject, orders)
    told = take(kind, subject, orders)
    for order, expected, found in zip(orders, native, told, strict=True):
        for step, ours, theirs in zip((*order, "end"), found, expected, strict=True):
            assert ours is None or theirs is not None, (order, step, ours)
            assert "already registered" not in str(theirs) or (
                "already registered" in str(ours)
            ), (order, step, ours)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", ["drop_in", "cached"])
def test_no_order_fails_that_onnxruntime_allows(of_qnn, kind, part):
    check(kind, of_qnn, [*PAIRS, *draw_orders(33, 60)][part::PARTS])


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", ["drop_in", "cached"])
def test_no_order_fails_with_a_library_that_names_its_ep_itself(of_cpu_ep, kind, part):
    check(kind, of_cpu_ep, [*PAIRS, *draw_orders(34, 15)][part::PARTS])


@pytest.mark.stress
@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("kind", ["drop_in", "cached"])
def test_no_order_of_three_steps_fails_that_onnxruntime_allows(of_qnn, kind, first):
    check(kind, of_qnn, [order for order in TRIPLES if order[0] == first])
