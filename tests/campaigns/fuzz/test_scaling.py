"""Costs grow with a model's size: no repeated field, and no two of them, multiply.

Steps are counted, lines of Python that run, which is the same every time. What C code
repeats (the checker, protobuf, `in` of a tuple) only shows in time; the long run
measures that, too.
"""

from __future__ import annotations

import logging
import shutil
import time
from functools import cache
from itertools import combinations
from random import Random

import epctx_files
import onnx
import pytest
from epctx_report import make_report
from onnx import helper
from support.context_pairs import EP
from support.growing import METADATA_LISTS, REGISTRY, Growable, repeated_fields
from support.small_models import tensor
from support.steps import steps_of

import epctx_core as epctx

COUNT = 60
"""Entries; half of them are copies of each of the model's five or six nodes as
often.
"""
MOST_STEPS, MOST_SECONDS = 2.0, 2.5
"""Growth of costs that twice as many entries may cause: steps are the same every time,
so one line for each pair shows.
"""
NOISE, TOGETHER = 6000, 500
"""Steps that an attempt takes once, and not every time; and those that two fields may
take beyond each alone.
"""
PAIRS = 25
FIELDS = [*repeated_fields(), *METADATA_LISTS]
ALL_PAIRS = list(combinations(FIELDS, 2))
FOUND = [
    *[
        ("GraphProto.node", field)
        for field in ("ModelProto.opset_import", "pending", "TensorShapeProto.dim")
    ],
    *[
        ("TensorShapeProto.dim", field)
        for field in ("NodeProto.attribute", "AttributeProto.graphs")
    ],
]
"""Pairs that multiplied once."""
DRAWN = [*FOUND, *Random(8).sample(ALL_PAIRS, PAIRS)]  # noqa: S311 - the same every time


def loaded(path):
    """Load a model and close it."""
    epctx.InferenceSession(path, registry=REGISTRY).close()


def options():
    """Options of a compile for the EP that loads any node."""
    chosen = epctx.SessionOptions()
    chosen.add_provider(EP)
    return chosen


def beside(path):
    """Return where the model that is written goes, anew each time: a folder with a
    model costs more.
    """
    folder = path.parent / "out"
    shutil.rmtree(folder, ignore_errors=True)
    return folder / "out_ctx.onnx"


def relu(path, given, result):
    """Return another model, of one operator with a name that others have."""
    model = path.parent / f"{result}.onnx"
    if not model.exists():
        graph = helper.make_graph(
            [helper.make_node("Relu", [given], [result], "relu")], "other",
            [tensor(given)], [tensor(result)],
        )  # fmt: skip
        imports = [helper.make_opsetid("", 18)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=11), model)
    return model


def compiled(path):
    """Compile what is compiled again: EPContext nodes keep their payloads."""
    compiler = epctx.ModelCompiler(epctx.SessionOptions(), path, registry=REGISTRY)
    compiler.compile_to_file(beside(path))


ACTIONS = {
    "inspect": lambda path: epctx.inspect_model(path, registry=REGISTRY),
    "verify": lambda path: epctx.verify_model(path, registry=REGISTRY),
    "load": loaded,
    "explain": lambda path: epctx.explain_model(path, options(), registry=REGISTRY),
    "compile": compiled,
    "embed": lambda path: epctx_files.embed(path, beside(path)),
    "externalize": lambda path: epctx_files.externalize(path, beside(path)),
    "merge": lambda path: epctx_files.merge([path, relu(path, "y", "r")], beside(path)),
    "merge behind": lambda path: epctx_files.merge(
        [relu(path, "h", "x"), path], beside(path)
    ),
    "extract": lambda path: epctx_files.extract(path, beside(path), outputs=["y"]),
    "extract a node": lambda path: epctx_files.extract(path, beside(path), node="b"),
    "seal": lambda path: epctx_files.seal_model(
        path, path.with_name("sealed.onnx"), force=True
    ),
    "diff": lambda path: epctx_files.diff(path, relu(path, "y", "r"), weights=True),
    "report": lambda path: make_report(path).html(),
}
USED = [("inspect", False), ("verify", False), ("verify", True), ("load", True)]
"""Each with a model that loads, or with one that a load refuses late."""
FILES = ("embed", "externalize", "merge", "merge behind", "extract", "diff")
VERBS = [
    *[(action, False) for action in (*FILES, "extract a node", "report")],
    *[(action, True) for action in ("explain", "compile", "seal")],
]
"""What else reads models, each with the model of which it reads most."""


def attempted(action, path):
    """Do what a host does; a refusal is an answer, too."""
    try:
        ACTIONS[action](path)
    except epctx.EpctxError:
        return


def steps(action, path):
    """Count the lines of Python that an action runs."""
    return steps_of(lambda: attempted(action, path))


def seconds(action, path):
    """The least CPU time of three attempts."""
    times = []
    for _ in range(3):
        start = time.process_time()
        attempted(action, path)
        times.append(time.process_time() - start)
    return min(times)


@pytest.fixture(autouse=True)
def unlogged():
    """Log nothing: pytest would write every warning down, in Python."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def multiplying(folder, cost, cases, count, *, used=USED, most=MOST_STEPS, least=NOISE):
    """Return the cases of which twice as many entries cost more than `most` times as
    much more.
    """
    found = []
    for action, loadable in used:
        model = Growable(folder, loadable=loadable)
        # What is made once and kept is made before anything is counted.
        for _ in range(3):
            attempted(action, model.write(count, *FIELDS[::7]))
        grown = cache(
            lambda *fields, m=model, a=action: cost(a, m.write(COUNT, *fields))
        )
        for fields in cases:
            # Two that cost no more together than each alone are measured once, not
            # three times.
            if (
                len(fields) > 1
                and grown(*fields) <= sum(map(grown, fields)) - grown() + TOGETHER
            ):
                continue
            # What happens once, such as freeing what other tests left, is not there
            # when it is measured again.
            for _ in range(2):
                half, once, twice = (
                    cost(action, model.write(times * count // 2, *fields))
                    for times in (1, 2, 4)
                )
                if twice - once <= most * max(once - half, 0) + least:
                    break
            else:
                found.append(
                    f"{action} of {' and '.join(fields)}: {half:.4g}, {once:.4g}, "
                    f"{twice:.4g}"
                )
    return found


def test_every_repeated_field_of_onnx_can_be_grown(tmp_path):
    model = Growable(tmp_path, loadable=True)
    before = model.write(0).stat().st_size

    assert len(repeated_fields()) >= 50
    for field in FIELDS:
        assert model.write(20, field).stat().st_size > before


EXTENT = pytest.mark.parametrize(
    "used",
    [USED[1::2], pytest.param(USED[::2], marks=pytest.mark.stress)],
    ids=["daily", "more"],
)


@pytest.mark.parametrize(
    "used",
    [USED[3:], pytest.param(USED[:3], marks=pytest.mark.stress)],
    ids=["daily", "more"],
)
def test_no_repeated_field_makes_the_cost_grow_faster_than_the_model(used, tmp_path):
    """Every day for a load, which reads as a verification does."""
    assert not multiplying(
        tmp_path, steps, [(field,) for field in FIELDS], 2 * COUNT, used=used
    )


@EXTENT
def test_no_two_of_many_drawn_pairs_of_repeated_fields_multiply(used, tmp_path):
    assert not multiplying(tmp_path, steps, DRAWN, 2 * COUNT, used=used)


@pytest.mark.parametrize("action", FILES)
def test_no_two_of_the_drawn_pairs_multiply_in_work_on_files(action, tmp_path):
    assert not multiplying(tmp_path, steps, DRAWN, 2 * COUNT, used=[(action, False)])


def test_a_report_takes_as_much_longer_as_a_model_has_more_nodes(tmp_path):
    used = [("report", False)]

    # A page sorts and lays out all nodes: somewhat more than linear, far from 4.
    assert not multiplying(
        tmp_path, steps, [("GraphProto.node",)], COUNT, used=used, most=2.5
    )


@pytest.mark.stress
@pytest.mark.timeout(0)
@pytest.mark.parametrize("used", VERBS, ids=str)
def test_no_two_repeated_fields_multiply_in_any_verb(used, tmp_path):
    assert not multiplying(tmp_path, steps, ALL_PAIRS, 2 * COUNT, used=[used])


def test_the_segments_of_a_file_are_read_once_however_many_nodes_name_it(tmp_path):
    def cost(count):
        path = Growable(tmp_path, loadable=True).write(10 * count, "segments")
        model = onnx.load(path, load_external_data=False)
        carrier = next(node for node in model.graph.node if node.op_type == "EPContext")
        for number in range(count):
            copy = model.graph.node.add()
            copy.CopyFrom(carrier)
            copy.name = f"copy_{number}"
            copy.output[:] = [f"{name}_copy_{number}" for name in carrier.output]
        path.write_bytes(model.SerializeToString())
        return steps("load", path)

    cost(COUNT)
    once, twice, four_times = cost(COUNT), cost(2 * COUNT), cost(4 * COUNT)

    assert four_times - twice < MOST_SECONDS * (twice - once)


def test_what_a_function_is_written_for_is_looked_up_once_a_node(tmp_path):
    def cost(count):
        nodes = [helper.make_node("Relu", ["x"], [f"t{i}"]) for i in range(count)]
        older = [helper.make_opsetid("", 12)] * count
        function = helper.make_function("mine", "F", ["x"], ["t0"], nodes, older)
        graph = helper.make_graph(
            [helper.make_node("F", ["x"], ["y"], domain="mine")],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])],
        )
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
        model = helper.make_model(graph, functions=[function], opset_imports=imports)
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        return steps("load", path)

    cost(COUNT)
    once, twice, four_times = cost(COUNT), cost(2 * COUNT), cost(4 * COUNT)

    assert four_times - twice < MOST_SECONDS * (twice - once)


def test_a_domain_that_nobody_knows_costs_the_same_in_any_version(tmp_path):
    def cost(version):
        values = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
            for name in "xy"
        ]
        graph = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:]
        )
        imports = [("", 17), *((f"d{i}", version) for i in range(COUNT))]
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid(*i) for i in imports]
        )
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        return steps("load", path)

    cost(1)

    assert cost(2000) < cost(1) + NOISE


@pytest.mark.stress
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "used", USED, ids=["inspect", "verify a refused model", "verify", "load"]
)
def test_no_two_repeated_fields_multiply(used, tmp_path):
    assert not multiplying(tmp_path, steps, ALL_PAIRS, 3 * COUNT, used=[used])


@pytest.mark.stress
@pytest.mark.timeout(0)
def test_no_repeated_field_takes_time_that_grows_faster_than_the_model(tmp_path):
    cases = [(field,) for field in FIELDS]

    assert not multiplying(
        tmp_path, seconds, cases, 40 * COUNT, most=MOST_SECONDS, least=0.2
    )
