"""Depth and time of checking payloads against the manifest; copies that nobody else can
change.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import io
import logging
import mmap
import os
from pathlib import Path

import pytest
from context.loading import (
    context_model,
    entry_of,
    loaded,
    manifest,
    node,
    noise,
    root_of,
)

from epctx_core import SessionOptions
from epctx_core.errors import Fail, InvalidGraph

NAMES = ("a_x.bin", "b_x.bin")


def reading(*, verify=None, mapping=True):
    options = SessionOptions()
    options.add_session_config_entry("ep.context_file_mapping", str(int(mapping)))
    if verify is not None:
        options.add_session_config_entry("ep.context_verify", verify)
    return options


class Binaries:
    """A context model of two primaries with a binary each: a head and a weight, as a
    vendor's.
    """

    def __init__(self, folder, known=NAMES, **policy):
        self.folder = folder
        self.options = reading(**policy)
        entries = [self.container(name, seed) for seed, name in enumerate(NAMES)]
        said = manifest(*(entry for entry in entries if entry["name"] in known))
        made = context_model(*(node(name[0], cache=name) for name in NAMES), said=said)
        self.path = folder / "m_ctx.onnx"
        self.path.write_bytes(made.SerializeToString())

    def container(self, name, seed):
        head, weight = noise(500, seed), noise(9000, seed + 10)
        (self.folder / name).write_bytes(head + weight)
        segments = [
            [len(piece), hashlib.sha256(piece).hexdigest(), *mark]
            for piece, mark in ((head, []), (weight, [1]))
        ]
        return entry_of(b"", name) | {
            "bytes": 9500,
            "segments": segments,
            "root": root_of(segments),
        }

    def alter(self, name, place):
        content = bytearray((self.folder / name).read_bytes())
        content[place] ^= 1
        # Another file, as a copy tool makes it: what is mapped stays as it was.
        (self.folder / "new").write_bytes(content)
        (self.folder / "new").replace(self.folder / name)

    def loaded(self, look=lambda given: None):
        """Load it; in the block is what its EP was given."""
        return loaded(self.path, look, options=self.options)

    def refused(self, match, look=lambda given: None, error=InvalidGraph):
        """Load what is refused; return the error."""
        with pytest.raises(error, match=match) as caught, self.loaded(look):
            pass
        return caught.value


def payloads(*places):
    def look(given):
        for place in places:
            assert len(given.payload(place).view) == 9500

    return look


def test_head_finds_an_altered_header_and_reads_no_weight(tmp_path):
    harness = Binaries(tmp_path, verify="head")
    harness.alter("a_x.bin", 700)

    with harness.loaded(payloads(0, 1)):
        pass
    harness.alter("b_x.bin", 3)

    harness.refused(r"'b_x\.bin' is not the one", payloads(0, 1))


def test_lazy_checks_a_payload_whole_when_it_is_asked_for_and_no_other(tmp_path):
    harness = Binaries(tmp_path, verify="lazy")
    harness.alter("b_x.bin", 700)

    with harness.loaded(payloads(0)):
        pass
    error = harness.refused(
        "its bytes 500 to 9,500 have another digest", payloads(0, 1)
    )

    assert error.node == "b"


def test_full_checks_all_payloads_whether_they_are_asked_for_or_not(tmp_path):
    harness = Binaries(tmp_path, verify="full")
    harness.alter("b_x.bin", 9499)

    harness.refused(r"'b_x\.bin' is not the one")


@pytest.mark.parametrize("verify", ["once", "head", "lazy", "full"])
@pytest.mark.parametrize("mapping", [True, False])
def test_sound_payloads_pass_and_are_checked_once(tmp_path, verify, mapping):
    harness = Binaries(tmp_path, verify=verify, mapping=mapping)

    with harness.loaded(payloads(0, 1)) as given:
        harness.alter("a_x.bin", 700)

        assert given.payload(0) is given.payload(0)
        assert bytes(given.payload(0).view[:500]) == noise(500)


def test_a_private_copy_is_checked_whole_whatever_else_was_asked_for(tmp_path):
    harness = Binaries(tmp_path, verify="head", mapping=False)
    harness.alter("a_x.bin", 700)

    harness.refused("have another digest", payloads(0))


def test_a_private_copy_stays_as_it_is_when_the_file_is_cut_in_place(tmp_path):
    harness = Binaries(tmp_path, mapping=False)
    content = (tmp_path / "a_x.bin").read_bytes()

    with harness.loaded(payloads(0)) as given:
        payload = given.payload(0)
        os.truncate(tmp_path / "a_x.bin", 0)

        assert bytes(payload.view) == content
        assert payload.view.readonly
        assert Path(payload.as_file()).read_bytes() == content


def test_a_copy_that_a_publication_kept_serves_a_private_reader_too(tmp_path):
    harness = Binaries(tmp_path, verify="lazy", mapping=False)
    (kept := tmp_path / ".epctx-1" / "old" / "a_x.bin").parent.mkdir(parents=True)
    kept.write_bytes((tmp_path / "a_x.bin").read_bytes())
    harness.alter("a_x.bin", 700)

    with harness.loaded(payloads(0)) as given:
        assert bytes(given.payload(0).view) == kept.read_bytes()


def test_of_a_binary_of_another_length_nothing_is_copied(tmp_path):
    harness = Binaries(tmp_path, mapping=False)
    os.truncate(tmp_path / "a_x.bin", 1 << 40)

    harness.refused("has 1,099,511,627,776 bytes, not 9,500", payloads(0))


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")]
)
@pytest.mark.parametrize("mapping", [True, False])
def test_a_binary_for_which_there_is_no_memory_is_no_fault_of_the_ep(
    tmp_path, monkeypatch, mapping, error
):
    def refuse(*_given, **_more):
        raise error

    def look(given):
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", refuse)
            patch.setattr(io, "FileIO", refuse)
            given.payload(0)

    harness = Binaries(tmp_path, verify="lazy", mapping=mapping)

    found = harness.refused(
        r"a_x\.bin' cannot be brought into memory: .*emory", look, Fail
    )

    assert "ep.context_file_mapping" in found.hint


def test_a_file_that_is_written_to_while_it_is_copied_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "growing.bin"
    path.write_bytes(noise(3 << 20))
    made = context_model(node("n", cache="growing.bin"))
    (tmp_path / "m_ctx.onnx").write_bytes(made.SerializeToString())

    read = []

    class ReadWhileWritten(io.FileIO):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            with path.open("ab") as file:
                file.write(bytes(1 << 20))

        def close(self):
            if not self.closed:
                read.append(self.tell())
            super().close()

    def look(given):
        with monkeypatch.context() as patch:
            patch.setattr(io, "FileIO", ReadWhileWritten)
            given.payload()

    with (
        pytest.raises(InvalidGraph, match="was written to while it was read"),
        loaded(tmp_path / "m_ctx.onnx", look, options=reading(mapping=False)),
    ):
        pass

    # One that grows for ever is not read for ever.
    assert read[0] <= (3 << 20) + io.DEFAULT_BUFFER_SIZE


def test_an_embedded_payload_is_checked_whole_too():
    content = noise(3 << 20)
    said = manifest(entry_of(content, "n", embedded=True))
    altered = bytearray(content)
    altered[-1] ^= 1
    whole, wrong = (
        context_model(node("n", cache=bytes(cache), embed=True), said=said)
        for cache in (content, altered)
    )

    with loaded(whole, options=reading(verify="lazy")) as given:
        assert given.payload().digest == entry_of(content)["root"]
    with (
        pytest.raises(InvalidGraph, match="3,145,728 have another digest"),
        loaded(wrong, lambda given: given.payload(), options=reading(verify="lazy")),
    ):
        pass


@pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(),
    reason="only Linux lists the open files of a process",
)
def test_a_binary_that_is_refused_is_closed_at_once(tmp_path):
    scene = Binaries(tmp_path, verify="full")
    scene.alter("a_x.bin", 700)

    gc.collect()
    gc.disable()
    try:
        before = set(Path("/proc/self/fd").iterdir())
        # Not `pytest.raises`, which keeps the traceback and all that its frames hold.
        with contextlib.suppress(InvalidGraph), scene.loaded():
            pass
        left = set(Path("/proc/self/fd").iterdir()) - before
    finally:
        gc.enable()

    assert left == set()


def test_what_the_manifest_does_not_know_is_warned_about(tmp_path, caplog):
    harness = Binaries(tmp_path, known=NAMES[:1], verify="full")

    with caplog.at_level(logging.WARNING, "epctx"), harness.loaded():
        pass

    assert caplog.messages == [
        "the payload 'b_x.bin' is not checked: no manifest lists it."
    ]
