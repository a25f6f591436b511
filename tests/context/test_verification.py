"""How far payloads are checked against the manifest, and when; copies that nobody else can change."""

from __future__ import annotations

import errno
import io
import logging
import os
from pathlib import Path

import pytest
from context.test_reader import EP, Scene, entry_of, node
from context.writing import inline_weight, noise, written

from epctx_core.context.manifest import Manifest, ReplacedBinaryError
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payload_files import PrivateCopy
from epctx_core.context.payload_reader import PayloadReader, Reading
from epctx_core.context.payload_writer import PayloadWriter
from epctx_core.errors import Fail, InvalidGraph
from epctx_core.graph.mapping import MappedFile
from epctx_core.options import Verification

HEAD, LAZY, FULL = Verification.HEAD, Verification.LAZY, Verification.FULL
NAMES = ("a_x.bin", "b_x.bin")


def container(folder, name, seed):
    """Write a binary of a head and a weight, as a vendor's; return what the manifest says about it."""
    with (folder / name).open("wb", buffering=0) as sink:
        writer = PayloadWriter(name, sink, embedded=False)
        writer.write(noise(500, seed))
        writer.write_tensor(inline_weight(noise(9000, seed + 10)))
        return writer.finish()


class Binaries(Scene):
    """Two primaries with a binary each."""

    def __init__(self, folder, **policy):
        entries = [container(folder, name, seed) for seed, name in enumerate(NAMES)]
        super().__init__(folder, *(node(name[0], cache=name.encode()) for name in NAMES))
        self.policy = policy
        self.entries = entries
        self.reader = self.made()

    def made(self):
        return PayloadReader(
            {r.name: r for r in self.records},
            folder=ModelFolder(self.folder),
            manifest=Manifest(source_digest="", providers={}, payloads=self.entries),
            scratch=self.scratch,
            reading=Reading(**self.policy),
        )

    def alter(self, name, place):
        content = bytearray((self.folder / name).read_bytes())
        content[place] ^= 1
        # Another file, as a copy tool makes it: what is mapped stays as it was.
        (self.folder / "new").write_bytes(content)
        (self.folder / "new").replace(self.folder / name)


def test_head_finds_an_altered_header_and_reads_no_weight(tmp_path):
    scene = Binaries(tmp_path, verification=HEAD)
    scene.alter("a_x.bin", 700)
    scene.alter("b_x.bin", 3)

    assert len(scene.payload(0).view) == 9500
    with pytest.raises(InvalidGraph, match=r"'b_x\.bin' is not the one"):
        scene.payload(1)


def test_lazy_checks_a_payload_whole_when_it_is_asked_for_and_no_other(tmp_path):
    scene = Binaries(tmp_path, verification=LAZY)
    scene.alter("b_x.bin", 700)

    assert len(scene.payload(0).view) == 9500
    with pytest.raises(InvalidGraph, match=r"its bytes 500 to 9,500 have another digest") as caught:
        scene.payload(1)

    assert caught.value.node == "b"


def test_full_checks_all_payloads_before_one_is_asked_for(tmp_path):
    scene = Binaries(tmp_path, verification=FULL)
    scene.alter("b_x.bin", 9499)

    with pytest.raises(InvalidGraph, match=r"'b_x\.bin' is not the one"):
        scene.reader.load_all()


@pytest.mark.parametrize("verification", Verification)
@pytest.mark.parametrize("map_binaries", [True, False])
def test_sound_payloads_pass_and_are_checked_once(tmp_path, verification, map_binaries):
    scene = Binaries(tmp_path, verification=verification, map_binaries=map_binaries)

    scene.reader.load_all()
    scene.alter("a_x.bin", 700)

    assert scene.payload(0) is scene.payload(0)
    assert bytes(scene.payload(0).view[:500]) == noise(500)


def test_a_private_copy_is_checked_whole_whatever_else_was_asked_for(tmp_path):
    scene = Binaries(tmp_path, verification=HEAD, map_binaries=False)
    scene.alter("a_x.bin", 700)

    with pytest.raises(ReplacedBinaryError, match="have another digest"):
        scene.payload(0)


def test_a_private_copy_stays_as_it_is_when_the_file_is_cut_in_place(tmp_path):
    scene = Binaries(tmp_path, map_binaries=False)
    content = (tmp_path / "a_x.bin").read_bytes()
    payload = scene.payload(0)

    os.truncate(tmp_path / "a_x.bin", 0)

    assert bytes(payload.view) == content
    assert payload.view.readonly
    assert Path(payload.as_file()).read_bytes() == content


def test_a_copy_that_a_publication_kept_serves_a_private_reader_too(tmp_path):
    scene = Binaries(tmp_path, verification=LAZY, map_binaries=False)
    (kept := tmp_path / ".epctx-1" / "old" / "a_x.bin").parent.mkdir(parents=True)
    kept.write_bytes((tmp_path / "a_x.bin").read_bytes())
    scene.alter("a_x.bin", 700)

    assert bytes(scene.payload(0).view) == kept.read_bytes()


def test_of_a_binary_of_another_length_nothing_is_copied(tmp_path):
    scene = Binaries(tmp_path, map_binaries=False)
    os.truncate(tmp_path / "a_x.bin", 1 << 40)

    with pytest.raises(ReplacedBinaryError, match="has 1,099,511,627,776 bytes; the model was written with"):
        scene.payload(0)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
@pytest.mark.parametrize("kind", ["payload_reader.MappedFile", "payload_files.PrivateCopy"])
def test_a_binary_for_which_there_is_no_memory_is_no_fault_of_the_ep(tmp_path, monkeypatch, kind, error):
    def refuse(_descriptor, _path):
        raise error

    monkeypatch.setattr(f"epctx_core.context.{kind}", refuse)
    scene = Binaries(tmp_path, map_binaries="Mapped" in kind)

    with pytest.raises(Fail, match=r"a_x\.bin' cannot be brought into memory: .*emory") as caught:
        scene.payload(0)

    assert "ep.context_file_mapping" in caught.value.hint


def test_a_file_that_is_written_to_while_it_is_copied_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "growing"
    path.write_bytes(noise(3 << 20))

    class ReadWhileWritten(io.FileIO):
        def readinto(self, buffer):
            with path.open("ab") as file:
                file.write(b"x")
            return super().readinto(buffer)

    monkeypatch.setattr(io, "FileIO", ReadWhileWritten)

    with path.open("rb") as file, pytest.raises(InvalidGraph, match="was written to while it was read"):
        PrivateCopy(file.fileno(), str(path))


def test_an_embedded_payload_is_checked_whole_too(tmp_path):
    content = noise(3 << 20)
    entry = entry_of(content, "n", embedded=True)
    altered = bytearray(content)
    altered[-1] ^= 1

    for cache, problem in ((content, None), (bytes(altered), "3,145,728 have another digest")):
        scene = Scene(tmp_path, node("n", cache=cache, embed=True))
        reader = PayloadReader(
            {r.name: r for r in scene.records},
            folder=None,
            manifest=Manifest(source_digest="", providers={}, payloads=[entry]),
            scratch=scene.scratch,
            reading=Reading(verification=LAZY),
        )
        if problem is None:
            assert reader.payload(scene.nodes[0]).digest == entry.root
        else:
            with pytest.raises(InvalidGraph, match=problem):
                reader.payload(scene.nodes[0])


def test_what_the_manifest_does_not_know_is_warned_about(tmp_path, caplog):
    scene = Binaries(tmp_path, verification=FULL)
    scene.entries = scene.entries[:1]

    with caplog.at_level(logging.WARNING, "epctx"):
        scene.made().load_all()

    assert caplog.messages == [
        "ep.context_verify=full: the model says nothing about the payload 'b_x.bin' to check it against."
    ]


def test_the_whole_check_tells_what_it_read_so_that_a_mapping_need_not_stay_in_memory(tmp_path):
    entry, content = written(noise((20 << 20) + 5))
    path = tmp_path / "p.bin"
    path.write_bytes(content)
    forgotten = []
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno(), str(path))

    entry.check_whole(mapped.view, forget=lambda *extent: forgotten.append(extent))
    entry.check_whole(mapped.view, forget=mapped.forget)

    assert sum(length for _, length in forgotten) == len(content)
    assert bytes(mapped.view[:5]) == content[:5]


def test_the_whole_check_finds_a_wrong_size_before_it_reads():
    entry, content = written(noise(100))
    reads = []

    with pytest.raises(InvalidGraph, match="has 99 bytes"):
        entry.check_whole(memoryview(content)[1:], EP, forget=lambda *extent: reads.append(extent))

    assert reads == []
