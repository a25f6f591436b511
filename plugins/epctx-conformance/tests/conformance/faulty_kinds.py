"""Engines and graph transformers: an honest one each, and others with one fault each."""

from __future__ import annotations

import itertools
import time
from copy import deepcopy

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from epctx_core.errors import NotImplementedByProvider
from epctx_core.plugin import BaseEngine, write_in_place

# -- engines
# --------------------------------------------------------------------------------------

OPERATORS = {"Identity", "Flatten", "Neg", "Add", "MatMul", "Relu"}


class HonestPrepared:
    def __init__(self, model):
        self.evaluator = ReferenceEvaluator(model)

    def run(self, inputs, outputs=None):
        feeds = dict(zip(self.evaluator.input_names, inputs, strict=True))
        results = [np.array(value) for value in self.evaluator.run(None, feeds)]
        return results if outputs is None else write_in_place(results, outputs)


class HonestEngine(BaseEngine):
    """Runs a few operators on float32 by onnx.reference."""

    name = "honest 1.0"
    Prepared = HonestPrepared

    def prepare(self, model, weights=None, *, heavy=None):
        self.refuse(model)
        own = deepcopy(model)
        for tensor in own.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                value = weights[tensor.name]
                tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        return self.Prepared(own)

    def refuse(self, model):
        for node in model.graph.node:
            if node.domain or node.op_type not in OPERATORS:
                raise NotImplementedByProvider(f"{self.name} lacks {node.op_type}.")


class NamelessEngine(HonestEngine):
    name = "acme"


class WithoutPolicyEngine(HonestEngine):
    def __init__(self, policy):
        pass


class NoSubclass:
    name = "no subclass 1.0"


class AbstractEngine(BaseEngine):
    name = "abstract 1.0"


class RaisingEngine(HonestEngine):
    def refuse(self, model):
        for node in model.graph.node:
            if node.domain or node.op_type not in OPERATORS:
                raise KeyError(node.op_type)


class GreedyEngine(HonestEngine):
    def refuse(self, model):
        pass

    def prepare(self, model, weights=None, *, heavy=None):
        try:
            return super().prepare(model, weights)
        except Exception:  # noqa: BLE001 - the fault
            return None


class PromisingEngine(HonestEngine):
    def has_kernels(self, model):
        return True


class ChangingEngine(HonestEngine):
    def prepare(self, model, weights=None, *, heavy=None):
        prepared = super().prepare(model, weights)
        model.graph.name = "mine"
        return prepared


class WrongEngine(HonestEngine):
    class Prepared(HonestPrepared):
        def run(self, inputs, outputs=None):
            return [value + 1 for value in super().run(inputs)]


class ForgetfulEngine(HonestEngine):
    def prepare(self, model, weights=None, *, heavy=None):
        ones = {name: np.ones_like(value) for name, value in (weights or {}).items()}
        return super().prepare(model, ones)


class AliasingEngine(HonestEngine):
    class Prepared(HonestPrepared):
        def run(self, inputs, outputs=None):
            results = super().run(inputs)
            same = [np.array_equal(results[0], value) for value in inputs]
            return [inputs[0]] if same[0] else results


class ScribblingEngine(HonestEngine):
    class Prepared(HonestPrepared):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            if inputs[0].flags.writeable:
                inputs[0][...] = 0
            return results


class OwnOutputsEngine(HonestEngine):
    class Prepared(HonestPrepared):
        def run(self, inputs, outputs=None):
            return super().run(inputs)


class ReusingEngine(HonestEngine):
    class Prepared(HonestPrepared):
        results = None

        def run(self, inputs, outputs=None):
            found = super().run(inputs)
            if self.results is None:
                self.results = found
            for kept, value in zip(self.results, found, strict=True):
                kept[...] = value
            return self.results


class SharedStateEngine(HonestEngine):
    class Prepared(HonestPrepared):
        def run(self, inputs, outputs=None):
            self.inputs = inputs
            time.sleep(0.001)
            return super().run(self.inputs)


class HoardingEngine(HonestEngine):
    kept: list = []  # noqa: RUF012 - the fault

    def prepare(self, model, weights=None, *, heavy=None):
        self.kept.append(super().prepare(model, weights))
        return self.kept[-1]


class BadOptimiserEngine(HonestEngine):
    optimizes = True

    @classmethod
    def optimize_model(cls, model, weights, level, *, contrib=False, layouts=False):
        from epctx_core.plugin import OptimizedModel

        own = deepcopy(model)
        for node in own.graph.node:
            node.op_type = {"Neg": "Identity"}.get(node.op_type, node.op_type)
        return OptimizedModel(own, weights)


class CarelessEngine(HonestEngine):
    """Accepts Div, and gives back its first input."""

    def prepare(self, model, weights=None, *, heavy=None):
        if {node.op_type for node in model.graph.node} <= {"Div"}:
            return Unchanged()
        return super().prepare(model, weights)


class Unchanged:
    def run(self, inputs, outputs=None):
        return [np.array(inputs[0])]


FAULTY_ENGINES = {
    NoSubclass: ("it_is_a_subclass", "not a subclass of epctx_core.plugin.BaseEngine"),
    AbstractEngine: ("it_is_a_subclass", "abstract"),
    WithoutPolicyEngine: ("it_is_a_subclass", "not the policy that it was given"),
    NamelessEngine: ("its_name_is", "is 'acme', which is not a name and a version"),
    RaisingEngine: ("it_refuses_an_operator", "prepare raises KeyError"),
    GreedyEngine: ("it_refuses_an_operator", "accepts a model with the operator"),
    PromisingEngine: ("has_kernels_says", "has_kernels returns True"),
    ChangingEngine: ("preparing_a_model", "changed the model identity"),
    WrongEngine: ("its_results_are", "its results are wrong (identity)"),
    ForgetfulEngine: ("weights_that_are_given", "with weights beside it"),
    BadOptimiserEngine: ("an_optimised_model", "optimised, its results are wrong"),
    AliasingEngine: ("its_results_share", "shares memory with an input"),
    ScribblingEngine: ("it_does_not_change_inputs", "changed the input 'x'"),
    OwnOutputsEngine: ("outputs_that_are_given", "is not in the array"),
    ReusingEngine: ("a_later_run", "wrote into the results of the first"),
    SharedStateEngine: ("a_model_can_be_run", "gives other results than alone"),
    HoardingEngine: ("a_closed_model", "still in memory"),
    CarelessEngine: ("onnx_s_own_cases_d_", "test_div_example"),
}
"""Each faulty engine with the beginning of the check that names its fault, and words of
that.
"""

# -- graph transformers
# --------------------------------------------------------------------------------------

_COUNT = itertools.count()


def honest(model, weights, level):
    """Replace Sin(x) by Neg(Sin(Neg(x))), which computes the same."""
    return replace_sin(model, lambda y: f"{y}_negative")


def replace_sin(model, name_of, last="Neg"):
    nodes = []
    for node in model.graph.node:
        if (node.domain, node.op_type) != ("", "Sin"):
            nodes.append(node)
            continue
        (x,), (y,) = node.input, node.output
        first, second = name_of(y), f"{name_of(y)}_sine"
        nodes += [
            helper.make_node("Neg", [x], [first], f"{node.name}_first"),
            helper.make_node("Sin", [first], [second], f"{node.name}_sine"),
            helper.make_node(last, [second], [y], node.name),
        ]
    if len(nodes) == len(model.graph.node):
        return None
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def without_level(model, weights):
    return None


def giving_bytes(model, weights, level):
    return model.SerializeToString() if level else None


def renaming(model, weights, level):
    for node in model.graph.node:
        node.output[:] = [
            "z" if o == model.graph.output[0].name else o for o in node.output
        ]
    model.graph.output[0].name = "z"
    return model


def counting(model, weights, level):
    return replace_sin(model, lambda y: f"{y}_{next(_COUNT)}")


def hashing(model, weights, level):
    return replace_sin(model, lambda y: f"{y}_{hash(y)}")


def scribbling(model, weights, level):
    for view in weights.values():
        values = view.array()
        values.flags.writeable = True
        values[...] = 0


def dropping(model, weights, level):
    weights.clear()


def inventing(model, weights, level):
    changed = honest(model, weights, level)
    if changed is not None:
        tensor = changed.graph.initializer.add(name="new", data_type=1, dims=[1])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
    return changed


def wrong(model, weights, level):
    return replace_sin(model, lambda y: f"{y}_negative", last="Identity")


def careless(model, weights, level):
    """Take every Div for a Mul."""
    found = [node for node in model.graph.node if node.op_type == "Div"]
    for node in found:
        node.op_type = "Mul"
    return model if found else None


FAULTY_TRANSFORMERS = {
    without_level: ("it_is_called", "transform(model, weights, level)"),
    giving_bytes: ("it_returns_none_or", "returns a bytes instead of"),
    renaming: ("inputs_and_outputs", "become z ("),
    counting: ("the_same_model_gives_the_same_result", "a second call"),
    hashing: ("the_same_model_gives_the_same_result_in", "gives other bytes"),
    scribbling: ("it_does_not_change_weights", "wrote into the weight"),
    dropping: ("it_does_not_change_weights", "changed the mapping of weights"),
    inventing: ("an_external_weight", "external weight 'new'"),
    wrong: ("a_changed_model_computes", "is wrong: result 0 differs"),
    careless: ("onnx_s_own_cases_d_", "test_div_example"),
}
"""Each faulty transformer, as `FAULTY_ENGINES`."""
