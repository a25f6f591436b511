"""Mutated context models with `ep.isolate=all`: the same results or the same error as
without, and nothing left.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx
import pytest
from fuzz.cases import case, read_seeds
from fuzz.isolated import Worker
from fuzz.seeds import write_seeds
from support.faulty_eps import Pointing
from support.isolation import (
    children,
    compiled,
    open_pipes,
    options_for,
    registry_of,
    source,
)
from support.small_models import example

import epctx_core as epctx

COUNTS = (4, pytest.param(60, marks=pytest.mark.stress))
NOT_ISOLATED = "kernels"
"""The seed whose EP has kernels of single nodes, which cannot be in another process."""

pytestmark = pytest.mark.not_for_onnxruntime("one of the seeds has operators of acme")


@pytest.fixture(scope="module")
def mutated(tmp_path_factory):
    """Yields the fuzzer's cases that have an EP's work in them, with what became of
    each in the worker.
    """
    folder = tmp_path_factory.mktemp("isolated_runs")
    (folder / "seeds").mkdir()
    write_seeds(folder / "seeds")
    known = read_seeds(folder / "seeds")

    def cases():
        for number in itertools.count():
            made = case(known, number)
            if made.seed != NOT_ISOLATED and made.model != "in.npz":
                yield made, worker.run([number]).outcomes.keys()

    with Worker(folder / "seeds", folder / "case") as worker:
        yield cases


def written(made, folder):
    """Write a case's files; return its model's path."""
    folder.mkdir()
    for name, content in made.files.items():
        (folder / name).write_bytes(content)
    return folder / made.model


def inputs_for(session):
    """Return ones for each input, whose open dimensions are 1."""
    inputs = {}
    for each in session.get_inputs():
        shape = [d if isinstance(d, int) and d >= 0 else 1 for d in each.shape or ()]
        if each.tensor_type.dtype is None or math.prod(shape) > 1 << 20:
            raise epctx.InvalidArgument(
                f"no values are made for the input {each.name!r}."
            )
        inputs[each.name] = np.ones(shape, each.tensor_type.dtype)
    return inputs


def ending(path, isolate):
    """Load a model and run it; return its results, or its error.

    Not the error's node: a weight of a source model is read for one node without
    isolation, and for all with it. Nor the words of an error in a run: they say which
    node ran, or which hook.
    """
    try:
        session = epctx.InferenceSession(path, options_for(isolate=isolate))
    except epctx.EpctxError as error:
        return type(error), error.message, error.ep
    with session:
        try:
            results = session.run(None, inputs_for(session))
        except epctx.EpctxError as error:
            return type(error), error.ep
    return [(result.dtype, result.shape, result.tobytes()) for result in results]


def holds_work(path):
    return bool(epctx.inspect_model(path).ep_contexts)


def agree(cases, folder, count):
    """Hold that of so many cases each ends with isolation as without; return how they
    ended.
    """
    endings = []
    for place, made in enumerate(itertools.islice(cases, count)):
        path = written(made, folder / str(place))
        before = children(), open_pipes()
        endings.append(ending(path, isolate=""))
        assert ending(path, isolate="all") == endings[-1], made.number
        assert (children(), open_pipes()) == before, made.number
    return endings


@pytest.mark.parametrize("count", COUNTS)
def test_a_mutated_model_that_loads_runs_in_isolation_as_it_does_without(
    mutated, tmp_path, count
):
    def has_run(outcomes):
        return any(
            word.startswith("run ") and word != "run Stopped" for word in outcomes
        )

    ran = (made for made, outcomes in mutated() if has_run(outcomes))
    working = (
        made
        for made in ran
        if holds_work(written(made, tmp_path / f"found {made.number}"))
    )

    endings = agree(working, tmp_path, count)

    assert any(isinstance(end, list) for end in endings)


@pytest.mark.parametrize("count", COUNTS)
def test_a_mutated_payload_that_its_ep_refuses_is_refused_in_isolation_in_the_same_words(
    mutated, tmp_path, count
):
    def is_refused_by_an_ep(made):
        found = ending(written(made, tmp_path / f"found {made.number}"), isolate="")
        return found[0] is epctx.InvalidGraph and found[-1] is not None

    refused = (made for made, outcomes in mutated() if "load InvalidGraph" in outcomes)

    endings = agree(filter(is_refused_by_an_ep, refused), tmp_path, count)

    assert {kind for kind, *_ in endings} == {epctx.InvalidGraph}


def test_a_mutated_payload_that_crashes_its_ep_is_a_plugin_error_and_the_host_goes_on(
    tmp_path,
):
    options = options_for(Pointing, isolate="all")
    folder = compiled(
        tmp_path / "out", source(tmp_path), Pointing, options_for(Pointing, isolate="")
    )
    model, binary = folder / "m_ctx.onnx", folder / "m_pointing.bin"
    proto = onnx.load(model)
    del proto.metadata_props[
        :
    ]  # the manifest would give the change away before the EP sees it
    onnx.save(proto, model)
    payload = binary.read_bytes()
    before = children(), open_pipes()

    binary.write_bytes(payload[:-8] + b"\x08" + payload[-7:])
    with pytest.raises(
        epctx.PluginError,
        match="failed in load_context: its process is gone; it was ended by SIGSEGV",
    ):
        epctx.InferenceSession(model, options, registry=registry_of(Pointing))
    binary.write_bytes(payload)
    with epctx.InferenceSession(
        model, options, registry=registry_of(Pointing)
    ) as session:
        (result,) = session.run(None, {"x": example()})

    assert result.size
    assert (children(), open_pipes()) == before
