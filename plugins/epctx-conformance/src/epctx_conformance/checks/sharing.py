"""Share groups: several models, one payload."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import onnx

from epctx_conformance.memory import MemoryWriter
from epctx_conformance.models.building import SmallModel
from epctx_conformance.models.structures import chain, parted, single
from epctx_conformance.table import CheckFailed, Skipped, check
from epctx_core import ShareGroup, ShareReport
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from epctx_conformance.scene import Scene

NEEDS = ("partitions", "export", "share_groups")
SHARING = {"ep.share_ep_contexts": "1"}


def _named(model: SmallModel, name: str) -> SmallModel:
    return SmallModel(name, model.proto, step=model.step)


def _members(scene: Scene, count: int = 2) -> list[SmallModel]:
    """Return different models that have weights in common: chains of one to `count` blocks."""
    return [_named(chain(scene.block, length), f"m{length}") for length in range(1, count + 1)]


def _grouped(
    scene: Scene, models: Sequence[SmallModel], folder: Path | None = None
) -> tuple[Path, ShareReport]:
    """Compile models into one group; return the folder and what was written."""
    folder = folder or scene.folder()
    with ShareGroup(folder, registry=scene.registry) as group:
        for model in models:
            group.compile(model.data, scene.session_options(), name=model.name)
    return folder, group.report


def _expect_loads(scene: Scene, folder: Path, model: SmallModel, what: str, seed: int = 0) -> None:
    scene.expect_run(model, what, folder / f"{model.name}_ctx.onnx", feeds=model.feeds(seed))


@check("sharing", "a group of two is three files, and both models load", needs=NEEDS)
def check_two(scene: Scene) -> None:
    """N models and one binary."""
    models = _members(scene)
    folder, report = _grouped(scene, models)
    files = sorted(path.name for path in folder.iterdir())
    if len(report.binaries) != 1 or len(files) != len(models) + 1:
        raise CheckFailed(
            f"a group of two wrote {', '.join(files)}.", hint="Write one payload, when writer.final is True."
        )
    for model in models:
        _expect_loads(scene, folder, model, "loaded out of a share group")


@check("sharing", "the names that it gives its graphs do not meet in a group", needs=NEEDS)
def check_graph_names(scene: Scene) -> None:
    """`EPContextNode.graph_name`: two models have one in common only for equal partitions."""
    watched, watch = scene.observed()
    models = _members(watched)
    failed = None
    try:
        folder, _ = _grouped(watched, models)
    except EpctxError as error:
        failed = error
    described = [node for call in watch.of("get_ep_context_nodes") for node in call.result or ()]
    if all(node.graph_name is None for node in described):
        raise Skipped("the EP leaves the names of its graphs to the core")
    if failed is not None:
        raise CheckFailed(
            failed.message,
            hint="Make the name of what the graph computes, such as Partition.digest; do not count.",
        ) from failed
    for model in models:
        _expect_loads(scene, folder, model, "loaded out of a share group by the names of its graphs")


@check("sharing", "a group of five loads in any order", needs=NEEDS)
def check_five(scene: Scene) -> None:
    """The last member first."""
    models = _members(scene, 5)
    folder, _ = _grouped(scene, models)
    for model in reversed(models):
        _expect_loads(scene, folder, model, "loaded out of a share group of five")


@check("sharing", "members live side by side and share what they load", needs=(*NEEDS, "concurrency"))
def check_together(scene: Scene) -> None:
    """All sessions open at once, with `ep.share_ep_contexts=1`; one ends before the others run."""
    models = _members(scene, 3)
    folder, _ = _grouped(scene, models)
    sessions = [scene.session(folder / f"{model.name}_ctx.onnx", SHARING) for model in models]
    try:
        sessions[0].close()
        for model, session in list(zip(models, sessions, strict=True))[1:]:
            feeds = model.feeds()
            scene.expect_agreement(model, session.run(None, feeds), feeds, "in a session that shares")
    finally:
        for session in sessions:
            session.close()


@check("sharing", "a member loads when the others' models are gone", needs=NEEDS)
def check_alone(scene: Scene) -> None:
    """It needs its model and the binary."""
    models = _members(scene)
    folder, _ = _grouped(scene, models)
    (folder / f"{models[0].name}_ctx.onnx").unlink()
    _expect_loads(scene, folder, models[1], "loaded without the group's first model")


@check("sharing", "members with several partitions keep them apart", needs=(*NEEDS, "several_partitions"))
def check_several_partitions(scene: Scene) -> None:
    """Two members of three partitions each, with numbers of their own."""
    models = [_named(parted(scene.block, scene.barrier, 3, seed=seed), f"m{seed}") for seed in (1, 2)]
    folder, _ = _grouped(scene, models)
    for model in models:
        _expect_loads(scene, folder, model, "loaded out of a share group with several partitions")


@check("sharing", "one model may be a member twice", needs=NEEDS)
def check_twice(scene: Scene) -> None:
    """Equal work under two names."""
    model = single(scene.block)
    models = [_named(model, "first"), _named(model, "second")]
    folder, _ = _grouped(scene, models)
    for member in models:
        _expect_loads(scene, folder, member, "loaded out of a group that holds it twice")


@check("sharing", "a member without any of its work is no obstacle", needs=NEEDS)
def check_without_work(scene: Scene) -> None:
    """The last member is one of which the EP takes nothing."""
    graph = single(scene.block)
    idle = _idle(scene, graph)
    folder, _ = _grouped(scene, [_named(graph, "busy"), idle])
    _expect_loads(scene, folder, _named(graph, "busy"), "loaded out of a group with an idle member")


def _idle(scene: Scene, like: SmallModel) -> SmallModel:
    """Return a model of which the EP takes nothing."""
    value = like.proto.graph.input[0]
    for operator in ("NonZero", "Shape", "Size", "Erf", "Sin"):
        node = onnx.helper.make_node(operator, [value.name], ["y"], name="idle")
        kind = onnx.TensorProto.FLOAT if operator in ("Erf", "Sin") else onnx.TensorProto.INT64
        result = onnx.helper.make_tensor_value_info("y", kind, None)
        graph = onnx.helper.make_graph([node], "idle", [value], [result])
        proto = onnx.helper.make_model(graph, opset_imports=like.proto.opset_import, ir_version=9)
        model = SmallModel("idle", proto)
        if not scene.claimed(model):
            return model
    raise Skipped("the EP takes everything that the kit could make of it an idle model")


@check("sharing", "a member that is no longer the last writes no bytes", needs=NEEDS)
def check_not_final(scene: Scene) -> None:
    """With `writer.final` False: nodes, and a payload that they name, and nothing in it."""
    written: list[int] = []

    def not_final(honest: Any, **given: Any) -> Any:
        writer = MemoryWriter(given["writer"], final=False)
        honest(writer=writer)
        written.extend(payload.size for payload in writer.payloads.values())
        return honest(**given)

    watched, _ = scene.observed(get_ep_context_nodes=not_final)
    models = _members(watched)
    folder, _ = _grouped(watched, models)
    for model in models:
        _expect_loads(watched, folder, model, "loaded out of a group that was asked once more")
    if any(written):
        raise CheckFailed(
            f"it wrote {max(written)} bytes while writer.final was False.",
            hint="Start the payload, leave what was compiled in context.workspace, and write when final is True.",
        )


@check("sharing", "the same group gives the same bytes", needs=(*NEEDS, "deterministic"))
def check_deterministic(scene: Scene) -> None:
    """In two folders."""
    models = _members(scene)
    first, second = ({p.name: p.read_bytes() for p in _grouped(scene, models)[0].iterdir()} for _ in range(2))
    if first != second:
        different = sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
        raise CheckFailed(f"the second time {', '.join(different)} was another one.")


@check("sharing", "weights that members have in common are stored once", needs=(*NEEDS, "weight_sharing"))
def check_weights_once(scene: Scene) -> None:
    """Two members with one large weight between them: the binary is nearer to one of them than to two."""
    alone = [
        _named(single(scene.large_block), "first"),
        _second_with_the_same_weight(single(scene.large_block)),
    ]
    _, one = _grouped(scene, alone[:1])
    _, both = _grouped(scene, alone)
    ratio = sum(file.bytes for file in both.binaries) / sum(file.bytes for file in one.binaries)
    if ratio > 1.5:  # noqa: PLR2004 - one weight twice would be 2, once about 1
        raise CheckFailed(
            f"the binary of two members with one weight is {ratio:.1f} times that of one.",
            hint="Write weights with payload.write_tensor(view): equal ones are stored once.",
        )


def _second_with_the_same_weight(model: SmallModel) -> SmallModel:
    """Return a model of other work on the same weight: two outputs instead of one."""
    proto = deepcopy(model.proto)
    graph = proto.graph
    again = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    inputs = {value.name for value in graph.input} | {weight.name for weight in graph.initializer}
    for node in again:
        node.name = f"again_{node.name}"
        node.input[:] = [name if name in inputs else f"again_{name}" for name in node.input]
        node.output[:] = [f"again_{name}" for name in node.output]
    shape = [d.dim_value for d in graph.output[0].type.tensor_type.shape.dim]
    graph.node.extend(again)
    graph.output.append(
        onnx.helper.make_tensor_value_info(f"again_{graph.output[0].name}", onnx.TensorProto.FLOAT, shape)
    )
    return SmallModel("second", proto, step=model.step)


@check("sharing", "a group that is given up leaves nothing", needs=NEEDS)
def check_given_up(scene: Scene) -> None:
    """Closed without its end: no file, and every instance shut down."""
    folder = scene.folder()
    watched, watch = scene.observed()
    group = ShareGroup(folder, registry=watched.registry)
    for model in _members(watched):
        group.compile(model.data, watched.session_options(), name=model.name)
    group.discard()
    left = sorted(path.name for path in folder.iterdir())
    ended = [call.error for call in watch.of("shutdown")]
    if left or any(ended):
        raise CheckFailed(f"a group that was given up left {left or ended}.")
