"""Loading: which nodes and payloads are refused, with which words, and what glued
models need.
"""

from __future__ import annotations

import io
import json
import re
import tarfile

import numpy as np
import onnx
import pytest
from epctx_sim_sdk.container import FOOT_SIZE, HEAD_SIZE, Foot
from epctx_sim_sdk.versions import Relation
from epctx_sim_vitisai import VitisAIProvider, archive
from epctx_sim_vitisai.archive import COMPILED, CONTEXT
from epctx_sim_vitisai.rules import RULES
from epctx_sim_vitisai.settings import COMPONENTS, compiler_facts
from epctx_sim_vitisai.tar import END, members, padding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.typed_options import typed_options

import epctx_core as epctx
from epctx_core.errors import InvalidArgument, InvalidGraph

pytestmark = pytest.mark.internal

MODES = [pytest.param(False, id="file"), pytest.param(True, id="embedded")]


def refused(bench, path, words, **options):
    """Load and expect InvalidGraph of this EP with these words."""
    with pytest.raises(InvalidGraph, match=words) as caught:
        bench.run(path, bench.x_for(bench.two_partitions()), **options)
    assert caught.value.ep == "VitisAIExecutionProvider"
    assert caught.value.node
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n1": {"index": None}}, "it has no index"),
        ({"n1": {"index": 0}}, "index is 0, where its archive holds"),
        ({"n1": {"index": 2}}, "index is 2, and its archive holds 2 graphs"),
        ({"n1": {"index": -1}}, "index is -1"),
        ({"n1": {"index": "1"}}, "it has no index"),
        ({"n0": {"index": 1}}, "index is 1, where its archive holds"),
        ({"n1": {"cache_file_prefix": None}}, "it has no cache_file_prefix"),
        (
            {"n1": {"cache_file_prefix": "other"}},
            "no node with main_context=1 carries its archive 'other'",
        ),
        (
            {"n0": {"cache_file_prefix": "other"}},
            "its cache_file_prefix is 'other', that of the payload",
        ),
        (
            {"n0": {"enable_encryption": 1}},
            "is not encrypted, but the node says that it is",
        ),
        ({"n1": {"partition_name": "elsewhere"}}, "not 'elsewhere'"),
    ],
    ids=str,
)
def test_a_node_that_does_not_fit_its_archive_is_refused(
    bench, compiled, changes, words
):
    bench.change(compiled, **changes)

    refused(bench, compiled, words)


def test_a_model_that_lost_a_node_is_refused(bench, compiled):
    model = onnx.load(compiled)
    lost = [node for node in model.graph.node if node.op_type == "EPContext"][1]
    made = lost.output[0]
    lost.CopyFrom(onnx.helper.make_node("Identity", [lost.input[0]], [made]))
    onnx.save(model, compiled)

    refused(
        bench,
        compiled,
        "has nodes for 1 of the 2 graphs that the archive .* holds; index 1 is missing",
    )


def test_a_node_that_is_there_twice_is_refused(bench, compiled):
    model = onnx.load(compiled)
    twin = onnx.NodeProto()
    twin.CopyFrom([node for node in model.graph.node if node.op_type == "EPContext"][1])
    twin.name, twin.output[0] = "twin", "twin_output"
    model.graph.node.append(twin)
    onnx.save(model, compiled)

    refused(bench, compiled, "its index 1 is also that of")


def test_two_nodes_that_carry_one_archive_are_refused(bench, compiled):
    model = onnx.load(compiled)
    twin = onnx.NodeProto()
    twin.CopyFrom(
        next(node for node in model.graph.node if node.op_type == "EPContext")
    )
    twin.name, twin.output[0] = "twin", "twin_output"
    model.graph.node.append(twin)
    onnx.save(model, compiled)

    refused(bench, compiled, "two nodes carry the archive")


def glued(bench, **options):
    """Two context models of two partitions each, one behind the other; gives path and
    both sources.
    """
    sources = [bench.two_partitions(seed=seed) for seed in (1, 2)]
    parts = []
    for number, source in enumerate(sources):
        path, _ = bench.compile(
            source, name=f"part{number}", prefix=f"p{number}_", **options
        )
        part = onnx.load(path)
        del part.metadata_props[:]
        parts.append(onnx.compose.add_prefix(part, f"m{number}_", rename_nodes=False))
    one, other = parts
    merged = onnx.compose.merge_models(
        one, other, io_map=[(one.graph.output[0].name, other.graph.input[0].name)]
    )
    onnx.save(merged, bench.folder / "glued.onnx")
    return bench.folder / "glued.onnx", sources


@pytest.mark.parametrize("embed", MODES)
def test_a_model_glued_from_two_loads_both_archives(bench, embed):
    path, sources = glued(bench, embed=embed)
    x = bench.x_for(sources[0])["x"]

    with epctx.InferenceSession(path, bench.options()) as session:
        (result,) = session.run(None, {"m0_x": x})

    (between,) = run(bench, sources[0], x)
    assert np.array_equal(result, run(bench, sources[1], between)[0])
    prefixes = [node["cache_file_prefix"] for node in bench.nodes(path)]
    assert [node["index"] for node in bench.nodes(path)] == [0, 1, 0, 1]
    assert prefixes[0] == prefixes[1] != prefixes[2] == prefixes[3]


def run(bench, model, x):
    onnx.save(model, bench.folder / "alone.onnx")
    return bench.run(bench.folder / "alone.onnx", {"x": x})


def test_in_a_glued_model_nodes_of_two_archives_cannot_be_exchanged(bench):
    path, _ = glued(bench)
    keys = [node["cache_file_prefix"] for node in bench.nodes(path)]

    bench.change(
        path, n1={"cache_file_prefix": keys[3]}, n3={"cache_file_prefix": keys[1]}
    )

    with pytest.raises(InvalidGraph, match="index is 1, where its archive holds"):
        epctx.InferenceSession(path, bench.options())


VERSIONS = [
    ({}, {}, None),
    ({"runtime_vaip_version": "sim-1.7.9"}, {}, None),
    ({}, {"runtime_vaip_version": "sim-1.7.9"}, None),
    ({}, {"runtime_vaip_version": "sim-1.8.0"}, None),
    ({"runtime_vaip_version": "sim-1.8.0"}, {}, "vaip sim-1.8.0"),
    ({"runtime_vaip_version": "sim-2.0.0"}, {}, "vaip sim-2.0.0"),
    ({}, {"runtime_vaip_version": "sim-2.0.0"}, "needs sim-2.0.0"),
    ({"runtime_xcompiler_version": "sim-2.99.0"}, {}, None),
    ({"runtime_xcompiler_version": "sim-2.1.0"}, {}, None),
    ({"runtime_xcompiler_version": "sim-3.0.0"}, {}, "xcompiler sim-3.0.0"),
    ({"runtime_xrt_version": "sim-1.2.0"}, {}, None),
    ({"runtime_xrt_version": "sim-1.9.0"}, {}, "xrt sim-1.9.0"),
    ({"runtime_xrt_version": "sim-0.9.0"}, {}, "xrt sim-0.9.0"),
    ({"runtime_api_version": "2"}, {}, "api 2"),
    ({}, {"runtime_api_version": "2"}, None),
    ({"runtime_blob_version": "9"}, {}, "blob 9"),
    ({}, {"runtime_blob_version": "9"}, None),
    ({"target": "X1"}, {}, "target X1"),
    ({"target": "X1"}, {"target": "X1"}, None),
    ({}, {"runtime_target": "X1"}, "needs X1"),
]


def session_without_judgement(bench, path, **options):
    """The model without its compatibility text, so that the payload itself is
    judged.
    """
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    return epctx.InferenceSession(path, bench.options(**options))


@pytest.mark.parametrize(("made", "runs", "words"), VERSIONS, ids=str)
def test_a_payload_loads_unless_the_table_says_unsupported(bench, made, runs, words):
    model = bench.two_partitions()
    path, _ = bench.compile(model, **made)

    if words is None:
        with session_without_judgement(bench, path, **runs) as session:
            assert session.run(None, bench.x_for(model))[0].shape == (1, 4, 8, 8)
    else:
        with pytest.raises(InvalidGraph, match=words) as caught:
            session_without_judgement(bench, path, **runs)
        assert "simulated runtime needs" in caught.value.message


@pytest.mark.parametrize(("made", "runs", "words"), VERSIONS, ids=str)
def test_the_compatibility_text_is_judged_like_the_payload(bench, made, runs, words):
    path, _ = bench.compile(bench.two_partitions(), **made)
    texts = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    info = texts["ep_compatibility_info.VitisAIExecutionProvider"]

    verdict = VitisAIProvider.validate_compatibility(info, options_of(**runs))

    assert (verdict.name == "EP_UNSUPPORTED") is (words is not None)
    if made.get("runtime_xcompiler_version") == "sim-2.1.0":
        assert verdict.name == "EP_SUPPORTED_PREFER_RECOMPILATION"


def options_of(**given):
    """Options as a session gives them to the EP."""
    return typed_options(VitisAIProvider, given)


def test_an_option_that_nobody_sets_has_its_default():
    assert options_of() == {
        option.name: option.default for option in VitisAIProvider.options
    }


VERSIONED = {
    Relation.OLDER, Relation.NEWER, Relation.OLDER_MAJOR, Relation.NEWER_MAJOR,
    Relation.OTHER, Relation.MISSING
}  # fmt: skip
NUMBERED = {Relation.OLDER, Relation.NEWER, Relation.OTHER, Relation.MISSING}
TEXTS = {Relation.OTHER, Relation.MISSING}


def test_the_table_says_something_about_every_difference_that_there_can_be():
    fields = dict.fromkeys(COMPONENTS, VERSIONED) | dict.fromkeys(
        ("api", "blob"), NUMBERED
    )
    fields |= dict.fromkeys(("vendor", "target"), TEXTS)

    assert set(RULES) == {
        (field, relation)
        for field, relations in fields.items()
        for relation in relations
    }


@pytest.mark.parametrize("field", ["vendor", "api", "blob", "target", *COMPONENTS])
def test_a_compatibility_text_of_ours_without_a_field_is_unsupported(field):
    info = VitisAIProvider.get_compatibility_info(["a partition"], options_of())
    without = ";".join(
        part for part in info.split(";") if not part.startswith(f"{field}=")
    )

    assert (
        VitisAIProvider.validate_compatibility(without, options_of()).name
        == "EP_UNSUPPORTED"
    )


@pytest.mark.parametrize(("target", "name"), [(None, "X2"), ("X1", "X1"), ("x1", "X1")])
def test_a_target_of_the_host_goes_before_the_option(target, name):
    assert compiler_facts(options_of(), target)["target"] == name


def test_an_unknown_target_of_the_host_is_refused():
    with pytest.raises(InvalidArgument, match="no target 'gpu'"):
        compiler_facts(options_of(), "gpu")


@pytest.mark.parametrize("info", ["", "vaip=1.7;xrt=2", "junk"])
def test_a_compatibility_text_that_is_not_ours_is_not_judged(info):
    assert (
        VitisAIProvider.validate_compatibility(info, options_of()).name
        == "EP_NOT_APPLICABLE"
    )


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_version_that_the_node_states_is_checked_too(bench, compiled, component):
    bench.change(compiled, n1={f"version_of_{component}": "sim-9.0.0"})

    refused(bench, compiled, f"the node has {component} sim-9.0.0")


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_real_vendors_version_is_not_taken_for_ours(bench, compiled, component):
    bench.change(compiled, n0={f"version_of_{component}": "1.5.0"})

    refused(bench, compiled, re.escape(f"the node has {component} 1.5.0"))


def test_a_patch_version_of_a_node_does_not_matter(bench, compiled):
    bench.change(compiled, n1={"version_of_vaip": "sim-1.7.99"})

    assert bench.run(compiled, bench.x_for(bench.two_partitions()))


def test_the_option_cache_key_must_be_the_one_of_the_archive(bench):
    path, _ = bench.compile(bench.two_partitions(), cache_key="mine")

    assert bench.run(path, bench.x_for(bench.two_partitions()))
    assert bench.run(path, bench.x_for(bench.two_partitions()), cache_key="mine")
    refused(
        bench,
        path,
        "cache_key is 'yours', and the payload .* was made with 'mine'",
        cache_key="yours",
    )


def real_tar():
    """A cache directory as the real EP would pack it."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as opened:
        for name in ("context.json", "compiled.AMD_AIE2P.xmodel"):
            info = tarfile.TarInfo(name)
            info.size = 3
            opened.addfile(info, io.BytesIO(b"abc"))
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (real_tar(), r"real VitisAI execution provider \(AMD\).*simulated"),
        (b"OVEP_BIN" + bytes(600), r"\(Intel\).*simulated"),
        (b"\x1f\x8b" + bytes(600), "gzip"),
        (b"junk" * 200, "damaged or foreign"),
        (b"\x00", "truncated or foreign"),
    ],
    ids=["vitisai", "openvino", "gzip", "junk", "short"],
)
def test_foreign_payloads_are_refused_by_name(bench, compiled, content, words):
    bench.binary().write_bytes(content)

    refused(bench, compiled, words)


def repacked(bench, change):
    """Write the archive again with changed members: a list of (TarInfo, bytes)."""
    with tarfile.open(bench.binary()) as opened:
        members = [(info, opened.extractfile(info).read()) for info in opened]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as opened:
        for info, data in change(members):
            info.size = len(data)
            opened.addfile(info, io.BytesIO(data))
    # tarfile fills up with more zeros than two blocks.
    length = content.getvalue().rstrip(b"\0")
    bench.binary().write_bytes(length + bytes(-len(length) % 512) + bytes(1024))


def named(name, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


@pytest.mark.parametrize(
    "extra",
    [
        named("more"),
        named("/etc/passwd"),
        named("a/../../b"),
        named("link", tarfile.SYMTYPE),
        named("pipe", tarfile.FIFOTYPE),
        named(CONTEXT),
    ],
    ids=lambda info: info.name,
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_members_that_do_not_belong_there_are_refused(bench, compiled, extra, place):
    repacked(bench, lambda members: [*members[:place], (extra, b""), *members[place:]])
    before = set(bench.folder.iterdir())

    refused(bench, compiled, "is not that of a file|something follows|real VitisAI")
    assert set(bench.folder.iterdir()) == before


def test_a_context_that_another_compilation_made_is_refused(bench, compiled):
    def change(members):
        (info, data), compiled_member = members
        context = json.loads(data)
        context["graphs"] = context["graphs"][::-1]
        return [(info, json.dumps(context).encode()), compiled_member]

    repacked(bench, change)

    refused(bench, compiled, "is not the one that")


@pytest.mark.parametrize(
    "context",
    [
        b"",
        b"[]",
        b"{}",
        b'{"cache_file_prefix":1,"cache_key":"","graphs":[]}',
        b"[" * 100_000,
    ],
)
def test_a_context_that_says_something_else_is_refused(bench, compiled, context):
    repacked(bench, lambda members: [(members[0][0], context), members[1]])

    refused(bench, compiled, f"its '{CONTEXT}' (cannot be read|says something else)")


def test_a_context_of_any_length_is_refused_before_it_is_read(
    bench, compiled, monkeypatch
):
    monkeypatch.setattr(archive, "MAX_CONTEXT", 1000)

    refused(bench, compiled, "has more than 1,000 bytes")


def test_an_archive_without_its_container_is_refused(bench, compiled):
    repacked(bench, lambda members: members[:1])

    refused(bench, compiled, "stands no tar header")


def test_a_damaged_container_is_refused(bench, compiled):
    repacked(
        bench, lambda members: [members[0], (members[1][0], members[1][1][:-1] + b"!")]
    )

    refused(
        bench,
        compiled,
        COMPILED.rsplit("/", maxsplit=1)[0] + "|does not end with the mark",
    )


def test_every_truncation_is_refused(bench, compiled):
    content = bench.binary().read_bytes()

    for length in [
        0,
        1,
        100,
        511,
        512,
        513,
        *range(600, len(content), 1009),
        len(content) - 1,
    ]:
        bench.binary().write_bytes(content[:length])
        with pytest.raises(InvalidGraph):
            epctx.InferenceSession(compiled, bench.options())


def test_something_behind_the_archive_is_refused(bench, compiled):
    bench.binary().write_bytes(bench.binary().read_bytes() + b"\0")

    refused(bench, compiled, "something follows")


def weight_bytes(content):
    """Where in an archive the container keeps its weights."""
    found = members(memoryview(content), archive.MEMBERS)[COMPILED]
    foot = Foot.unpack(found[-FOOT_SIZE:])
    start = len(content) - len(found) - len(tar_end(found))
    return range(start + HEAD_SIZE, start + foot.structures_start)


def tar_end(member):
    return padding(len(member)) + END


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_any_changed_byte_outside_the_weights_is_refused(bench, compiled, place, bit):
    content = bench.binary().read_bytes()
    weights = weight_bytes(content)
    outside = [i for i in range(len(content)) if i not in weights]
    changed = bytearray(content)
    changed[outside[place % len(outside)]] ^= 1 << bit
    bench.binary().write_bytes(changed)

    try:
        with pytest.raises(InvalidGraph):
            epctx.InferenceSession(compiled, bench.options())
    finally:
        bench.binary().write_bytes(content)
