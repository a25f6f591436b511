"""Killed or watched at any moment: a load gives the old or the new model, never a mixture, never an error."""

from __future__ import annotations

import random
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from end_to_end.small_models import saved, snapshot
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx

PROGRAM = Path(__file__).with_name("compile_again.py")
OLD, NEW = 0, 1
BY_TIME, BY_CALL = 13, 12


class Harness:
    """Two models of one name, size and structure, a folder for their pair, and the program that compiles them.

    Between them both differ in weights that QNN takes and in weights that stay in the context model, so that
    old and new parts put together would give a third answer.
    """

    def __init__(self, network, folder):
        source = network("bert")
        self.sources = [self._variant(source.path, folder / f"{factor}", factor) for factor in (1.0, 0.75)]
        self.model = folder / "pair" / "bert_ctx.onnx"
        self.model.parent.mkdir()
        self._inputs = source.inputs
        self.answers = [self.answer(self._compiled(path)) for path in self.sources]
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.model), *map(str, self.sources)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n"

    @staticmethod
    def _compiled(source):
        """Compile a source elsewhere; return the context model, which answers to the last bit as the other does."""
        options = epctx.SessionOptions()
        options.add_provider("QNN")
        epctx.ModelCompiler(options, source).compile_to_file(context := source.with_name("known_ctx.onnx"))
        return context

    @staticmethod
    def _variant(source, folder, factor):
        """Return the network with its weights multiplied, and its result too, in double: QNN takes no double."""
        model = onnx.load(source)
        graph = model.graph
        for tensor in graph.initializer:
            if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) > 1:
                array = numpy_helper.to_array(tensor) * np.float32(factor)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        graph.initializer.append(numpy_helper.from_array(np.array([factor]), "factor"))
        graph.node.append(helper.make_node("Cast", [graph.output[0].name], ["wide"], to=TensorProto.DOUBLE))
        graph.node.append(helper.make_node("Mul", ["wide", "factor"], ["wider"]))
        graph.node.append(helper.make_node("Cast", ["wider"], ["result"], to=TensorProto.FLOAT))
        graph.output[0].name = "result"
        folder.mkdir()
        return saved(model, folder / "bert.onnx")

    def order(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def told(self, *words):
        """Give an order; return fate, seconds and calls."""
        self.order(*words)
        fate, seconds, calls = self.process.stdout.readline().split()
        return fate, float(seconds), int(calls)

    def has_answered(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def answer(self, path):
        with epctx.InferenceSession(path) as session:
            return session.run(None, self._inputs)[0]

    def loaded(self):
        """Return which of the two models a load gives, by its exact answer."""
        answer = self.answer(self.model)
        (which,) = [n for n, known in enumerate(self.answers) if np.array_equal(answer, known)]
        return which

    def staging(self):
        return [path for path in self.model.parent.iterdir() if path.name.startswith(".epctx-")]


@pytest.fixture
def harness(network, tmp_path):
    harness = Harness(network, tmp_path)
    yield harness
    harness.process.stdin.close()
    assert harness.process.wait(timeout=60) == 0
    harness.process.stdout.close()


def moments(seconds, calls):
    """Return 25 orders, seeded: spread over the whole time of a compile, and over its publication's calls."""
    generator = random.Random(20)  # noqa: S311 - a seed, no secret
    by_time = [("time", f"{(n + generator.random()) / BY_TIME * seconds:.5f}") for n in range(BY_TIME)]
    by_call = [
        ("call", str(generator.randint(1 + calls * n // BY_CALL, calls * (n + 1) // BY_CALL)))
        for n in range(BY_CALL)
    ]
    orders = by_time + by_call
    generator.shuffle(orders)
    return orders


def test_both_files_of_the_two_pairs_differ_and_have_one_size(harness):
    pairs = []
    for which in (OLD, NEW):
        harness.told("whole", "-", which)
        assert harness.loaded() == which
        pairs.append(snapshot(harness.model.parent))

    assert [len(content) for content in pairs[OLD].values()] == [
        len(content) for content in pairs[NEW].values()
    ]
    assert len(pairs[OLD]) == 2
    assert pairs[OLD].keys() == pairs[NEW].keys()
    assert not np.allclose(*harness.answers)


def test_a_mixture_of_the_two_pairs_is_refused(harness):
    harness.told("whole", "-", OLD)
    old = snapshot(harness.model.parent)
    harness.told("whole", "-", NEW)
    (harness.model.parent / "bert_qnn.bin").write_bytes(old["bert_qnn.bin"])

    with pytest.raises(epctx.InvalidGraph, match="not the one that the model was written with"):
        harness.loaded()


def test_a_kill_at_any_moment_of_a_compile_leaves_the_old_or_the_new_model(harness):
    _, seconds, calls = harness.told("whole", "-", OLD)
    before, kept, finished, staged = OLD, 0, 0, []

    for number, (kind, amount) in enumerate(moments(seconds, calls)):
        which = NEW if before == OLD else OLD
        fate, *_ = harness.told(kind, amount, which)
        after = harness.loaded()

        assert fate == "killed" or after == which, (number, kind, amount)
        finished += after == which
        kept += after == before
        staged += [path.name for path in harness.staging()]
        before = after

    assert kept + finished == BY_TIME + BY_CALL
    assert kept >= 5
    assert finished >= 1
    assert len(set(staged)) >= 5  # that many were killed while they published
    harness.told("whole", "-", NEW)
    assert harness.loaded() == NEW
    assert harness.staging() == []
    assert sorted(path.name for path in harness.model.parent.iterdir()) == ["bert_ctx.onnx", "bert_qnn.bin"]


def test_a_load_while_another_process_compiles_gives_the_old_or_the_new_model(harness):
    harness.order("alternate", 20, "-")

    loads = [harness.loaded()]
    while not harness.has_answered():
        loads.append(harness.loaded())

    assert set(loads) == {OLD, NEW}
    assert len(loads) >= 5
    assert harness.staging() == []
