"""Share groups: several models, one payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx

from epctx_conformance.checks.contexts import graph_names
from epctx_conformance.memory import MemoryWriter
from epctx_conformance.models import (
    GraphBuilder,
    SmallModel,
    chain,
    rename_values,
    separated,
    single,
)
from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check
from epctx_core import ShareGroup, ShareReport
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from epctx_conformance.harness import Harness

NEEDS = ("partitions", "export", "share_groups")


def _make_members(harness: Harness, count: int = 2) -> list[SmallModel]:
    """Return different models that have weights in common: chains of one to `count`
    blocks.
    """
    return [
        chain(harness.block, length).copy(f"m{length}")
        for length in range(1, count + 1)
    ]


def _compile_group(
    harness: Harness, models: Sequence[SmallModel]
) -> tuple[Path, ShareReport]:
    """Compile models into one group; return the folder and what was written."""
    folder = harness.folder()
    with ShareGroup(folder, registry=harness.registry) as group:
        for model in models:
            group.compile(model.data, harness.session_options(), name=model.name)
    return folder, group.report


def _expect_loads(
    harness: Harness, folder: Path, models: Sequence[SmallModel], what: str
) -> None:
    for model in models:
        harness.expect_run(
            model, f"loaded out of {what}", folder / f"{model.name}_ctx.onnx"
        )


def _make_twins(harness: Harness) -> list[SmallModel]:
    return [single(harness.block).copy(name) for name in ("first", "second")]


def _make_several(harness: Harness) -> list[SmallModel]:
    return [
        separated(harness.block, harness.barrier, 3, seed=seed).copy(f"m{seed}")
        for seed in (1, 2)
    ]


def _add_idle(harness: Harness) -> list[SmallModel]:
    """Return a model, and one of which the EP takes nothing."""
    busy = single(harness.block)
    for operator in ("NonZero", "Shape", "Size", "Erf", "Sin"):
        graph = GraphBuilder()
        elem_type = (
            onnx.TensorProto.FLOAT
            if operator in ("Erf", "Sin")
            else onnx.TensorProto.INT64
        )
        graph.output(
            graph.node(operator, [graph.input("x", harness.block.shape)]),
            None,
            elem_type,
        )
        idle = graph.model("idle")
        if not harness.claimed(idle):
            return [busy, idle]
    raise Skipped("the EP takes a part of every model that the kit has")


_GROUPS: tuple[
    tuple[str, Callable[[Harness], list[SmallModel]], slice, str, tuple[str, ...]], ...
] = (
    (
        "a group of five loads in any order",
        lambda harness: _make_members(harness, 5),
        slice(None, None, -1),
        "a share group of five",
        NEEDS,
    ),
    # Its context model is removed before the second one is loaded.
    (
        "a member loads without the others' models",
        _make_members,
        slice(1, 2),
        "a share group without its first model",
        NEEDS,
    ),
    # Each with numbers of its own.
    (
        "members may have several partitions",
        _make_several,
        slice(None),
        "a share group with several partitions",
        (*NEEDS, "several_partitions"),
    ),
    # Equal work under two names.
    (
        "one model may be a member twice",
        _make_twins,
        slice(None),
        "a share group that has it twice",
        NEEDS,
    ),
    # The last member is the idle one.
    (
        "a member may have no partition",
        _add_idle,
        slice(1),
        "a share group with an idle member",
        NEEDS,
    ),
)
"""Title, members, slice of those that are loaded (models of others are removed), a text
about the group, abilities needed.
"""


def _make_load_check(
    members: Callable[[Harness], list[SmallModel]], loaded: slice, what: str
) -> CheckFunction:
    def function(harness: Harness) -> None:
        models = members(harness)
        folder, _ = _compile_group(harness, models)
        for model in models:
            if model not in models[loaded]:
                (folder / f"{model.name}_ctx.onnx").unlink(missing_ok=True)
        _expect_loads(harness, folder, models[loaded], what)

    return function


@check("sharing", "a group of two is three files, and both models load", needs=NEEDS)
def check_two(harness: Harness) -> None:
    """N models and one binary."""
    models = _make_members(harness)
    folder, report = _compile_group(harness, models)
    files = sorted(path.name for path in folder.iterdir())
    if len(report.binaries) != 1 or len(files) != len(models) + 1:
        raise CheckFailed(
            f"a group of two wrote {', '.join(files)}.",
            hint="Write one payload, when writer.final is True.",
        )
    _expect_loads(harness, folder, models, "a share group")


for _title, _models, _loaded, _what, _needs in _GROUPS:
    check("sharing", _title, needs=_needs)(_make_load_check(_models, _loaded, _what))


@check("sharing", "its names of graphs are unique in a group", needs=NEEDS)
def check_graph_names(harness: Harness) -> None:
    """`EPContextNode.graph_name`: two models have one in common only for equal
    partitions.
    """
    other, watch = harness.observed()
    models = _make_members(other)
    try:
        folder, _ = _compile_group(other, models)
    except EpctxError as error:
        graph_names(watch)
        raise CheckFailed(
            error.message,
            hint=(
                "Make the name of what the graph computes, such as Partition.digest; "
                "do not count."
            ),
        ) from error
    graph_names(watch)
    _expect_loads(harness, folder, models, "a share group by the names of its graphs")


@check(
    "sharing",
    "members live side by side and share what they load",
    needs=(*NEEDS, "concurrency"),
)
def check_together(harness: Harness) -> None:
    """All sessions open at once, with `ep.share_ep_contexts=1`; one ends before the
    others run.
    """
    models = _make_members(harness, 3)
    folder, _ = _compile_group(harness, models)
    config = {"ep.share_ep_contexts": "1"}
    first, *others = (
        harness.session(folder / f"{model.name}_ctx.onnx", config) for model in models
    )
    first.close()
    for model, session in zip(models[1:], others, strict=True):
        with session:
            harness.expect_run(model, "in a session that shares", session)


@check("sharing", "only the last member writes bytes", needs=NEEDS)
def check_not_final(harness: Harness) -> None:
    """With `writer.final` False: nodes, and a payload that they name, and nothing in
    it.
    """
    written: list[int] = []

    def not_final(honest: Any, **arguments: Any) -> Any:
        writer = MemoryWriter(arguments["writer"], final=False)
        honest(writer=writer)
        written.extend(payload.size for payload in writer.payloads.values())
        return honest(**arguments)

    other, _ = harness.observed(get_ep_context_nodes=not_final)
    models = _make_members(other)
    folder, _ = _compile_group(other, models)
    _expect_loads(other, folder, models, "a share group that was asked once more")
    if any(written):
        raise CheckFailed(
            f"it wrote {max(written)} bytes while writer.final was False.",
            hint=(
                "Start the payload, leave what was compiled in context.workspace, and "
                "write when final is True."
            ),
        )


@check(
    "sharing", "the same group gives the same bytes", needs=(*NEEDS, "deterministic")
)
def check_deterministic(harness: Harness) -> None:
    """In two folders."""
    models = _make_members(harness)
    first, second = (
        {
            (path.name, path.read_bytes())
            for path in _compile_group(harness, models)[0].iterdir()
        }
        for _ in range(2)
    )
    if first != second:
        names = sorted({name for name, _ in first ^ second})
        raise CheckFailed(f"a second compile of the group changed {', '.join(names)}.")


@check(
    "sharing",
    "weights that members have in common are stored once",
    needs=(*NEEDS, "weight_sharing"),
)
def check_weights_once(harness: Harness) -> None:
    """Two members with one large weight between them: the binary is nearer to one of
    them than to two.
    """
    alone = single(harness.large_block).copy("first")
    one, both = (
        sum(file.bytes for file in _compile_group(harness, models)[1].binaries)
        for models in ([alone], [alone, _add_output(alone)])
    )
    if both / one > 1.5:  # noqa: PLR2004 - one weight twice would be 2, once about 1
        raise CheckFailed(
            f"the binary of two members with one weight is {both / one:.1f} times "
            "that of one.",
            hint=(
                "Write weights with payload.write_tensor(view): equal ones are stored "
                "once."
            ),
        )


def _add_output(model: SmallModel) -> SmallModel:
    """Return a model of more work on the same weights."""
    second = model.copy("second")
    again = model.copy("again").proto.graph
    kept = {value.name for value in (*again.input, *again.initializer)}
    rename_values(again, lambda name: name if name in kept else f"again_{name}")
    for node in again.node:
        node.name = f"again_{node.name}"
    second.proto.graph.node.extend(again.node)
    second.proto.graph.output.extend(again.output)
    return second


@check("sharing", "a discarded group leaves nothing", needs=NEEDS)
def check_discarded(harness: Harness) -> None:
    """Closed without its end: no file, and every instance shut down."""
    folder = harness.folder()
    other, watch = harness.observed()
    group = ShareGroup(folder, registry=other.registry)
    for model in _make_members(other):
        group.compile(model.data, other.session_options(), name=model.name)
    group.discard()
    left = sorted(path.name for path in folder.iterdir())
    ended = [call.error for call in watch.of("shutdown")]
    if left or any(ended):
        raise CheckFailed(f"a discarded group left {left or ended}.")
