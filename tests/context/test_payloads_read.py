"""Payload bytes on their way in: found where the node says, checked, mapped, read
once.
"""

from __future__ import annotations

import errno
import gc
import itertools
import os
import tempfile
from pathlib import Path

import pytest
from context.loading import context_model, entry_of, loaded, manifest, node, noise
from support.graph_models import INT64, value

from epctx_core import SessionOptions
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph

CONTENT = noise(5000)
TIMES = itertools.count()


def opened(folder, *nodes, payloads=None, look=lambda given: None, **entries):
    """Load a context model of a folder; give what its EP was given while the session
    lives.
    """
    path = folder / "m_ctx.onnx"
    said = None if payloads is None else manifest(*payloads)
    path.write_bytes(context_model(*nodes, said=said).SerializeToString())
    options = SessionOptions()
    for entry in entries.items():
        options.add_session_config_entry(*entry)
    return loaded(path, look, options=options)


def first_payload(given):
    given.payload()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a_x.bin").write_bytes(CONTENT)
    return tmp_path


@pytest.fixture
def temporary(folder, monkeypatch):
    """The folder for temporary files, on the file system of the model."""
    made = folder / "temporary"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def test_a_binary_is_mapped_read_only(folder):
    with opened(
        folder, node("n", cache="a_x.bin"), payloads=[entry_of(CONTENT)]
    ) as given:
        payload = given.payload()

        assert bytes(payload.view) == CONTENT
        assert payload.view.readonly
        assert payload.name == "a_x.bin"
        assert payload.digest == entry_of(CONTENT)["root"]


def no_links(*_given, **_more):
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
@pytest.mark.parametrize("replaced", ["before", "after", "gone"])
def test_a_file_that_was_given_out_keeps_its_bytes_whatever_becomes_of_the_binary(
    folder, temporary, monkeypatch, links, replaced
):
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with opened(
        folder, node("n", cache="a_x.bin"), payloads=[entry_of(CONTENT)]
    ) as given:
        payload = given.payload()
        path = payload.as_file() if replaced == "after" else None
        (folder / "new").write_bytes(noise(5000, seed=2))
        if replaced == "gone":
            (folder / "a_x.bin").unlink()
        else:
            (folder / "new").replace(folder / "a_x.bin")

        path = path or payload.as_file()

        assert Path(path).read_bytes() == CONTENT
        assert Path(path).name == "a_x.bin"
        assert Path(path).is_relative_to(temporary)
        assert payload.as_file() == path
        assert len(list(temporary.rglob("a_x.bin"))) == 1


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
def test_a_file_that_was_written_to_since_it_was_found_is_not_given_out(
    folder, temporary, monkeypatch, links
):
    if not links:
        monkeypatch.setattr(os, "link", no_links)

    def look(given):
        payload = given.payload()
        write_into(folder / "a_x.bin")
        payload.as_file()

    with (
        pytest.raises(InvalidGraph, match="was written to while it was in use"),
        opened(folder, node("n", cache="a_x.bin"), look=look),
    ):
        pass

    assert not any(path.is_file() for path in temporary.rglob("*"))


@pytest.mark.parametrize("digests", [True, False])
def test_a_load_fails_whose_binary_was_written_to_while_the_ep_read_it(folder, digests):
    def look(given):
        given.payload()
        write_into(folder / "a_x.bin")

    with (
        pytest.raises(InvalidGraph, match="was written to while it was in use"),
        opened(
            folder,
            node("n", cache="a_x.bin"),
            payloads=[entry_of(CONTENT)] if digests else None,
            look=look,
        ),
    ):
        pass


def write_into(file):
    """Change a byte in place, and the time of change by more than a clock's step, each
    time anew: a load reads again what was changed.
    """
    with file.open("r+b") as stream:
        stream.seek(4000)
        stream.write(b"\0")
    os.utime(file, ns=(0, next(TIMES)))


def test_a_file_has_no_two_dots_in_its_name_which_readers_of_vendors_refuse(
    folder, temporary
):
    (folder / "a_x.bin").rename(folder / "a..x.bin")

    with opened(folder, node("n", cache="a..x.bin")) as given:
        path = Path(given.payload().as_file())

        assert path.samefile(folder / "a..x.bin")
        assert ".." not in path.name
        assert path.suffix == ".bin"


@pytest.mark.parametrize(
    ("embed", "mapped", "is_file"),
    [(False, "1", True), (False, "0", False), (True, "1", False)],
)
def test_an_ep_can_tell_a_payload_in_a_file_from_one_in_memory(
    folder, embed, mapped, is_file
):
    given = node("n", cache=CONTENT if embed else "a_x.bin", embed=embed)

    with opened(folder, given, **{"ep.context_file_mapping": mapped}) as seen:
        assert seen.payload().is_file is is_file


def test_a_file_costs_no_space_on_the_models_file_system(folder, temporary):
    with opened(folder, node("n", cache="a_x.bin")) as given:
        assert Path(given.payload().as_file()).samefile(folder / "a_x.bin")


def test_no_space_for_a_file_is_not_the_eps_fault(folder, temporary):
    temporary.rmdir()

    with (
        pytest.raises(Fail, match="no file could be made of the payload 'n'") as caught,
        opened(
            folder,
            node("n", cache=CONTENT, embed=True),
            look=lambda given: given.payload().as_file(),
        ),
    ):
        pass

    assert "TMPDIR" in caught.value.hint


def test_an_embedded_payload_is_the_nodes_bytes_and_becomes_a_file_once(
    folder, temporary
):
    entry = entry_of(CONTENT, "n", embedded=True)
    with opened(
        folder, node("n", cache=CONTENT, embed=True), payloads=[entry]
    ) as given:
        payload = given.payload()

        assert bytes(payload.view) == CONTENT
        assert payload.view.readonly
        assert (payload.name, payload.digest) == ("n", entry["root"])
        assert not any(path.is_file() for path in temporary.rglob("*"))
        assert Path(payload.as_file()).read_bytes() == CONTENT
        assert payload.as_file() == payload.as_file()
        assert sum(path.is_file() for path in temporary.rglob("*")) == 1


def test_a_view_keeps_its_mapping_alive(folder):
    with opened(folder, node("n", cache="a_x.bin")) as given:
        view = given.payload().view
    del given
    (folder / "a_x.bin").unlink()
    gc.collect()

    assert bytes(view) == CONTENT


def test_nodes_that_name_one_file_get_one_payload(folder):
    with opened(
        folder, node("a", cache="a_x.bin"), node("b", cache="a_x.bin")
    ) as given:
        assert given.payload(0) is given.payload(1)


def test_embedded_payloads_are_each_nodes_own(folder):
    nodes = node("a", cache=b"1", embed=True), node("b", cache=b"2", embed=True)
    with opened(folder, *nodes) as given:
        assert [bytes(given.payload(i).view) for i in (0, 1)] == [b"1", b"2"]


def test_embedded_payloads_of_nodes_of_one_name_are_each_nodes_own(folder):
    nodes = [
        node("a", cache=str(i).encode(), embed=True, outputs=[f"y{i}"]) for i in (1, 2)
    ]
    with opened(folder, *nodes) as given:
        assert [bytes(given.payload(i).view) for i in (0, 1)] == [b"1", b"2"]


def test_a_reference_reads_its_primarys_payload(folder):
    with opened(
        folder, node("second", main=False), node("first", cache="a_x.bin")
    ) as given:
        primary, reference = given.nodes

        assert (primary.name, reference.name) == ("first", "second")
        assert primary.primary is primary
        assert reference.primary is primary
        assert bytes(given.reader.payload(reference).view) == CONTENT


def test_a_reference_among_several_payloads_has_no_primary_unless_the_manifest_says_which(
    folder,
):
    (folder / "b_x.bin").write_bytes(CONTENT)
    nodes = (
        node("a", cache="a_x.bin"),
        node("b", cache="b_x.bin"),
        node("c", main=False),
    )
    with opened(folder, *nodes) as given:
        assert given.nodes[2].primary is None
        with pytest.raises(InvalidGraph, match="'c' carries no payload"):
            given.payload(2)

    said = entry_of(CONTENT, "b_x.bin", references=["c"])
    with opened(folder, *nodes, payloads=[entry_of(CONTENT), said]) as given:
        assert (
            next(each for each in given.nodes if each.name == "c").primary.name == "b"
        )


def test_primaries_that_name_one_file_are_one_for_references(folder):
    nodes = (
        node("a", cache="a_x.bin"),
        node("b", cache="a_x.bin"),
        node("c", main=False),
    )
    with opened(folder, *nodes) as given:
        assert given.nodes[2].primary.name == "a"
        assert bytes(given.payload(2).view) == CONTENT


def refused(folder, *nodes, match, payloads=None):
    """Load what is refused; return the error."""
    with (
        pytest.raises(InvalidGraph, match=match) as caught,
        opened(folder, *nodes, payloads=payloads, look=first_payload),
    ):
        pass
    return caught.value


def test_references_without_any_primary_are_refused(folder):
    refused(
        folder,
        node("a", main=False),
        match="no EPContext node of TestExecutionProvider has main_context=1",
    )


@pytest.mark.parametrize(
    ("embed", "said"), [(True, "no payload"), (False, "no file name")]
)
def test_a_primary_without_a_payload_is_refused(folder, embed, said):
    refused(
        folder,
        node("n", embed=embed),
        match=f"main_context=1 but {said} in ep_cache_context",
    )


@pytest.mark.parametrize("cache", [b"", b"../a_x.bin", b"gone.bin", b"\xff"])
def test_a_name_that_leads_nowhere_is_refused(folder, cache):
    refused(folder, node("n", cache=cache), match="'n'")


def test_an_empty_binary_is_refused(folder):
    (folder / "a_x.bin").write_bytes(b"")

    refused(
        folder,
        node("n", cache="a_x.bin"),
        match=r"node 'n' names the context binary 'a_x\.bin', which is empty",
    )


@pytest.mark.parametrize(
    "wrong",
    [CONTENT[:-1], noise(5000, seed=1), CONTENT + b"x"],
    ids=["cut", "swapped", "longer"],
)
def test_a_binary_that_is_not_the_one_written_is_refused(folder, wrong):
    (folder / "a_x.bin").write_bytes(wrong)

    error = refused(
        folder,
        node("n", cache="a_x.bin"),
        payloads=[entry_of(CONTENT)],
        match=r"'a_x\.bin'",
    )

    assert error.node == "n"
    assert str(error.path) == str(folder / "a_x.bin")


@pytest.mark.parametrize("spelt", ["./a_x.bin", "sub/../a_x.bin"])
def test_a_binary_is_checked_however_the_node_spells_its_name(folder, spelt):
    (folder / "a_x.bin").write_bytes(noise(5000, seed=1))

    refused(
        folder,
        node("n", cache=spelt),
        payloads=[entry_of(CONTENT)],
        match="is not the one that the model",
    )


def test_an_altered_embedded_payload_is_refused(folder):
    refused(
        folder,
        node("n", cache=CONTENT[::-1], embed=True),
        payloads=[entry_of(CONTENT, "n", embedded=True)],
        match="is not the one that the model was written with",
    )


def test_the_copy_that_a_publication_under_way_kept_is_read_instead(folder):
    (folder / "a_x.bin").write_bytes(noise(5000, seed=1))
    (wrong := folder / ".epctx-1" / "new" / "a_x.bin").parent.mkdir(parents=True)
    wrong.write_bytes(b"?")
    (kept := folder / ".epctx-2" / "old" / "a_x.bin").parent.mkdir(parents=True)
    kept.write_bytes(CONTENT)

    with opened(
        folder, node("n", cache="a_x.bin"), payloads=[entry_of(CONTENT)]
    ) as given:
        payload = given.payload()

        assert bytes(payload.view) == CONTENT
        kept.unlink()
        assert Path(payload.as_file()).read_bytes() == CONTENT


def test_without_a_manifest_nothing_can_be_checked(folder):
    (folder / "a_x.bin").write_bytes(b"foreign")

    with opened(folder, node("n", cache="a_x.bin")) as given:
        assert (bytes(given.payload().view), given.payload().digest) == (
            b"foreign",
            None,
        )


def test_a_model_from_bytes_has_no_files():
    with (
        pytest.raises(
            InvalidArgument, match=r"given as bytes, .* payload in the file 'a_x\.bin'"
        ),
        loaded(context_model(node("n", cache="a_x.bin")), first_payload),
    ):
        pass


def test_there_is_no_source_model_to_read_weights_from(folder):
    with (
        opened(folder, node("n", cache="a_x.bin")) as given,
        pytest.raises(
            InvalidGraph,
            match="weights of the source model are needed, and no EPContext node",
        ),
    ):
        given.reader.source_tensor("w")


def test_the_boundary_of_a_node_is_typed_by_the_model(folder):
    values = [value("x", shape=None), value("n_out", INT64, [3])]
    made = context_model(node("n", cache="a_x.bin"), values=values)
    (folder / "m_ctx.onnx").write_bytes(made.SerializeToString())

    with loaded(folder / "m_ctx.onnx") as given:
        (found,) = given.nodes

    assert [str(v.type) for v in (*found.inputs, *found.outputs)] == [
        "float[?]",
        "int64[3]",
    ]
    assert "ep_cache_context" not in found.attributes
