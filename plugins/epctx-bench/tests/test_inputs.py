"""Inputs that are made from a seed."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from epctx_bench.inputs import make_inputs

from epctx_core import InferenceSession
from epctx_core.errors import InvalidArgument

pytestmark = pytest.mark.internal


def argument(kind, shape=(2, 3), name="x"):
    return SimpleNamespace(name=name, type=f"tensor({kind})", shape=list(shape))


def test_inputs_are_those_of_epctx_run(epctx, folder, tmp_path):
    output = tmp_path / "outputs.npz"
    said = epctx(
        "run", folder / "fixed.onnx", "--seed", 7, "--output", output, "--json"
    )

    with InferenceSession(folder / "fixed.onnx") as session:
        feeds = make_inputs(session.get_inputs(), seed=7)
        (result,) = session.run(None, feeds)

    assert said.code == 0
    assert json.loads(said.out)["made_from_seed"] == 7
    np.testing.assert_array_equal(np.load(output)["y"], result)


def test_equal_seeds_give_equal_inputs_and_others_do_not():
    first, again, other = (
        make_inputs([argument("float")], seed=seed)["x"] for seed in (1, 1, 2)
    )

    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_an_open_first_dimension_is_the_batch_and_others_are_one():
    made = make_inputs([argument("float", ("N", None, 5))], seed=0, batch=4)

    assert made["x"].shape == (4, 1, 5)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("bool", "bool"),
        ("int64", "int64"),
        ("uint8", "uint8"),
        ("float16", "float16"),
        ("double", "float64"),
        ("bfloat16", "bfloat16"),
        ("float8e4m3fn", "float8_e4m3fn"),
        ("complex64", "complex64"),
    ],
)
def test_each_type_of_numbers_has_values(kind, dtype):
    assert make_inputs([argument(kind)], seed=0)["x"].dtype.name == dtype


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (argument("string"), "no random values"),
        (argument("float", (1 << 20, 1 << 20)), "too large"),
    ],
)
def test_an_input_without_random_values_is_refused(wrong, reason):
    with pytest.raises(InvalidArgument, match=reason):
        make_inputs([wrong], seed=0)
