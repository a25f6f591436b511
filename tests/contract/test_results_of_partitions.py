"""Results of an EP's partitions are checked against the model's declarations, compiled
or loaded.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.acme import X, compiled, model_of, session_of
from support.engine_eps import Alpha

import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, hookimpl

TWO = model_of("y = Relu(x) z = Add(x, x)", outputs="float[2] y, float[2] z")


def spoiling(spoil):
    """Return an EP whose partitions give what `spoil` makes of their inputs and right
    results.
    """

    class Spoiling(Alpha):
        name = "SpoilingExecutionProvider"

        def _runnable(self, model):
            run = super()._runnable(model)
            return run and (
                lambda inputs, outputs=None: spoil(inputs, list(run(inputs, outputs)))
            )

    return Spoiling


SPOILT = {
    "type": (
        lambda _i, r: [r[0], r[1].astype(np.float64)],
        r"gave float64\[2\] for (the output )?'z', (which is|and the context model declares) ",
    ),
    "length": (
        lambda _i, r: [r[0][:1].copy(), r[1]],
        r"gave float32\[1\] for (the output )?'y', and (type inference gives|the context model declares) float",
    ),
    "rank": (
        lambda _i, r: [r[0].reshape(1, 2).copy(), r[1]],
        r"gave float32\[1, 2\] for (the output )?'y'",
    ),
    "too few": (lambda _i, r: r[:1], "gave 1 results for 2 outputs"),
    "nothing": (lambda _i, _r: None, "gave a NoneType instead of a list of arrays"),
    "a number": (
        lambda _i, r: [r[0], 5.0],
        "gave a float instead of an array for the output 'z'",
    ),
    "an input": (
        lambda i, r: [r[0], i[0]],
        "gave an output 'z' that shares memory with an input",
    ),
    "a part of an input": (
        lambda i, r: [i[0].reshape(2), r[1]],
        "gave an output 'y' that shares memory",
    ),
    "strided": (
        lambda _i, r: [np.repeat(r[0], 2)[::2], r[1]],
        "gave an output 'y' that is not C-contiguous",
    ),
}


@pytest.mark.parametrize("loaded", [False, True], ids=["compiled", "loaded"])
@pytest.mark.parametrize(("spoil", "said"), SPOILT.values(), ids=SPOILT)
def test_a_wrong_result_names_plugin_and_partition(spoil, said, loaded, tmp_path):
    ep = spoiling(spoil)
    model = compiled(TWO, tmp_path, ep) if loaded else TWO
    # What a loaded node has to give, nobody but its file says; and that a shape is
    # another one, nobody but inference.
    in_doubt = "float32" in said or (loaded and "float64" in said)
    error = epctx.InvalidGraph if in_doubt else epctx.PluginError

    with session_of(model, ep) as session, pytest.raises(error, match=said) as caught:
        session.run(None, {"x": X})

    assert caught.value.ep == ep.name
    assert caught.value.node in str(caught.value)
    assert "the run of" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "harmless",
    [
        lambda _i, r: tuple(r),
        lambda _i, r: [np.vstack(r)[0], r[1]],
        lambda _i, r: [r[0].view(np.ndarray), r[1]],
    ],
    ids=["a tuple", "rows of one array", "a view of its own"],
)
def test_what_only_looks_unusual_passes(harmless):
    with session_of(TWO, spoiling(harmless)) as session:
        y, z = session.run(None, {"x": X})

    np.testing.assert_array_equal(y, np.maximum(X, 0))
    np.testing.assert_array_equal(z, X + X)


@pytest.mark.parametrize("wrong", [{"run": "x"}, {"run": None, "close": "x"}])
def test_a_partition_that_cannot_be_called_is_refused_where_it_is_made(wrong):
    class Uncallable(Alpha):
        name = "UncallableExecutionProvider"

        @hookimpl
        def compile(self, partitions):
            return [CompiledPartition(wrong["run"], close=wrong.get("close"))]

    with pytest.raises(epctx.EPFail, match="takes functions as run and close, not 'x'"):
        session_of(model_of("y = Relu(x)"), Uncallable)


@pytest.mark.parametrize("body", ["y = Relu(x)", "a = Exp(x) y = Relu(a)"])
def test_inputs_cannot_be_written_to_whosever_they_are(body):
    def overwrite(inputs, _results):
        inputs[0][:] = 7

    x = X.copy()

    with (
        session_of(model_of(body), spoiling(overwrite)) as session,
        pytest.raises(epctx.RuntimeException, match="destination is read-only"),
    ):
        session.run(None, {"x": x})

    np.testing.assert_array_equal(x, X)
    assert x.flags.writeable


def test_the_same_result_again_as_an_input_is_noticed():
    kept = []
    ep = spoiling(lambda _inputs, results: kept.append(results) or kept[0])

    with session_of(model_of("y = Relu(x)"), ep) as session:
        (first,) = session.run(None, {"x": X})
        with pytest.raises(epctx.PluginError, match="shares memory with an input"):
            session.run(None, {"x": first})


def test_open_lengths_may_be_any_and_known_ones_still_count():
    model = model_of("y = Relu(x)", inputs="float[n,2] x", outputs="float[n,2] y")
    cut = spoiling(lambda _inputs, results: [results[0][:1].copy()])
    narrow = spoiling(lambda _inputs, results: [results[0][:, :1].copy()])
    feeds = {"x": np.ones((3, 2), np.float32)}

    with session_of(model, cut) as session:
        assert session.run(None, feeds)[0].shape == (1, 2)
    with (
        session_of(model, narrow) as session,
        pytest.raises(epctx.InvalidGraph, match=r"gave float32\[3, 1\]"),
    ):
        session.run(None, feeds)
