"""A program may list devices, register Qualcomm's library, load and unregister in any
order that onnxruntime allows, with epctx in its process or in onnxruntime's place.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from vendors.networks import network
from vendors.routes import route

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
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    source = folder / "m.onnx"
    source.write_bytes(network("two_parts").model)
    compiler = epctx.ModelCompiler(route("epctx with QNN").session_options(), source)
    return source, compiler.compile_to_file().output, folder / "cache"


def take(kind, models, orders):
    """Return the text of the error of each step of each order, or None."""
    done = subprocess.run(
        [sys.executable, "-m", "vendors.host_orders", kind, *models],
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
        timeout=280,
    )
    return json.loads(done.stdout)


def check(kind, models, orders):
    """Raise AssertionError where onnxruntime has no error and epctx has one, or one
    that says something else.
    """
    native = take("onnxruntime", models, orders)
    told = take(kind, models, orders)
    for order, expected, found in zip(orders, native, told, strict=True):
        for step, ours, theirs in zip((*order, "end"), found, expected, strict=True):
            assert ours is None or theirs is not None, (order, step, ours)
            assert "already registered" not in str(theirs) or (
                "already registered" in str(ours)
            ), (order, step, ours)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", ["drop_in", "cached"])
def test_no_order_fails_that_onnxruntime_allows(models, kind, part):
    check(kind, models, [*PAIRS, *draw_orders(33, 60)][part::PARTS])


@pytest.mark.stress
@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("kind", ["drop_in", "cached"])
def test_no_order_of_three_steps_fails_that_onnxruntime_allows(models, kind, first):
    check(kind, models, [order for order in TRIPLES if order[0] == first])
