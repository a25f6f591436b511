"""Memory that a host gives for outputs reaches the EP or the engine that computes them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import weakref
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from contract.test_allocate import allocating, among, own
from support.acme import X, compiled, kernel_ep, model_of, scaling, session_of
from support.engine_eps import Alpha, Beta

import epctx_core as epctx
from epctx_core.plugin import KernelDef


def noting(base=Alpha):
    """Return an EP without memory of its own that keeps what it was run with."""
    ep = allocating(base, f"Noting{base.name}")
    del ep.allocate
    return ep


def run_into(model, *eps, outputs, x=X, **options):
    with session_of(model, *eps) as session:
        return session.run(None, {"x": x}, outputs=outputs, **options)


def test_an_ep_writes_into_the_memory_that_the_host_gives():
    ep = noting()
    memory = np.zeros_like(X)

    (result,) = run_into(model_of("y = Relu(x)"), ep, outputs={"y": memory})

    assert result is memory
    assert ep.runs[0][1][0] is memory
    np.testing.assert_array_equal(memory, np.maximum(X, 0))


def test_a_loaded_context_model_writes_there_too(tmp_path):
    ep = noting()
    context = compiled(model_of("y = Relu(x)"), tmp_path, ep)
    memory = np.zeros_like(X)

    run_into(context, ep, outputs={"y": memory})

    assert ep.runs[0][1][0] is memory
    np.testing.assert_array_equal(memory, np.maximum(X, 0))


def test_the_hosts_memory_goes_before_the_eps_own():
    ep = own()
    memory = np.zeros_like(X)

    run_into(model_of("y = Relu(x)"), ep, outputs={"y": memory})

    assert ep.gave == []
    assert ep.runs[0][1][0] is memory


def test_outputs_without_memory_of_the_host_are_in_the_eps_own():
    ep = own()
    memory = np.zeros_like(X)
    model = model_of("y = Relu(x) z = Relu(y)", outputs="float[2] y, float[2] z")

    y, z = run_into(model, ep, outputs={"z": memory})

    assert z is memory
    assert among(y, ep.gave)
    np.testing.assert_array_equal(y, z)


def test_outputs_without_memory_get_some_where_the_ep_has_none():
    ep = noting()
    memory = np.zeros_like(X)
    model = model_of("y = Relu(x) z = Relu(y)", outputs="float[2] y, float[2] z")

    y, z = run_into(model, ep, outputs={"z": memory})

    ((_, written),) = ep.runs
    assert among(memory, written)
    assert among(y, written)
    np.testing.assert_array_equal(y, z)


def test_a_kernel_that_takes_outputs_writes_there():
    def into(inputs, outputs):
        np.multiply(inputs[0], 3, out=outputs[0])
        seen.append(outputs[0])
        return outputs

    seen = []
    memory = np.zeros_like(X)
    kernel = KernelDef(
        op_type="Relu", since_version=14, create=lambda _node: into, takes_outputs=True
    )

    run_into(model_of("y = Relu(x)"), kernel_ep(kernel), outputs={"y": memory})

    assert seen[0] is memory
    np.testing.assert_array_equal(memory, X * 3)


def test_the_result_of_a_kernel_that_takes_no_outputs_is_copied():
    memory = np.zeros_like(X)
    ep = kernel_ep(scaling())
    model = model_of("a = acme.Scale(x) y = Relu(a)", outputs="float[2] a, float[2] y")

    results = run_into(model, ep, outputs={"a": memory})

    assert results[0] is memory
    np.testing.assert_array_equal(memory, X * 2)
    np.testing.assert_array_equal(results[1], np.maximum(X * 2, 0))


def test_an_ep_gets_no_memory_for_a_length_that_is_open():
    ep = noting()
    memory = np.zeros_like(X)
    model = model_of("y = Relu(x)", inputs="float[n] x", outputs="float[n] y")

    (result,) = run_into(model, ep, outputs={"y": memory})

    assert result is memory
    assert ep.runs[0][1] is None
    np.testing.assert_array_equal(memory, np.maximum(X, 0))


def test_a_result_is_copied_where_the_ep_may_overwrite_its_input():
    ep = noting()
    x = X.copy()

    (result,) = run_into(model_of("y = Relu(x)"), ep, x=x, outputs={"y": x})

    assert result is x
    assert ep.runs[0][1] is None
    np.testing.assert_array_equal(x, np.maximum(X, 0))


def test_an_input_or_a_constant_that_is_an_output_is_copied():
    memory = [np.zeros(2, np.float32) for _ in range(2)]
    model = model_of(
        "y = Identity(x) z = Constant <value = float[2] {3, 4}> ()",
        outputs="float[2] y, float[2] z",
    )

    run_into(model, outputs=dict(zip("yz", memory, strict=True)))

    np.testing.assert_array_equal(memory, [X, [3, 4]])


@pytest.mark.parametrize("eps", [(), (Alpha, Beta)], ids=["the CPU EP", "EPs"])
def test_results_are_the_same_with_memory_for_all_some_and_no_outputs(eps):
    model = model_of(
        "a = Relu(x) y = Neg(a) z = Exp(y)",
        outputs="float[2] a, float[2] y, float[2] z",
    )
    with session_of(model, *eps) as session:
        expected = session.run(None, {"x": X})
        for names in ("", "a", "y", "z", "az", "ayz"):
            outputs = {name: np.zeros_like(X) for name in names}
            results = session.run(None, {"x": X}, outputs=outputs)

            np.testing.assert_array_equal(results, expected)
            for name, memory in outputs.items():
                assert results["ayz".index(name)] is memory


def test_requested_outputs_and_run_options_go_with_memory():
    memory = np.zeros_like(X)
    model = model_of("y = Relu(x) z = Exp(x)", outputs="float[2] y, float[2] z")
    with session_of(model) as session:
        results = session.run(
            ["z"], {"x": X}, epctx.RunOptions(), outputs={"z": memory}
        )

    assert len(results) == 1
    assert results[0] is memory


def test_text_and_types_of_ml_dtypes_are_written_into_memory():
    text = np.array(["a", "b"], object)
    model = model_of("y = Identity(x)", inputs="string[2] x", outputs="string[2] y")
    memory = np.array(["", ""], object)
    run_into(model, x=text, outputs={"y": memory})
    np.testing.assert_array_equal(memory, text)

    numbers = X.astype(ml_dtypes.bfloat16)
    model = model_of(
        "a = Identity(x) y = Identity(a)",
        inputs="bfloat16[2] x",
        outputs="bfloat16[2] y",
    )
    memory = np.zeros(2, ml_dtypes.bfloat16)
    run_into(model, x=numbers, outputs={"y": memory})
    np.testing.assert_array_equal(memory, numbers)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(2),
        np.zeros(3, np.float32),
        np.zeros(4, np.float32)[::2],
        np.broadcast_to(np.float32(0), (2,)),
        [0.0, 0.0],
    ],
    ids=["type", "shape", "strides", "read-only", "list"],
)
def test_memory_that_does_not_fit_is_refused(wrong):
    with pytest.raises(
        epctx.InvalidArgument, match=r"given for the output 'y'.* float\[2\]"
    ):
        run_into(model_of("y = Relu(x)"), Alpha, outputs={"y": wrong})


def test_memory_of_another_type_is_described():
    with pytest.raises(epctx.InvalidArgument, match=r"'y', float64\[2\], is not"):
        run_into(model_of("y = Relu(x)"), Alpha, outputs={"y": np.zeros(2)})


def test_memory_has_to_be_given_by_names():
    with pytest.raises(epctx.InvalidArgument, match="must map names to arrays"):
        run_into(model_of("y = Relu(x)"), Alpha, outputs=[np.zeros(2, np.float32)])


def test_memory_for_an_unknown_output_is_refused():
    with pytest.raises(epctx.InvalidArgument, match="no output 'why'"):
        run_into(model_of("y = Relu(x)"), outputs={"why": X})


@pytest.mark.parametrize("eps", [(), (Alpha,)], ids=["the CPU EP", "an EP"])
def test_memory_of_a_wrong_open_length_is_refused_by_the_run(eps):
    model = model_of("y = Relu(x)", inputs="float[n] x", outputs="float[n] y")

    with pytest.raises(epctx.RuntimeException, match=r"(?s)3.*2|2.*3"):
        run_into(model, *eps, outputs={"y": np.zeros(3, np.float32)})


def test_the_cpu_ep_does_not_copy_what_goes_into_given_memory():
    # Twice the output is the most that the process may grow by: the input and it.
    script = """
        import resource
        import numpy as np
        import epctx_core as epctx
        from support.acme import model_of

        model = model_of("y = Neg(x)", inputs="float[n] x", outputs="float[n] y")
        with epctx.InferenceSession(model.SerializeToString()) as session:
            x, y = (np.ones(1 << 26, np.float32) for _ in range(2))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            session.run(None, {"x": x}, outputs={"y": y})
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert y[-1] == -1
        print(after - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )

    assert int(done.stdout) < 64 << 10, "KiB more than before the run"


def test_runs_on_the_same_arrays_again_read_and_write_what_is_there_now():
    model = model_of("y = Relu(x)", inputs="float[n] x", outputs="float[n] y")
    x, memory = np.zeros(4, np.float32), np.zeros(4, np.float32)

    with session_of(model) as session:
        for number in (1, 2, 3):
            x[:] = number
            session.run(None, {"x": x}, outputs={"y": memory})
            assert memory.tolist() == [number] * 4


def test_arrays_that_got_another_shape_in_place_are_taken_as_they_are_now():
    model = model_of("y = Transpose(x)", inputs="float[n,m] x", outputs="float[m,n] y")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    memory = np.zeros((3, 2), np.float32)

    with session_of(model) as session:
        session.run(None, {"x": x}, outputs={"y": memory})
        np.testing.assert_array_equal(memory, x.T)
        x.shape, memory.shape = (3, 2), (2, 3)
        session.run(None, {"x": x}, outputs={"y": memory})

    np.testing.assert_array_equal(memory, x.T)


def test_memory_of_a_host_is_freed_when_the_host_drops_it():
    model = model_of("y = Relu(x)", inputs="float[n] x", outputs="float[n] y")

    with session_of(model) as session:
        for length in range(1, 20):
            x = np.full(length, length, np.float32)
            memory = np.zeros_like(x)
            session.run(None, {"x": x}, outputs={"y": memory})
            assert memory.tolist() == x.tolist()
            dropped = weakref.ref(x), weakref.ref(memory)
            del x, memory
            assert [ref() for ref in dropped] == [None, None]


def test_threads_write_into_memory_of_their_own_while_they_share_an_input():
    model = model_of("y = Relu(x)", inputs="float[n] x", outputs="float[n] y")
    x = np.arange(64, dtype=np.float32)
    given = [np.zeros_like(x) for _ in range(6)]

    with session_of(model) as session, ThreadPoolExecutor(3) as pool:
        turns = [given[turn % 6] for turn in range(300)]
        results = pool.map(
            lambda memory: session.run(None, {"x": x}, outputs={"y": memory})[0], turns
        )
        assert all(r is m for r, m in zip(results, turns, strict=True))

    for memory in given:
        np.testing.assert_array_equal(memory, x)
