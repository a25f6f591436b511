"""Context models between onnxruntime and epctx."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from cases import Cases
from onnx import helper, numpy_helper
from ort_sessions import (
    FLOAT,
    list_devices,
    make_model,
    make_options,
    open_session,
    same,
)
from running_cases import INNER, NUMPY, OPENVINO, QNN, VITISAI, feed_if, floats, make_if
from support.agreement import worst_relative_error
from support.networks.catalog import Catalog

import epctx_core as epctx

node = helper.make_node
Feeds = dict[str, np.ndarray]


def make_sums() -> bytes:
    """Return a model of one partition with two inputs of one type."""
    return make_model(
        [
            node("Neg", ["b"], ["c"], name="neg"),
            node("Sub", ["a", "c"], ["d"], name="sub"),
            node("Mul", ["d", "b"], ["y"], name="mul"),
        ],
        {"a": (FLOAT, [3]), "b": (FLOAT, [3])},
        {"y": (FLOAT, [3])},
    )


def make_around_erf() -> bytes:
    """Return a model of two partitions around an Erf, which QNN refuses."""
    return make_model(
        [
            node("Gemm", ["x", "w"], ["a"], name="gemm"),
            node("Erf", ["a"], ["b"], name="erf"),
            node("Sub", ["x", "b"], ["c"], name="sub"),
            node("Neg", ["c"], ["y"], name="neg"),
        ],
        {"x": (FLOAT, [3, 3])},
        {"y": (FLOAT, [3, 3])},
        {"w": floats(3, 3) / 8},
    )


def describe_nodes(graph: onnx.GraphProto) -> list[dict[str, Any]]:
    """Return the name, source and flags of each EPContext node, subgraphs' too."""
    found = []
    for each in graph.node:
        facts = {a.name: helper.get_attribute_value(a) for a in each.attribute}
        for value in facts.values():
            if isinstance(value, onnx.GraphProto):
                found += describe_nodes(value)
        if each.op_type == "EPContext":
            found.append(
                {
                    "name": each.name,
                    "source": facts["source"].decode(),
                    "main": facts.get("main_context", 1),
                    "embedded": facts.get("embed_mode", 1),
                    "partition": facts.get("partition_name", b"").decode(),
                    "inputs": list(each.input),
                }
            )
    return found


def read(model: Path | bytes) -> onnx.ModelProto:
    """Return a model, without external weights."""
    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    return onnx.load(model, load_external_data=False)


def make_epctx_options(eps: str | Sequence[str]) -> epctx.SessionOptions:
    """Return options with EPs on the devices that `hosting` chooses."""
    options = epctx.SessionOptions()
    for ep in [eps] if isinstance(eps, str) else eps:
        options.add_provider(ep, dict(list_devices(ep)[0].ep_options))
    return options


def run_in_epctx(
    model: Path | bytes, eps: str | Sequence[str], feeds: Feeds
) -> list[np.ndarray]:
    """Return the results of epctx's own session."""
    with epctx.InferenceSession(model, make_epctx_options(eps)) as session:
        return list(session.run(None, feeds))


def assess(
    model: Path | bytes, eps: str | Sequence[str], feeds: Feeds, expected: list[Any]
) -> dict[str, Any]:
    """Return what a context model holds, and whether each host runs it as expected."""
    report = epctx.verify_model(model, make_epctx_options(eps))
    return {
        "nodes": describe_nodes(read(model).graph),
        "onnxruntime": same(open_session(model, eps).run(None, feeds), expected),
        "epctx": same(run_in_epctx(model, eps, feeds), expected),
        "verified": report.ok,
        "findings": [finding.code for finding in report.findings],
    }


def compile_by_session(
    source: Path,
    output: Path,
    eps: str | Sequence[str],
    *,
    embeds: bool,
    entries: Mapping[str, str] | None = None,
) -> Path:
    """Have a session write a context model."""
    given = {
        "ep.context_enable": "1",
        "ep.context_file_path": str(output),
        "ep.context_embed_mode": str(int(embeds)),
        **(entries or {}),
    }
    open_session(source, eps, entries=given)
    return output


def compile_by_compiler(
    source: Path,
    output: Path,
    eps: str | Sequence[str],
    *,
    embeds: bool,
    entries: Mapping[str, str] | None = None,
) -> Path:
    """Have onnxruntime's ModelCompiler write a context model."""
    onnxruntime.ModelCompiler(
        make_options(eps, entries=entries),
        str(source),
        embed_compiled_data_into_model=embeds,
    ).compile_to_file(str(output))
    return output


def compile_by_epctx(
    source: Path, output: Path, eps: str | Sequence[str], *, embeds: bool
) -> Path:
    """Have epctx write a context model."""
    epctx.ModelCompiler(
        make_epctx_options(eps), source, embed_compiled_data_into_model=embeds
    ).compile_to_file(output)
    return output


def list_files(folder: Path) -> list[str]:
    """Return the names of everything in a folder."""
    return sorted(path.name for path in folder.iterdir())


class Source:
    """Model in a folder of its own, with inputs."""

    def __init__(self, folder: Path, model: bytes, feeds: Feeds) -> None:
        folder.mkdir(parents=True)
        self.path = folder / "model.onnx"
        self.path.write_bytes(model)
        self.feeds = feeds
        self.outputs = folder / "out"
        self._count = 0

    def make_output(self) -> Path:
        """Return the path of a context model in a folder that is new."""
        self._count += 1
        folder = self.outputs / str(self._count)
        folder.mkdir(parents=True)
        return folder / "m_ctx.onnx"


def make_sources(folder: Path) -> dict[str, tuple[Source, str | tuple[str, ...]]]:
    """Return models, and the EPs that they are for."""
    catalog = Catalog(folder / "networks")

    def load(name: str) -> Source:
        network = catalog.get(name)
        return Source(folder / name, network.path.read_bytes(), network.inputs)

    x = {"x": floats(3, 3)}
    return {
        "sums": (
            Source(folder / "sums", make_sums(), {"a": floats(3), "b": floats(3)}),
            NUMPY,
        ),
        "around": (Source(folder / "around", make_around_erf(), x), QNN),
        "two EPs": (Source(folder / "two", make_around_erf(), x), (QNN, OPENVINO)),
        "lstm": (load("lstm"), QNN),
        "bert": (load("bert"), OPENVINO),
        "resnet_int8": (load("resnet_int8"), VITISAI),
    }


def run_route(
    compile_: Any, source: Source, eps: str | tuple[str, ...], *, embeds: bool
) -> Any:
    """Return how a model comes back from one way of compiling."""
    output = source.make_output()
    compile_(source.path, output, eps, embeds=embeds)
    expected = open_session(source.path, eps).run(None, source.feeds)
    own = open_session(source.path, "").run(None, source.feeds)
    return {
        "files": list_files(output.parent),
        "error": worst_relative_error(expected, own),
        **assess(output, eps, source.feeds, expected),
    }


def run_bytes(source: Source, eps: str | tuple[str, ...]) -> Any:
    """Return how a model comes back as bytes."""
    data = onnxruntime.ModelCompiler(
        make_options(eps), str(source.path), embed_compiled_data_into_model=True
    ).compile_to_bytes()
    expected = open_session(source.path, eps).run(None, source.feeds)
    return {
        "files": list_files(source.path.parent),
        **assess(data, eps, source.feeds, expected),
    }


def report_routes() -> None:
    """Run every way of compiling."""
    cases = Cases()
    routes = {
        "session": compile_by_session,
        "compiler": compile_by_compiler,
        "epctx": compile_by_epctx,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, eps) in make_sources(Path(folder)).items():
            cases.add_as(f"{name} bytes", partial(run_bytes, source, eps))
            for route, compile_ in routes.items():
                for embeds in (True, False):
                    form = "embedded" if embeds else "external"
                    cases.add_as(
                        f"{name} {route} {form}",
                        partial(run_route, compile_, source, eps, embeds=embeds),
                    )
        cases.report()


# -- special models
# -----------------------------------------------------------------------------------


def run_orders(folder: Path) -> Any:
    """Return the outputs of each partition in the order that is written, and in
    onnxruntime's.
    """
    from onnxruntime_ep_epctx import hosted

    given = []
    original = hosted.read_fused_node

    def record(*arguments: Any) -> Any:
        found = original(*arguments)
        given.append(found.outputs)
        return found

    source, eps = make_sources(folder / "orders")["bert"]
    hosted.read_fused_node = record
    try:
        output = compile_by_session(source.path, source.make_output(), eps, embeds=True)
    finally:
        hosted.read_fused_node = original
    graph = read(output).graph
    return {
        "given": given,
        "written": [list(n.output) for n in graph.node if n.op_type == "EPContext"],
        **assess(
            output,
            eps,
            source.feeds,
            open_session(source.path, eps).run(None, source.feeds),
        ),
    }


def run_prefix(folder: Path) -> Any:
    """Return names of nodes with a prefix."""
    source = Source(folder / "prefix", make_around_erf(), {"x": floats(3, 3)})
    entries = {"ep.context_node_name_prefix": "left_"}
    found = {}
    for route, compile_ in (
        ("session", compile_by_session),
        ("compiler", compile_by_compiler),
    ):
        output = compile_(
            source.path, source.make_output(), QNN, embeds=False, entries=entries
        )
        expected = open_session(source.path, QNN).run(None, source.feeds)
        found[route] = assess(output, QNN, source.feeds, expected)
    return found


def run_if(folder: Path) -> Any:
    """Return how EPContext nodes in the branches of an If are loaded."""
    source = Source(folder / "if", make_if(), {})
    found = {}
    for embeds in (True, False):
        output = compile_by_epctx(source.path, source.make_output(), QNN, embeds=embeds)
        loaded = open_session(output, QNN)
        own = open_session(source.path, "")
        found["embedded" if embeds else "external"] = {
            "nodes": len(describe_nodes(read(output).graph)),
            "same": [same(loaded.run(None, f), own.run(None, f)) for f in feed_if()],
        }
    return found


def run_if_by_session(folder: Path) -> Any:
    """Return what a session writes of a model with an If, in whose branches
    onnxruntime writes no EPContext nodes.
    """
    model = onnx.load_from_string(make_if())
    # onnxruntime drops initializers that only subgraphs read, whatever EPs take.
    del model.graph.initializer[:]
    weight = helper.make_tensor_value_info("w", FLOAT, [2, 3])
    model.graph.input.append(weight)
    source = Source(folder / "if_session", model.SerializeToString(), {})
    own = open_session(source.path, "")
    found = {}
    for embeds in (True, False):
        output = compile_by_session(
            source.path, source.make_output(), QNN, embeds=embeds
        )
        feeds = [{**each, "w": floats(2, 3)} for each in feed_if()]
        found["embedded" if embeds else "external"] = {
            "files": list_files(output.parent),
            "hosts": [assess(output, QNN, f, own.run(None, f)) for f in feeds],
        }
    return found


def run_only_inside(folder: Path) -> Any:
    """Return the files of a model whose EP takes only nodes in branches."""
    model = onnx.load_from_string(make_if())
    del model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [2, 3]))
    model.graph.node[1].op_type = "Erf"
    source = Source(folder / "inside", model.SerializeToString(), {})
    output = source.make_output()
    session = open_session(
        source.path,
        INNER,
        entries={"ep.context_enable": "1", "ep.context_file_path": str(output)},
    )
    own = open_session(source.path, "")
    feeds = [{**each, "w": floats(2, 3)} for each in feed_if()]
    return {
        "files": list_files(output.parent),
        "same": [same(session.run(None, f), own.run(None, f)) for f in feeds],
    }


def run_initializer(folder: Path) -> Any:
    """Return how a node is loaded whose input is an initializer."""
    b = floats(3)
    source = Source(folder / "initializer", make_sums(), {"a": floats(3)})
    found = {}
    own = open_session(source.path, "").run(None, {**source.feeds, "b": b})
    for route, compile_ in (
        ("session", compile_by_session),
        ("epctx", compile_by_epctx),
    ):
        output = compile_(source.path, source.make_output(), NUMPY, embeds=True)
        model = onnx.load(output)
        model.graph.initializer.append(numpy_helper.from_array(b, "b"))
        del model.graph.input[1]
        output.write_bytes(model.SerializeToString())
        found[route] = assess(output, NUMPY, source.feeds, own)
    return found


def run_again(folder: Path) -> Any:
    """Return what compiling a context model once more gives."""
    source = Source(folder / "again", make_around_erf(), {"x": floats(3, 3)})
    found = {}
    for embeds in (True, False):
        first = compile_by_session(
            source.path, source.make_output(), QNN, embeds=embeds
        )
        for route, compile_ in (
            ("session", compile_by_session),
            ("compiler", compile_by_compiler),
        ):
            second = first.with_name(f"{route}.onnx")
            compile_(first, second, QNN, embeds=embeds)
            expected = open_session(source.path, QNN).run(None, source.feeds)
            found[f"{route} {'embedded' if embeds else 'external'}"] = {
                "files": list_files(first.parent),
                **assess(second, QNN, source.feeds, expected),
            }
            second.unlink()
    return found


def run_elsewhere(folder: Path) -> Any:
    """Return the error of a context model that is compiled once more into another
    folder.
    """
    source = Source(folder / "elsewhere", make_around_erf(), {})
    first = compile_by_session(source.path, source.make_output(), QNN, embeds=False)
    output = source.make_output()
    try:
        compile_by_session(first, output, QNN, embeds=False)
        error = ""
    except Exception as raised:  # noqa: BLE001 - its text is compared
        error = str(raised)
    return {"error": error, "files": list_files(output.parent)}


def run_over(folder: Path) -> Any:
    """Return what a second compile does to the files of the first, and what it does
    once the model of the first is gone.
    """
    x = {"x": floats(3, 3)}
    source = Source(folder / "over", make_around_erf(), x)
    other = Source(folder / "over_other", make_around_erf(), x)
    found = {}
    for route, compile_ in (
        ("session", compile_by_session),
        ("compiler", compile_by_compiler),
    ):
        output = source.make_output()
        compile_(source.path, output, QNN, embeds=False)
        before = {p.name: p.read_bytes() for p in output.parent.iterdir()}
        refusal = ""
        try:
            compile_(other.path, output, QNN, embeds=False)
        except Exception as error:  # noqa: BLE001 - onnxruntime's own
            refusal = str(error)
        kept = {p.name: p.read_bytes() for p in output.parent.iterdir()} == before
        output.unlink()
        compile_(other.path, output, QNN, embeds=False)
        after = {p.name: p.read_bytes() for p in output.parent.iterdir()}
        expected = open_session(other.path, QNN).run(None, x)
        found[route] = {
            "refusal": refusal,
            "kept": kept,
            "files": [sorted(before), sorted(after)],
            "changed": sorted(k for k in before if before[k] != after.get(k)),
            **assess(output, QNN, x, expected),
        }
    return found


def run_beside(folder: Path) -> Any:
    """Return whether two models in one folder keep their files."""
    x = {"x": floats(3, 3)}
    sources = [Source(folder / f"beside{i}", make_around_erf(), x) for i in range(2)]
    place = sources[0].make_output().parent
    outputs = [place / "a_ctx.onnx", place / "b_ctx.onnx"]
    for source, output in zip(sources, outputs, strict=True):
        compile_by_session(source.path, output, QNN, embeds=False)
    found = [
        assess(output, QNN, x, open_session(source.path, QNN).run(None, x))
        for source, output in zip(sources, outputs, strict=True)
    ]
    return {"files": list_files(place), "models": found}


def run_foreign(folder: Path) -> Any:
    """Return what becomes of another model's file that is in the way."""
    x = {"x": floats(3, 3)}
    source = Source(folder / "foreign", make_around_erf(), x)
    first = compile_by_session(source.path, source.make_output(), QNN, embeds=False)
    # Both name their payload after `m`.
    second = first.with_name("m.onnx")
    before = {path.name: path.read_bytes() for path in first.parent.iterdir()}
    found: dict[str, Any] = {}
    for route, compile_ in (
        ("session", compile_by_session),
        ("compiler", compile_by_compiler),
    ):
        try:
            compile_(source.path, second, QNN, embeds=False)
            error = ""
        except Exception as raised:  # noqa: BLE001 - its text is compared
            error = str(raised)
        after = {path.name: path.read_bytes() for path in first.parent.iterdir()}
        found[route] = {"error": error, "kept": before == after}
    return found


def damage(model: Path) -> None:
    """Change a byte of the payloads in a model and beside it."""
    proto = onnx.load(model, load_external_data=False)
    for each in proto.graph.node:
        for attribute in each.attribute:
            embeds = {a.name: a.i for a in each.attribute}.get("embed_mode", 1)
            if attribute.name == "ep_cache_context" and attribute.s and embeds:
                attribute.s = attribute.s[:-1] + bytes([attribute.s[-1] ^ 1])
    model.write_bytes(proto.SerializeToString())
    for path in model.parent.glob("*.bin"):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def run_damaged(folder: Path) -> Any:
    """Return the errors of models with a damaged payload, for an EP that does not look
    for damage.
    """
    source = Source(folder / "damaged", make_sums(), {})
    found = {}
    for route, compile_ in (
        ("session", compile_by_session),
        ("epctx", compile_by_epctx),
    ):
        for embeds in (True, False):
            for again in (False, True):
                model = compile_(
                    source.path, source.make_output(), NUMPY, embeds=embeds
                )
                if again:
                    second = model.with_name("again.onnx")
                    model = compile_by_session(model, second, NUMPY, embeds=embeds)
                damage(model)
                form = "embedded" if embeds else "external"
                found[f"{route} {form}{' again' if again else ''}"] = {
                    "onnxruntime": find_error(open_session, model, NUMPY),
                    "epctx": find_error(
                        epctx.InferenceSession, model, make_epctx_options(NUMPY)
                    ),
                    "verified": epctx.verify_model(model, make_epctx_options(NUMPY)).ok,
                }
    return found


def find_error(call: Any, *arguments: Any) -> str:
    """Return the text of what a call raises."""
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - its text is compared
        return str(error)
    return ""


def report_special() -> None:
    """Run what needs models of its own."""
    cases = Cases()
    with tempfile.TemporaryDirectory() as folder:
        for run in (
            run_orders,
            run_prefix,
            run_if,
            run_if_by_session,
            run_only_inside,
            run_initializer,
            run_again,
            run_elsewhere,
            run_over,
            run_beside,
            run_foreign,
            run_damaged,
        ):
            cases.add_as(run.__name__.removeprefix("run_"), partial(run, Path(folder)))
        cases.report()
