"""Payload bytes on their way in: found where the node says, checked, mapped, read once."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest
from context.writing import noise, written
from graph.making import INT64, value
from onnx import NodeProto, helper

from epctx_core.context.manifest import Manifest, ReplacedBinaryError
from epctx_core.context.node import read_context_nodes
from epctx_core.context.node_writer import make_context_node
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payload_reader import PayloadReader, plugin_nodes
from epctx_core.context.scratch import Scratch
from epctx_core.errors import Fail, InvalidGraph
from epctx_core.graph.type_table import TypeTable

EP = "TestExecutionProvider"
CONTENT = noise(5000)


def node(name, *, cache=None, main=True, embed=False):
    return make_context_node(
        NodeProto(name=name, input=["x"], output=[f"{name}_out"]),
        {},
        source=EP,
        main_context=main,
        embed_mode=embed,
        cache=cache,
    )


class NumberedFolders(Scratch):
    """Folders beside the model, which a test can look into."""

    def __init__(self, folder):
        super().__init__()
        self.beside = folder
        self.count = 0

    def folder(self):
        self.count += 1
        made = self.beside / f"scratch{self.count}"
        made.mkdir()
        return made


class Scene:
    """A folder with a binary, nodes that name it, and what the model says about it."""

    def __init__(self, folder, *nodes, payloads=None):
        self.folder = folder
        self.scratch = NumberedFolders(folder)
        self.records = read_context_nodes(helper.make_graph(list(nodes), "g", [], []))
        manifest = None
        if payloads is not None:
            manifest = Manifest(source_digest="", providers={}, payloads=payloads)
        self.reader = PayloadReader(
            {r.name: r for r in self.records},
            folder=ModelFolder(folder),
            manifest=manifest,
            scratch=self.scratch,
        )

    @property
    def nodes(self):
        return plugin_nodes(self.records, TypeTable(), EP)

    def payload(self, place=0):
        return self.reader.payload(self.nodes[place])


def entry_of(content, name="a_x.bin", *, embedded=False):
    return replace(written(content)[0], name=name, embedded=embedded)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a_x.bin").write_bytes(CONTENT)
    return tmp_path


def test_a_binary_is_mapped_read_only(folder):
    payload = Scene(folder, node("n", cache=b"a_x.bin"), payloads=[entry_of(CONTENT)]).payload()

    assert bytes(payload.view) == CONTENT
    assert payload.view.readonly
    assert payload.name == "a_x.bin"
    assert payload.digest == entry_of(CONTENT).root


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
@pytest.mark.parametrize("replaced", ["before", "after", "gone"])
def test_a_file_that_was_given_out_keeps_its_bytes_whatever_becomes_of_the_binary(
    folder, monkeypatch, links, replaced
):
    if not links:
        # As between two file systems.
        monkeypatch.setattr(os, "link", lambda *_given, **_more: Path("/nowhere/at/all").stat())
    scene = Scene(folder, node("n", cache=b"a_x.bin"), payloads=[entry_of(CONTENT)])
    payload = scene.payload()
    path = payload.as_file() if replaced == "after" else None
    (folder / "new").write_bytes(noise(5000, seed=2))
    if replaced == "gone":
        (folder / "a_x.bin").unlink()
    else:
        (folder / "new").replace(folder / "a_x.bin")

    path = path or payload.as_file()

    assert Path(path).read_bytes() == CONTENT
    assert Path(path) == folder / "scratch1" / "a_x.bin"
    assert payload.as_file() == path
    assert scene.scratch.count == 1


def test_a_file_costs_no_space_on_the_models_file_system(folder):
    path = Scene(folder, node("n", cache=b"a_x.bin")).payload().as_file()

    assert Path(path).samefile(folder / "a_x.bin")


def test_no_space_for_a_file_is_not_the_eps_fault(folder):
    scene = Scene(folder, node("n", cache=CONTENT, embed=True))
    payload = scene.payload()
    (folder / "scratch1").mkdir()

    with pytest.raises(Fail, match="no file could be made of the payload 'n'") as caught:
        payload.as_file()

    assert "TMPDIR" in caught.value.hint


def test_an_embedded_payload_is_the_nodes_bytes_and_becomes_a_file_once(folder):
    scene = Scene(
        folder,
        node("n", cache=CONTENT, embed=True),
        payloads=[entry_of(CONTENT, "n", embedded=True)],
    )

    payload = scene.payload()

    assert bytes(payload.view) == CONTENT
    assert payload.view.readonly
    assert (payload.name, payload.digest) == ("n", entry_of(CONTENT).root)
    assert scene.scratch.count == 0
    assert Path(payload.as_file()).read_bytes() == CONTENT
    assert payload.as_file() == payload.as_file()
    assert scene.scratch.count == 1


def test_a_view_keeps_its_mapping_alive(folder):
    view = Scene(folder, node("n", cache=b"a_x.bin")).payload().view
    (folder / "a_x.bin").unlink()
    gc.collect()

    assert bytes(view) == CONTENT


def test_nodes_that_name_one_file_get_one_payload(folder):
    scene = Scene(folder, node("a", cache=b"a_x.bin"), node("b", cache=b"a_x.bin"))

    assert scene.payload(0) is scene.payload(1)


def test_embedded_payloads_are_each_nodes_own(folder):
    scene = Scene(folder, node("a", cache=b"1", embed=True), node("b", cache=b"2", embed=True))

    assert [bytes(scene.payload(i).view) for i in (0, 1)] == [b"1", b"2"]


def test_embedded_payloads_of_nodes_of_one_name_are_each_nodes_own(folder):
    scene = Scene(folder, node("a", cache=b"1", embed=True), node("a", cache=b"2", embed=True))

    assert [bytes(scene.payload(i).view) for i in (0, 1)] == [b"1", b"2"]


def test_a_reference_reads_its_primarys_payload(folder):
    scene = Scene(folder, node("second", main=False), node("first", cache=b"a_x.bin"))

    primary, reference = scene.nodes

    assert (primary.name, reference.name) == ("first", "second")
    assert primary.primary is primary
    assert reference.primary is primary
    assert bytes(scene.reader.payload(reference).view) == CONTENT


def test_a_reference_among_several_payloads_has_no_primary_unless_the_manifest_says_which(folder):
    (folder / "b_x.bin").write_bytes(CONTENT)
    nodes = node("a", cache=b"a_x.bin"), node("b", cache=b"b_x.bin"), node("c", main=False)
    scene = Scene(folder, *nodes)

    assert scene.nodes[2].primary is None
    with pytest.raises(InvalidGraph, match="'c' carries no payload"):
        scene.payload(2)

    said = replace(entry_of(CONTENT, "b_x.bin"), references=("c",))
    manifest = Manifest(source_digest="", providers={}, payloads=[entry_of(CONTENT), said])
    assert plugin_nodes(scene.records, TypeTable(), EP, manifest)[2].primary.name == "b"


def test_primaries_that_name_one_file_are_one_for_references(folder):
    scene = Scene(folder, node("a", cache=b"a_x.bin"), node("b", cache=b"a_x.bin"), node("c", main=False))

    assert scene.nodes[2].primary.name == "a"
    assert bytes(scene.payload(2).view) == CONTENT


def test_references_without_any_primary_are_refused(folder):
    with pytest.raises(InvalidGraph, match="no EPContext node of TestExecutionProvider has main_context=1"):
        _ = Scene(folder, node("a", main=False)).nodes


@pytest.mark.parametrize(("embed", "said"), [(True, "no payload"), (False, "no file name")])
def test_a_primary_without_a_payload_is_refused(folder, embed, said):
    with pytest.raises(InvalidGraph, match=f"embed_mode={int(embed)} but {said} in ep_cache_context"):
        Scene(folder, node("n", embed=embed)).payload()


@pytest.mark.parametrize("cache", [b"", b"../a_x.bin", b"gone.bin", b"\xff"])
def test_a_name_that_leads_nowhere_is_refused(folder, cache):
    with pytest.raises(InvalidGraph):
        Scene(folder, node("n", cache=cache)).payload()


def test_an_empty_binary_is_refused(folder):
    (folder / "a_x.bin").write_bytes(b"")

    with pytest.raises(InvalidGraph, match=r"'a_x\.bin' of EPContext node 'n' is empty"):
        Scene(folder, node("n", cache=b"a_x.bin")).payload()


@pytest.mark.parametrize(
    "wrong", [CONTENT[:-1], noise(5000, seed=1), CONTENT + b"x"], ids=["cut", "swapped", "longer"]
)
def test_a_binary_that_is_not_the_one_written_is_refused(folder, wrong):
    (folder / "a_x.bin").write_bytes(wrong)

    with pytest.raises(ReplacedBinaryError, match=r"'a_x\.bin'") as caught:
        Scene(folder, node("n", cache=b"a_x.bin"), payloads=[entry_of(CONTENT)]).payload()

    assert caught.value.node == "n"
    assert caught.value.path == str(folder / "a_x.bin")


def test_an_altered_embedded_payload_is_refused(folder):
    scene = Scene(
        folder,
        node("n", cache=CONTENT[::-1], embed=True),
        payloads=[entry_of(CONTENT, "n", embedded=True)],
    )

    with pytest.raises(InvalidGraph, match="is not the one that the model was written with"):
        scene.payload()


def test_the_copy_that_a_publication_under_way_kept_is_read_instead(folder):
    (folder / "a_x.bin").write_bytes(noise(5000, seed=1))
    (wrong := folder / ".epctx-1" / "new" / "a_x.bin").parent.mkdir(parents=True)
    wrong.write_bytes(b"?")
    (kept := folder / ".epctx-2" / "old" / "a_x.bin").parent.mkdir(parents=True)
    kept.write_bytes(CONTENT)
    scene = Scene(folder, node("n", cache=b"a_x.bin"), payloads=[entry_of(CONTENT)])

    payload = scene.payload()

    assert bytes(payload.view) == CONTENT
    kept.unlink()
    assert Path(payload.as_file()).read_bytes() == CONTENT


def test_without_a_manifest_nothing_can_be_checked(folder):
    (folder / "a_x.bin").write_bytes(b"foreign")

    payload = Scene(folder, node("n", cache=b"a_x.bin")).payload()

    assert (bytes(payload.view), payload.digest) == (b"foreign", None)


def test_a_model_from_bytes_has_no_files():
    (record,) = read_context_nodes(helper.make_graph([node("n", cache=b"a_x.bin")], "g", [], []))
    reader = PayloadReader({"n": record}, folder=None, manifest=None, scratch=Scratch())

    with pytest.raises(InvalidGraph, match="the model has no folder"):
        reader.payload(plugin_nodes([record], TypeTable(), EP)[0])


def test_there_is_no_source_model_to_read_weights_from(folder):
    with pytest.raises(InvalidGraph, match="weight 'w' of the source model"):
        Scene(folder, node("n", cache=b"a_x.bin")).reader.source_tensor("w")


def test_the_boundary_of_a_node_is_typed_by_the_model(folder):
    types = TypeTable([value("n_out", INT64, [3])])
    scene = Scene(folder, node("n", cache=b"a_x.bin"))

    (found,) = plugin_nodes(scene.records, types, EP)

    assert [str(v.type) for v in (*found.inputs, *found.outputs)] == ["?[?]", "int64[3]"]
    assert "ep_cache_context" not in found.attributes
