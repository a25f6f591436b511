"""Before anything is published, each EP reads back what it wrote; what it cannot read
is published nowhere.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from support.honest_ep import MAGIC, HonestProvider
from support.routes import refused
from support.small_models import chain, saved, snapshot
from support.validating_eps import options_with, registry_with

import epctx_core as epctx
from epctx_core.errors import NoSuchFile, NotFound, PackageMissing
from epctx_core.plugin import CompiledPartition, Finding, Purpose, Severity, hookimpl

NODES = ["Relu", "Softplus", "Add", "Softplus", "Sigmoid"]
"""The EPs take three partitions of these."""


class Whole(HonestProvider):
    """Loads without a device; notes what is asked of it."""

    seen: ClassVar[list[str]] = []

    def __init__(self, context):
        super().__init__(context)
        self.purpose = context.purpose.value
        self.seen.append(f"made to {self.purpose}")

    @hookimpl
    def load_context(self, nodes, reader):
        self.seen.append(f"loads {len(nodes)} to {self.purpose}")
        assert not self.compiled
        payloads = {id(reader.payload(node)) for node in nodes}
        assert len(payloads) == 1
        loaded = super().load_context(nodes, reader)
        return [
            CompiledPartition(one.run, close=lambda: self.seen.append("closes"))
            for one in loaded
        ]

    @hookimpl
    def shutdown(self):
        self.seen.append("shut down")
        super().shutdown()


class Refusing(Whole):
    """Refuses what it wrote itself, as a compiler does that wrote half of a graph."""

    @hookimpl
    def load_context(self, nodes, reader):
        node = nodes[-1]
        raise epctx.InvalidGraph(
            f"the graph {node.partition_name} has no end.", node=node.name
        )


class RefusingHead(HonestProvider):
    """Looks at the beginning of what it wrote, needs a device for the rest, and finds a
    fault.
    """

    loads_without_device = False

    @classmethod
    def verify_payloads(cls, context, nodes, reader):
        assert context.purpose is Purpose.EXPORT
        assert bytes(reader.payload(nodes[0]).view[: len(MAGIC)]) == MAGIC
        fault = Finding(
            Severity.ERROR,
            "container-refused",
            "its header is of another version.",
            node=nodes[0].name,
        )
        return [fault]

    @hookimpl
    def load_context(self, nodes, reader):
        raise AssertionError("this needs a device")


def fresh(cls):
    return type(cls.__name__, (cls,), {"seen": []})


def source(folder):
    return saved(chain(NODES), folder / "m.onnx")


def compiler(ep, model, *, embed=False, **entries):
    return epctx.ModelCompiler(
        options_with(ep, **entries), model, embed, registry=registry_with(ep)
    )


def to_file(ep, model, **entries):
    compiler(ep, model, **entries).compile_to_file()


def to_bytes(ep, model, **entries):
    compiler(
        ep, model, ep__context_file_path=model.parent / "m_ctx.onnx", **entries
    ).compile_to_bytes()


def embedded(ep, model, **entries):
    compiler(ep, model, embed=True, **entries).compile_to_file()


def to_a_stream(ep, model, **entries):
    def write(_piece):
        pytest.fail("the host was given a model that does not load")

    writer = write if ep.__name__.startswith("Refusing") else len
    compiler(ep, model, embed=True, **entries).compile_to_stream(writer)


def to_a_callback(ep, model, **entries):
    def write(_name, _data):
        assert not ep.__name__.startswith("Refusing"), (
            "the host was given a payload that does not load"
        )

    made = compiler(ep, model, **entries)
    made.set_ep_context_data_write_func(write)
    made.compile_to_bytes()


def by_a_session(ep, model, **entries):
    options = options_with(ep, ep__context_enable=1, **entries)
    epctx.InferenceSession(model, options, registry=registry_with(ep)).close()


def into_a_cache(ep, model, **entries):
    cache = model.parent / "cache"
    epctx.load_or_compile(
        model, options_with(ep, **entries), cache, registry=registry_with(ep)
    ).close()
    assert list(cache.rglob("*_ctx.onnx"))


def of_a_share_group(ep, model, **entries):
    with epctx.ShareGroup(registry=registry_with(ep)) as group:
        group.compile(model, options_with(ep, **entries))
        group.compile(
            saved(chain(NODES[:2]), model.parent.parent / "n.onnx"),
            options_with(ep, **entries),
        )


WAYS = [
    to_file,
    to_bytes,
    embedded,
    to_a_stream,
    to_a_callback,
    by_a_session,
    of_a_share_group,
]


@pytest.mark.parametrize("ep", [Refusing, RefusingHead])
@pytest.mark.parametrize("way", WAYS)
def test_what_an_ep_cannot_read_back_is_published_nowhere(way, ep, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    model = source(folder)
    before = snapshot(folder)

    with pytest.raises(
        epctx.PluginError, match="cannot read back what it wrote for"
    ) as caught:
        way(fresh(ep), model)

    error = caught.value
    assert (error.ep, error.hook) == (
        ep.name,
        "verify_payloads" if ep is RefusingHead else "load_context",
    )
    assert error.node.startswith(ep.name)
    assert error.node in error.message
    assert "ep.context_read_back" in error.hint
    assert snapshot(folder) == before


def test_what_an_ep_raises_while_it_reads_back_names_it_once(tmp_path):
    class Raising(Whole):
        @hookimpl
        def load_context(self, nodes, reader):
            raise ValueError("no room")

    with pytest.raises(epctx.PluginError) as caught:
        to_file(fresh(Raising), source(tmp_path))

    message = caught.value.message
    assert (
        f"{caught.value.node}: failed in load_context: ValueError: no room" in message
    )


@pytest.mark.parametrize(
    "kind", [epctx.InvalidArgument, PackageMissing, NotFound, NoSuchFile]
)
def test_an_error_of_the_host_or_its_system_is_not_blamed_on_the_plugin(kind, tmp_path):
    class Missing(Whole):
        @hookimpl
        def load_context(self, nodes, reader):
            raise kind("the vendor's library is not installed.", hint="Install it.")

    model = source(tmp_path)

    with refused(
        kind,
        "^the vendor's library is not installed",
        folder=tmp_path,
        hint="Install it.",
    ):
        to_file(fresh(Missing), model)


@pytest.mark.parametrize("way", [*WAYS, into_a_cache])
def test_an_ep_that_can_loads_once_what_it_wrote_in_an_instance_that_compiled_nothing(
    way, tmp_path
):
    ep = fresh(Whole)
    folder = tmp_path / "models"
    folder.mkdir()

    way(ep, source(folder))

    reading = [
        "made to export",
        "loads 3 to export",
        "closes",
        "closes",
        "closes",
        "shut down",
    ]
    text = "; ".join(ep.seen)
    assert text.count("; ".join(reading)) == 1
    assert ep.seen.count("loads 3 to export") == 1


@pytest.mark.parametrize("ep", [Refusing, RefusingHead])
def test_a_host_may_publish_what_was_not_read(ep, tmp_path):
    model = source(tmp_path)

    to_file(fresh(ep), model, ep__context_read_back=0)

    assert (tmp_path / "m_ctx.onnx").exists()


def test_an_isolated_ep_reads_back_in_its_own_process(tmp_path):
    model = source(tmp_path)
    before = snapshot(tmp_path)

    with pytest.raises(
        epctx.PluginError, match="cannot read back what it wrote"
    ) as caught:
        to_file(Refusing, model, ep__isolate="compile")

    assert "InvalidGraph" in str(caught.value.__cause__)
    assert snapshot(tmp_path) == before
    assert Refusing.seen == []


def test_of_nodes_that_differ_in_name_alone_one_is_loaded(tmp_path):
    ep = fresh(Whole)
    model = saved(chain(["Relu", "Softplus"] * 50), tmp_path / "m.onnx")

    to_file(ep, model)

    assert [line for line in ep.seen if line.startswith("loads")] == [
        "loads 1 to export"
    ]


def test_payloads_that_pass_through_are_not_read_back(tmp_path):
    ep = fresh(Whole)
    to_file(ep, source(tmp_path))
    ep.seen.clear()

    epctx.ModelCompiler(
        options_with(ep), tmp_path / "m_ctx.onnx", True, registry=registry_with(ep)
    ).compile_to_file(tmp_path / "again_ctx.onnx")

    assert ep.seen == ["made to export", "shut down"]


def test_a_model_that_no_ep_could_load_again_is_not_compiled_with_success(tmp_path):
    """An exporter's value for an unknown length is not a length (issue 8, 1)."""
    model = chain(["Relu", "Add"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    options = epctx.SessionOptions()
    options.add_provider("QNN")

    path = saved(model, tmp_path / "m.onnx")
    try:
        epctx.ModelCompiler(options, path).compile_to_file()
    except epctx.EpctxError:
        assert snapshot(tmp_path).keys() == {"m.onnx"}
    else:
        epctx.InferenceSession(tmp_path / "m_ctx.onnx").close()


class Short(HonestProvider):
    """Runs what it compiles, also to export it, and gives one element too few."""

    ran: ClassVar[list[int]] = []

    @hookimpl
    def compile(self, partitions):
        super().compile(partitions)
        models = [p.model(inline_weights=True) for p in partitions]
        prepared = [self.context.engine.prepare(model) for model in models]
        return [
            CompiledPartition(self._shortened(each.run), close=each.close)
            for each in prepared
        ]

    def _shortened(self, run):
        def shortened(inputs, outputs=None):
            self.ran.append(len(inputs))
            return [result[..., :-1].copy() for result in run(inputs, None)]

        return shortened


class Failing(Short):
    """Cannot run on zeros, as if they were indices out of range."""

    def _shortened(self, run):
        def failing(inputs, outputs=None):
            if not any(array.any() for array in inputs):
                raise ValueError("an index is out of range")
            return run(inputs, outputs)

        return failing


@pytest.mark.parametrize("way", WAYS)
def test_a_shape_that_inference_and_a_run_do_not_agree_on_is_published_nowhere(
    way, tmp_path
):
    folder = tmp_path / "models"
    folder.mkdir()
    model = source(folder)
    before = snapshot(folder)

    with pytest.raises(epctx.InvalidGraph, match=r"gave float32\[.*\] for '") as caught:
        way(type("RefusingShort", (Short,), {"ran": []}), model)

    assert "type inference gives float[" in caught.value.message
    assert "a run of Honest" in caught.value.message
    assert "epctx" in caught.value.hint
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("ep", "entries"),
    [(Short, {"ep__context_read_back": 0}), (Failing, {})],
    ids=["not read back", "fails over zeros"],
)
def test_what_was_not_run_or_proves_nothing_is_published(ep, entries, tmp_path):
    cls = type(ep.__name__, (ep,), {"ran": []})

    to_file(cls, source(tmp_path), **entries)

    assert (tmp_path / "m_ctx.onnx").exists()
    assert cls.ran == []


def test_of_partitions_of_one_form_one_is_run(tmp_path):
    class Counting(Short):
        ran: ClassVar[list[int]] = []

        def _shortened(self, run):
            return lambda inputs, outputs=None: self.ran.append(1) or run(inputs, None)

    model = saved(chain(["Relu", "Softplus"] * 50), tmp_path / "m.onnx")

    to_file(Counting, model)

    assert len(Counting.ran) == 1
