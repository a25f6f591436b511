"""An EP with the hook `allocate` finds what it makes and what it reads in its own
memory.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.acme import (
    X,
    compiled,
    kernel_ep,
    model_of,
    results_of,
    scaling,
    session_of,
)
from support.engine_eps import Alpha, Beta

import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, hookimpl


def allocating(base, name, answer=np.empty):
    """Return an EP class with `allocate`, which keeps what it gave, and what its
    partitions were run with.

    `gave`: the arrays; `runs`: inputs and outputs of each run of a partition.
    """

    class Allocating(base):
        gave: list = []  # noqa: RUF012 - one class a test
        runs: list = []  # noqa: RUF012

        @hookimpl
        def allocate(self, shape, dtype):
            array = answer(shape, dtype)
            self.gave.append(array)
            return array

        def _runnable(self, model):
            run = super()._runnable(model)

            def noting(inputs, outputs=None):
                self.runs.append((inputs, outputs))
                return run(inputs, outputs)

            return run and noting

    Allocating.name = name
    return Allocating


def own(base=Alpha, **given):
    return allocating(base, f"Own{base.name}", **given)


def among(array, arrays):
    """Whether an array has the memory of one of these; inputs are views."""
    return any(
        array.__array_interface__["data"][0] == other.__array_interface__["data"][0]
        for other in arrays
    )


def test_the_outputs_of_a_partition_are_in_its_eps_memory():
    ep = own()

    (result,) = results_of(model_of("y = Relu(x)"), ep)

    np.testing.assert_array_equal(result, np.maximum(X, 0))
    assert len(ep.gave) == 1
    assert result is ep.gave[0]


def test_each_run_asks_for_memory_of_its_own():
    ep = own()

    with session_of(model_of("y = Relu(x)"), ep) as session:
        first, second = (session.run(None, {"x": X + n})[0] for n in (0, 1))

    np.testing.assert_array_equal(first, np.maximum(X, 0))
    np.testing.assert_array_equal(second, np.maximum(X + 1, 0))


def test_a_loaded_context_model_gets_memory_of_its_ep_too(tmp_path):
    ep = own()
    context = compiled(model_of("y = Relu(x)"), tmp_path, ep)

    (result,) = results_of(context, ep)

    assert among(result, ep.gave)


def test_what_the_cpu_ep_makes_for_an_ep_is_in_the_eps_memory():
    ep = own()

    (result,) = results_of(model_of("a = Exp(x) y = Relu(a)"), ep)

    ((inputs, outputs),) = ep.runs
    np.testing.assert_allclose(result, np.exp(X), rtol=1e-6)
    assert among(inputs[0], ep.gave)
    assert among(outputs[0], ep.gave)


def test_what_another_ep_makes_for_an_ep_is_in_the_readers_memory():
    reader = own()

    (result,) = results_of(model_of("a = Neg(x) y = Relu(a)"), reader, Beta)

    np.testing.assert_array_equal(result, np.maximum(-X, 0))
    assert among(reader.runs[0][0][0], reader.gave)


def test_of_two_eps_with_memory_the_one_that_makes_a_value_gives_it():
    maker, reader = own(Beta), own(Alpha)

    results_of(model_of("a = Neg(x) y = Add(a, a)"), reader, maker)

    ((inputs, _),) = reader.runs
    assert among(inputs[0], maker.gave)


def test_values_in_bodies_are_in_the_eps_memory_too():
    ep = own()
    model = model_of(
        """
        y = If (c) <
          then_branch = t () => (float[2] p) { q = Exp(x) p = Relu(q) },
          else_branch = e () => (float[2] r) { r = Exp(x) }
        >
        """,
        inputs="float[2] x, bool c",
    )

    results_of(model, ep, x=X, c=np.array(True))

    ((inputs, outputs),) = ep.runs
    assert among(inputs[0], ep.gave)
    assert among(outputs[0], ep.gave)


def test_where_a_length_is_open_everybody_uses_memory_of_their_own():
    ep = own()

    (result,) = results_of(
        model_of("a = Exp(x) y = Relu(a)", inputs="float[n] x", outputs="float[n] y"),
        ep,
    )

    ((_, outputs),) = ep.runs
    assert outputs is None
    assert ep.gave == []
    np.testing.assert_allclose(result, np.exp(X), rtol=1e-6)


def test_a_partition_gets_memory_for_all_its_outputs_or_for_none():
    ep = own()
    model = model_of(
        "y = Relu(x) z = Relu(w)",
        inputs="float[2] x, float[n] w",
        outputs="float[2] y, float[m] z",
    )

    results_of(model, ep, x=X, w=X)

    ((_, outputs),) = ep.runs
    assert outputs is None


def test_text_is_in_nobodys_memory():
    ep = own()

    (result,) = results_of(
        model_of("y = Identity(x)", inputs="string[2] x", outputs="string[2] y"),
        ep,
        x=np.array(["a", "b"], object),
    )

    assert result.tolist() == ["a", "b"]
    assert ep.gave == []


def test_a_kernel_that_takes_outputs_writes_into_its_eps_memory():
    def adding(_node):
        def kernel(inputs, outputs):
            np.add(inputs[0], 1, out=outputs[0])
            return outputs

        return kernel

    kernel = scaling(
        domain="", op_type="Relu", since_version=14, create=adding, takes_outputs=True
    )
    ep = kernel_ep(kernel, allocate=hookimpl(ones))

    (result,) = results_of(model_of("y = Relu(x)"), ep)

    np.testing.assert_array_equal(result, X + 1)


def ones(self, shape, dtype):
    return np.ones(shape, dtype)


def test_a_kernel_that_takes_outputs_gets_none_without_the_hook():
    seen = []

    def noting(_node):
        return lambda inputs, outputs: seen.append(outputs) or [inputs[0] + 1]

    results_of(
        model_of("y = acme.Scale(x)"),
        kernel_ep(scaling(create=noting, takes_outputs=True)),
    )

    assert seen == [None]


def test_other_kernels_of_an_ep_with_the_hook_are_called_as_ever():
    asked = []

    @hookimpl
    def allocate(self, shape, dtype):
        asked.append(shape)
        return np.empty(shape, dtype)

    ep = kernel_ep(scaling(), allocate=allocate)

    (result,) = results_of(model_of("y = acme.Scale(x)"), ep)

    np.testing.assert_array_equal(result, X * 2)
    assert asked == []


def frozen(shape, dtype):
    array = np.zeros(shape, dtype)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda _shape, _dtype: None, "gave a NoneType"),
        (lambda shape, _dtype: np.empty(shape, np.float64), r"gave float64\[2\]"),
        (lambda _shape, dtype: np.empty(3, dtype), r"gave float32\[3\]"),
        (lambda _shape, dtype: np.empty(4, dtype)[::2], "not C-contiguous"),
        (frozen, "read-only memory"),
    ],
    ids=["nothing", "type", "shape", "strided", "read-only"],
)
def test_wrong_memory_is_a_mistake_of_the_plugin(answer, said):
    ep = own(answer=answer)

    with (
        session_of(model_of("y = Relu(x)"), ep) as session,
        pytest.raises(
            epctx.PluginError, match=rf"was asked for float32\[2\] and .*{said}"
        ) as caught,
    ):
        session.run(None, {"x": X})

    assert (caught.value.ep, caught.value.hook) == (ep.name, "allocate")


def test_a_hook_that_raises_names_itself():
    def full(_shape, _dtype):
        raise MemoryError("the device is full")

    ep = own(answer=full)

    with (
        session_of(model_of("y = Relu(x)"), ep) as session,
        pytest.raises(epctx.PluginError, match="the device is full") as caught,
    ):
        session.run(None, {"x": X})

    assert caught.value.hook == "allocate"


def test_memory_that_was_given_must_come_back():
    class Elsewhere(Alpha):
        name = "ElsewhereExecutionProvider"

        @hookimpl
        def compile(self, partitions):
            return [
                CompiledPartition(lambda inputs, _outputs: [np.maximum(inputs[0], 0)])
                for _ in partitions
            ]

        @hookimpl
        def allocate(self, shape, dtype):
            return np.empty(shape, dtype)

    with (
        session_of(model_of("y = Relu(x)"), Elsewhere) as session,
        pytest.raises(epctx.PluginError, match="gave back another array"),
    ):
        session.run(None, {"x": X})


def test_memory_is_asked_for_by_what_is_proven_and_not_by_what_is_declared():
    # The model says two rows of what has one.
    model = model_of(
        "a = Expand(x, s) y = Relu(a)",
        inputs="float[2] x, int64[1] s",
        outputs="float[n] y",
        inner="float[4] a",
    )

    ep = own()
    with session_of(model, ep) as session:
        (result,) = session.run(None, {"x": X, "s": np.array([2])})

    np.testing.assert_array_equal(result, np.maximum(X, 0))
    assert among(result, ep.gave)
