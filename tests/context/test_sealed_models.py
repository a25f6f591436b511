"""Context models that vendors' tools wrote, with digests that `seal_model` gave them:
in the model, or in a file beside it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from context.loading import loaded
from support.folders import REAL
from support.routes import with_qnn
from support.small_models import chain, example, saved, snapshot

import epctx_core as epctx

OPENVINO, QNN = "OpenVINOExecutionProvider", "QNNExecutionProvider"
BINARIES = {
    "ov_ctx0": "ov_ctx0_OpenVINOExecutionProvider.bin",
    "qnn_ctx0": "qnn_ctx0_qnn.bin",
    "qnn_ctx1": None,
    "share1_ctx": "share1_qnn.bin",
    "share2_ctx": "share1_qnn.bin",
}
WITH_FILE = [name for name, binary in BINARIES.items() if binary is not None]
NOBODY = epctx.Registry(entry_points=False)

places = pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])


@pytest.fixture
def real(tmp_path):
    """Return a copy of the folder of vendors' models."""
    return shutil.copytree(
        REAL, tmp_path / "real", ignore=shutil.ignore_patterns("*.md")
    )


def sidecar(path):
    return path.with_name(f"{path.name}.epctx.json")


def findings(path):
    return {
        finding.code for finding in epctx.verify_model(path, registry=NOBODY).findings
    }


def load(path):
    """Load a model with an EP that only asks for its payload; return the payload's
    digest and whether it was checked.
    """
    with loaded(
        path,
        lambda given: given.payload(),
        ep=OPENVINO if path.name.startswith("ov") else QNN,
    ) as given:
        return given.payload().digest


def flip(path, offset=-1):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


@places
@pytest.mark.parametrize("name", BINARIES)
def test_a_sealed_model_is_verified_and_loaded_with_digests(real, name, beside):
    path = real / f"{name}.onnx"
    before = findings(path)

    report = epctx.seal_model(path, beside=beside)

    ((payload, (size, root)),) = report.payloads.items()
    binary = BINARIES[name]
    assert binary is None or (payload, size) == (binary, (REAL / binary).stat().st_size)
    assert before == {"manifest-missing", "not-checked", "plugin-missing"}
    assert findings(path) == {"plugin-missing"}
    (checked,) = epctx.verify_model(path, registry=NOBODY).payloads
    assert (checked.digests, checked.size) == (True, size)
    assert load(path) == root


@pytest.mark.parametrize("name", BINARIES)
def test_a_seal_is_appended_and_nothing_else_of_the_file_changes(real, name):
    path = real / f"{name}.onnx"
    plain = path.read_bytes()

    epctx.seal_model(path)

    assert path.read_bytes().startswith(plain)
    before, after = onnx.load_from_string(plain), onnx.load(path)
    (entry,) = [entry for entry in after.metadata_props if entry.key == "epctx.sealed"]
    after.metadata_props.remove(entry)
    assert after == before
    assert snapshot(real).keys() == {p.name for p in REAL.iterdir()} - {"README.md"}


@pytest.mark.parametrize("name", BINARIES)
def test_a_seal_beside_a_model_leaves_all_other_files_as_they_are(real, name):
    before, path = snapshot(real), real / f"{name}.onnx"

    report = epctx.seal_model(path, beside=True)

    assert report.manifest == sidecar(path)
    assert snapshot(real) == {**before, sidecar(path).name: sidecar(path).read_bytes()}


@places
@pytest.mark.parametrize("name", WITH_FILE)
@pytest.mark.parametrize("damage", ["flipped", "swapped", "truncated"])
def test_another_binary_than_the_sealed_one_is_refused_by_load_and_verify(
    real, name, damage, beside
):
    path, binary = real / f"{name}.onnx", real / BINARIES[name]
    epctx.seal_model(path, beside=beside)
    size = binary.stat().st_size
    if damage == "flipped":
        flip(binary, size // 2)
    else:
        binary.write_bytes(bytes(size if damage == "swapped" else size - 1))

    with pytest.raises(epctx.InvalidGraph, match=binary.name):
        load(path)
    assert "digest-mismatch" in findings(path)


@places
def test_an_embedded_payload_that_was_changed_is_refused_by_load_and_verify(
    real, beside
):
    path = real / "qnn_ctx1.onnx"
    report = epctx.seal_model(path, beside=beside)
    flip(path, path.read_bytes().index(next(onnx_payloads(path))) + 60_000)

    with pytest.raises(
        epctx.InvalidGraph,
        match=sidecar(path).name if beside else next(iter(report.payloads)),
    ):
        load(path)
    assert findings(path) & {"digest-mismatch", "seal-broken"}


def onnx_payloads(path):
    for node in onnx.load(path).graph.node:
        yield from (a.s for a in node.attribute if a.name == "ep_cache_context")


def describe(path):
    model = onnx.load(path)
    model.graph.doc_string = "edited"
    onnx.save(model, path)


def add_metadata(path):
    model = onnx.load(path)
    model.metadata_props.add(key="note", value="by another tool")
    onnx.save(model, path)


def append_a_node(path):
    more = onnx.ModelProto()
    more.graph.node.add(op_type="Identity", input=["x"], output=["unused"])
    path.write_bytes(path.read_bytes() + more.SerializeToString())


@pytest.mark.parametrize("change", [describe, add_metadata, append_a_node])
@pytest.mark.parametrize("name", BINARIES)
def test_a_verification_finds_a_change_of_a_sealed_models_structure(real, name, change):
    path = real / f"{name}.onnx"
    epctx.seal_model(path)

    change(path)

    assert "seal-broken" in findings(path)
    assert load(path)


@pytest.mark.parametrize("change", [describe, add_metadata, append_a_node])
def test_a_manifest_beside_another_model_than_its_own_is_refused_by_its_name(
    real, change
):
    path = real / "qnn_ctx0.onnx"
    epctx.seal_model(path, beside=True)

    change(path)

    with pytest.raises(
        epctx.InvalidGraph, match=r"'qnn_ctx0\.onnx\.epctx\.json' is of another model"
    ) as caught:
        load(path)
    assert "seal --beside --force" in caught.value.hint
    assert "seal-broken" in findings(path)
    with pytest.raises(epctx.InvalidGraph, match="is of another model"):
        epctx.ModelCompiler(epctx.SessionOptions(), path, True).compile_to_file(
            real / "again_ctx.onnx"
        )


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is damaged"),
        ("{", "is damaged"),
        ("[1]", "is damaged"),
        (b"\xff\xfe\xff", "is damaged"),
        (('{"version": 1, "source_model": "", "providers": {}, "payloads": []}'), "is of another model"),
        (('{"version": 1, "source_model": "", "providers": {}, "payloads": [], "sealed": {"by": "x"}}'), "is damaged"),
        (
            '{"version":1,"source_model":"","providers":{},"payloads":[],"sealed":{"by":1,"bytes":Infinity,"sha256":""}}',
            "is damaged",
        ),
        *[
            (f'{{"version":1,"source_model":"","providers":{{}},"payloads":[],"sealed":{seal}}}', "is damaged")
            for seal in ("[]", "{}", '""', "0", "false")
        ],
    ],
)  # fmt: skip
def test_a_file_beside_a_model_that_is_no_manifest_of_it_is_refused_by_its_name(
    real, text, match
):
    path = real / "qnn_ctx0.onnx"
    sidecar(path).write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(
        epctx.InvalidGraph, match=rf"'qnn_ctx0\.onnx\.epctx\.json' {match}"
    ):
        load(path)
    assert findings(path) & {"manifest-damaged", "seal-broken"}


def test_a_file_beside_a_model_that_is_longer_than_any_manifest_is_refused_unread(real):
    path = real / "qnn_ctx0.onnx"
    sidecar(path).touch()
    os.truncate(sidecar(path), 1 << 40)

    with pytest.raises(
        epctx.InvalidGraph,
        match=r"'qnn_ctx0\.onnx\.epctx\.json' cannot be read: .* bytes",
    ):
        load(path)
    assert "manifest-damaged" in findings(path)


def test_entries_of_a_manifest_beside_a_model_are_bounded(real):
    path, options = real / "qnn_ctx0.onnx", epctx.SessionOptions()
    epctx.seal_model(path, beside=True)
    sidecar(path).write_text(f"[{'[],' * 1000}0]")
    options.input_budget = epctx.InputBudget(manifest_entries=100)

    with (
        pytest.raises(epctx.InvalidGraph, match="has more than 100 entries"),
        loaded(path, options=options, ep=QNN),
    ):
        pass


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Path.mkdir, "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda link: link.symlink_to("nowhere"), "No such file"),
    ],
    ids=["folder", "pipe", "link"],
)
def test_what_is_no_file_of_that_name_is_refused_and_found(real, make, says):
    path = real / "qnn_ctx0.onnx"
    make(sidecar(path))

    match = rf"'qnn_ctx0\.onnx\.epctx\.json' cannot be read: .*{says}"
    for use in (load, epctx.inspect_model):
        with pytest.raises(epctx.InvalidGraph, match=match):
            use(path)
    assert "manifest-damaged" in findings(path)


@places
def test_a_hole_of_any_size_is_neither_read_nor_digested(real, beside):
    path = real / "qnn_ctx0.onnx"
    for place in (sidecar(path), real / "qnn_ctx0_qnn.bin"):
        place.touch()
        os.truncate(place, 1 << 40)

    with pytest.raises(
        epctx.InvalidGraph, match=r"'qnn_ctx0_qnn\.bin' .* is nearly all holes"
    ):
        epctx.seal_model(path, beside=beside)

    shutil.copy(REAL / "qnn_ctx0_qnn.bin", real)
    with pytest.raises(epctx.InvalidArgument, match="says something else"):
        epctx.seal_model(path, beside=True)
    epctx.seal_model(path, beside=True, force=True)
    assert findings(path) == {"plugin-missing"}


@places
@pytest.mark.parametrize("name", ["qnn_ctx0.onnx", "qnn_ctx0.onnx.epctx.json"])
def test_a_model_that_names_what_sealing_changes_as_its_binary_is_not_sealed(
    real, name, beside
):
    path = real / "qnn_ctx0.onnx"
    sidecar(path).write_bytes(b"{}")
    model = onnx.load(path)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = name.encode()
    onnx.save(model, path)
    before = snapshot(real)

    with pytest.raises(epctx.InvalidGraph, match="is the model itself or its manifest"):
        epctx.seal_model(path, beside=beside, force=True)

    assert snapshot(real) == before


def test_what_is_no_file_beside_a_model_is_not_waited_for_and_not_followed(real):
    path = real / "qnn_ctx0.onnx"
    for place in (os.mkfifo, lambda link: link.symlink_to("nowhere")):
        place(sidecar(path))

        with pytest.raises(epctx.InvalidArgument, match="says something else"):
            epctx.seal_model(path, beside=True)
        sidecar(path).unlink()


@pytest.mark.parametrize("model", [5, None, b"abc"])
def test_a_seal_of_what_is_no_path_is_the_hosts_mistake(model):
    with pytest.raises(epctx.InvalidArgument, match="a path"):
        epctx.seal_model(model)


def test_a_manifest_of_a_later_version_beside_a_model_is_left_out_with_a_warning(
    real, caplog
):
    path = real / "qnn_ctx0.onnx"
    epctx.seal_model(path, beside=True)
    content = json.loads(sidecar(path).read_bytes())
    sidecar(path).write_text(json.dumps({**content, "version": 2}))

    assert load(path) is None
    assert "has the version 2, and this epctx reads 1" in caplog.text


def test_a_models_own_manifest_goes_first(real):
    path = real / "qnn_ctx0.onnx"
    epctx.seal_model(path)

    sidecar(path).write_text("not read")

    assert load(path)
    assert findings(path) == {"plugin-missing"}


@places
def test_sealing_again_changes_nothing(real, beside):
    path = real / "qnn_ctx0.onnx"
    first = epctx.seal_model(path, beside=beside)
    before = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in real.iterdir()}

    again = epctx.seal_model(path, beside=beside)

    assert (first.written, again.written) == (True, False)
    assert first.payloads == again.payloads
    assert {
        p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in real.iterdir()
    } == before


@places
def test_a_seal_that_differs_is_replaced_by_force_only(real, beside):
    path, binary = real / "qnn_ctx0.onnx", real / "qnn_ctx0_qnn.bin"
    epctx.seal_model(path, beside=beside)
    flip(binary)
    before = snapshot(real)

    with pytest.raises(
        epctx.InvalidArgument, match="something else of the model and its payloads"
    ) as caught:
        epctx.seal_model(path, beside=beside)

    assert "--force" in caught.value.hint
    assert snapshot(real) == before
    plain = (REAL / path.name).read_bytes()
    epctx.seal_model(path, beside=beside, force=True)
    assert findings(path) == {"plugin-missing"}
    assert path.read_bytes().startswith(plain)


@places
def test_a_sealed_model_that_was_changed_is_sealed_anew_by_force_only(real, beside):
    path = real / "qnn_ctx0.onnx"
    epctx.seal_model(path, beside=beside)
    add_metadata(path)

    with pytest.raises(epctx.InvalidArgument, match="something else"):
        epctx.seal_model(path, beside=beside)

    epctx.seal_model(path, beside=beside, force=True)
    assert findings(path) == {"plugin-missing"}
    assert {entry.key for entry in onnx.load(path).metadata_props} >= {"note"}


def test_a_copy_is_sealed_where_its_binary_lies(real, tmp_path):
    path, other = real / "qnn_ctx0.onnx", tmp_path / "other"
    other.mkdir()
    with pytest.raises(
        epctx.InvalidArgument,
        match=r"does not have the context binary 'qnn_ctx0_qnn\.bin'",
    ):
        epctx.seal_model(path, other / "net.onnx")
    shutil.copy(real / "qnn_ctx0_qnn.bin", other)

    report = epctx.seal_model(path, other / "net.onnx")

    assert report.path == other / "net.onnx"
    assert path.read_bytes() == (REAL / path.name).read_bytes()
    assert findings(other / "net.onnx") == {"plugin-missing"}
    assert load(other / "net.onnx")


def test_a_link_is_not_replaced_but_can_be_sealed_beside(real, tmp_path):
    link = tmp_path / "links" / "net.onnx"
    link.parent.mkdir()
    link.symlink_to(real / "qnn_ctx0.onnx")

    with pytest.raises(epctx.InvalidArgument, match="it is a link") as caught:
        epctx.seal_model(link)

    assert "--beside" in caught.value.hint
    epctx.seal_model(link, beside=True)
    assert findings(link) == {"plugin-missing"}
    flip(real / "qnn_ctx0_qnn.bin")
    assert "digest-mismatch" in findings(link)


@places
def test_two_models_are_sealed_for_one_binary(real, beside):
    roots = {
        name: epctx.seal_model(real / f"{name}.onnx", beside=beside).payloads[
            "share1_qnn.bin"
        ]
        for name in ("share1_ctx", "share2_ctx")
    }

    assert len(set(roots.values())) == 1
    assert (
        load(real / "share1_ctx.onnx")
        == load(real / "share2_ctx.onnx")
        == roots["share1_ctx"][1]
    )
    shutil.copy(real / "share2_ctx.onnx", real / "share1_ctx.onnx")
    if beside:
        with pytest.raises(epctx.InvalidGraph, match="is of another model"):
            load(real / "share1_ctx.onnx")


@places
def test_a_seal_says_nothing_about_eps_and_changes_no_routing(real, beside):
    path = real / "qnn_ctx0.onnx"
    before = epctx.inspect_model(path)

    epctx.seal_model(path, beside=beside)

    after = epctx.inspect_model(path)
    assert after.ep_contexts == before.ep_contexts
    assert (after.compiled_by, after.manifest.source_digest) == ({}, "")
    assert after.manifest.sealed.by == f"epctx-core {epctx.__version__}"
    assert str(real).encode() not in path.read_bytes() + (
        sidecar(path).read_bytes() if beside else b""
    )


@pytest.fixture
def foreign(tmp_path):
    """Return a context model that an EP of this machine loads, without a manifest, as
    another tool would write it.
    """
    source = saved(chain(("Relu", "Add")), tmp_path / "m.onnx")
    path = epctx.ModelCompiler(with_qnn(), source).compile_to_file().output
    model = onnx.load(path)
    kept = [entry for entry in model.metadata_props if entry.key != "epctx.manifest"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, path)
    return path


def run(path):
    with epctx.InferenceSession(path) as session:
        return session.run(None, {"x": example()})[0]


@places
def test_a_sealed_model_runs_as_before_and_is_checked(foreign, beside):
    expected = run(foreign)

    epctx.seal_model(foreign, beside=beside)

    np.testing.assert_array_equal(run(foreign), expected)
    assert epctx.verify_model(foreign).ok
    flip(foreign.with_name("m_qnn.bin"), 100)
    with pytest.raises(epctx.InvalidGraph, match=r"m_qnn\.bin"):
        run(foreign)


@places
def test_a_sealed_model_that_is_compiled_again_has_a_manifest_of_its_own(
    foreign, beside, tmp_path
):
    epctx.seal_model(foreign, beside=beside)
    expected = run(foreign)

    again = epctx.ModelCompiler(epctx.SessionOptions(), foreign, True).compile_to_file(
        tmp_path / "again_ctx.onnx"
    )

    assert epctx.inspect_model(again.output).manifest.sealed is None
    assert epctx.verify_model(again.output).ok
    np.testing.assert_array_equal(run(again.output), expected)
    flip(foreign.with_name("m_qnn.bin"), 100)
    with pytest.raises(epctx.InvalidGraph, match=r"m_qnn\.bin"):
        epctx.ModelCompiler(epctx.SessionOptions(), foreign, True).compile_to_file(
            tmp_path / "third_ctx.onnx"
        )


@places
def test_a_model_that_epctx_compiled_needs_no_seal_and_gets_one_by_force_only(
    tmp_path, beside
):
    path = (
        epctx.ModelCompiler(with_qnn(), saved(chain(("Relu",)), tmp_path / "m.onnx"))
        .compile_to_file()
        .output
    )
    before = path.read_bytes()

    match = (
        "has a manifest of its own"
        if beside
        else "was compiled by epctx: its manifest has digests already"
    )
    with pytest.raises(epctx.InvalidArgument, match=match):
        epctx.seal_model(path, beside=beside)

    assert path.read_bytes() == before
    if not beside:
        epctx.seal_model(path, force=True)
        assert epctx.inspect_model(path).compiled_by == {}
        assert epctx.verify_model(path).ok


def test_a_manifest_with_weights_of_a_source_is_never_replaced(tmp_path):
    source = saved(chain(("Add", "Add")), tmp_path / "m.onnx")
    options = epctx.SessionOptions()
    options.add_provider("OpenVINO")
    options.add_session_config_entry("ep.enable_weightless_mode", "2")
    path = epctx.ModelCompiler(options, source).compile_to_file().output
    assert epctx.inspect_model(path).manifest.source_weights

    with pytest.raises(
        epctx.InvalidArgument, match="needs more of its manifest than digests"
    ):
        epctx.seal_model(path, force=True)


@pytest.mark.parametrize("key", ["epctx.sealed", "epctx.manifest"])
@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_manifest_in_a_model_is_refused_and_replaced_by_force_only(
    real, key, text
):
    path = real / "qnn_ctx0.onnx"
    entry = onnx.ModelProto(
        metadata_props=[{"key": key, "value": "?" * len(text)}]
    ).SerializeToString()
    path.write_bytes(
        path.read_bytes() + entry.replace(b"?" * len(text), text)
        if text
        else path.read_bytes() + entry
    )

    with pytest.raises(
        epctx.InvalidGraph, match=rf"the model's {key} metadata is damaged"
    ):
        load(path)
    assert "manifest-damaged" in findings(path)
    with pytest.raises(epctx.InvalidArgument, match=r"qnn_ctx0\.onnx"):
        epctx.seal_model(path)
    epctx.seal_model(path, force=True)

    assert findings(path) == {"plugin-missing"}


@places
@pytest.mark.parametrize("name", ["conv", "missing"])
def test_a_model_that_is_none_or_has_no_payload_is_refused(real, name, beside):
    with pytest.raises(
        epctx.NoSuchFile if name == "missing" else epctx.InvalidArgument, match=name
    ):
        epctx.seal_model(real / f"{name}.onnx", beside=beside)


@places
@pytest.mark.parametrize("binary", ["missing", "empty", "outside"])
def test_a_payload_that_a_load_would_refuse_is_not_sealed(
    real, tmp_path, binary, beside
):
    path = real / "qnn_ctx0.onnx"
    if binary == "outside":
        path.write_bytes(
            path.read_bytes().replace(b"qnn_ctx0_qnn.bin", b"../ctx0_qnn.bin_")
        )
    elif binary == "empty":
        (real / "qnn_ctx0_qnn.bin").write_bytes(b"")
    else:
        (real / "qnn_ctx0_qnn.bin").unlink()
    before = snapshot(real)

    with pytest.raises(epctx.InvalidGraph):
        epctx.seal_model(path, beside=beside)

    assert snapshot(real) == before


def test_a_seal_goes_beside_a_model_or_into_a_copy(real):
    with pytest.raises(epctx.InvalidArgument, match="not both"):
        epctx.seal_model(real / "qnn_ctx0.onnx", real / "copy.onnx", beside=True)
