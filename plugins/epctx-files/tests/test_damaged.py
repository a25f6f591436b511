"""Damaged and hostile models: one typed error each, and no file elsewhere."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from epctx_files import diff, embed, externalize, extract, merge
from file_models import compiled, product

from epctx_core.errors import EpctxError, InternalError, InvalidGraph

SAMPLE = 150
MANY = 4000
FORMS = ("file", "embedded", "weights")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Small models: payload in a file, payload in the model, weights in a file."""
    root = tmp_path_factory.mktemp("sound")
    for form in FORMS:
        plain = product(root / form / "net.onnx", external=form == "weights")
        if form == "weights":
            shutil.copy(plain, root / form / "net_ctx.onnx")
        else:
            compiled(plain, ep__context_embed_mode=str(int(form == "embedded")))
    return root


def list_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def work_on(path, folder):
    """Do all work on a model; return the errors, each a typed one."""
    other = folder / "head.onnx"
    if not other.exists():
        product(other, x="y", y="z", external=False)
    output = folder / "inside" / "out" / "whole.onnx"
    errors = []
    for work in (
        lambda: merge([path, other], output),
        lambda: merge([other, path], output, joins={"head.z": "net.x"}),
        lambda: extract(path, output, outputs=["y"]),
        lambda: extract(path, output, inputs=["x"]),
        lambda: embed(path, output),
        lambda: externalize(path, output),
        lambda: diff(path, other, weights=True),
        lambda: diff(path, path),
    ):
        try:
            work()
        except EpctxError as error:
            assert not isinstance(error, InternalError), error.__cause__
            errors.append(error)
    return errors


def change(data, seed):
    """Return bytes of which some were changed, inserted, removed or repeated."""
    generator = np.random.default_rng(seed)
    changed = bytearray(data)
    for _ in range(generator.integers(1, 5)):
        # Embedded bytes are most of a model, and no structure.
        end = len(changed)
        at = int(generator.choice([generator.integers(end), generator.integers(300)]))
        kind = int(generator.integers(4))
        if kind == 0:
            changed[at] ^= 1 << int(generator.integers(8))
        elif kind == 1:
            changed[at] = int(generator.choice([0, 1, 0x7F, 0x80, 0xFF]))
        elif kind == 2:
            del changed[at : at + generator.integers(1, 9)]
        else:
            changed[at:at] = changed[at : at + generator.integers(1, 65)]
    return bytes(changed)


def work_on_changed(sound, tmp_path, seeds):
    refused = 0
    for seed in seeds:
        form = FORMS[seed % len(FORMS)]
        folder = tmp_path / f"{seed}"
        shutil.copytree(sound / form, folder)
        path = folder / "net_ctx.onnx"
        path.write_bytes(change(path.read_bytes(), seed))
        before = list_files(folder)
        refused += bool(work_on(path, folder))
        after = [each for each in list_files(folder) if not each.startswith("inside")]
        assert [each for each in after if each not in before] == ["head.onnx"]
        shutil.rmtree(folder)
    assert refused


def test_changed_bytes_are_refused_with_typed_errors(sound, tmp_path):
    work_on_changed(sound, tmp_path, range(SAMPLE))


@pytest.mark.stress
def test_many_changed_bytes_are_refused_with_typed_errors(sound, tmp_path):
    work_on_changed(sound, tmp_path, range(SAMPLE, MANY))


@pytest.fixture
def hostile(sound, tmp_path):
    """Return a function that writes a changed copy of a model, and works on it."""

    def work(edit, form="file"):
        folder = tmp_path / form
        shutil.copytree(sound / form, folder)
        path = folder / "net_ctx.onnx"
        model = onnx.load(path, load_external_data=False)
        edit(model)
        path.write_bytes(model.SerializeToString())
        return work_on(path, folder)

    return work


def set_attribute(name, value):
    def edit(model):
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == name:
                    attribute.s = value

    return edit


@pytest.mark.parametrize(
    "name",
    [b"../net_qnn.bin", b"/etc/passwd", b"", b"\xff\xfe", b"a\0b", b"x" * 5000, b"."],
)
def test_no_payload_is_opened_outside_of_the_folder(hostile, name):
    errors = hostile(set_attribute("ep_cache_context", name))

    assert all(isinstance(error, InvalidGraph) for error in errors if name)
    assert errors or not name


@pytest.mark.parametrize("source", [b"\xff", b"../../evil", b"a/b", b"x" * 9000, b""])
def test_no_payload_is_written_outside_of_the_folder(hostile, source, tmp_path):
    hostile(set_attribute("source", source), "embedded")

    for path in tmp_path.rglob("*"):
        if path.suffix == ".bin":
            assert path.parent in {
                tmp_path / "embedded",
                tmp_path / "embedded" / "inside" / "out",
            }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offset", "9" * 5000),
        ("offset", "-1"),
        ("length", "1e9"),
        ("length", "99999999999999999999"),
        ("location", "../net.weights"),
        ("location", ""),
    ],
)
def test_ranges_of_weights_that_are_none_are_refused(hostile, key, value):
    def edit(model):
        for entry in model.graph.initializer[0].external_data:
            if entry.key == key:
                entry.value = value

    errors = hostile(edit, "weights")

    assert any(isinstance(error, InvalidGraph) for error in errors)


def test_a_second_location_of_a_weight_is_not_read(hostile):
    hostile(
        lambda model: model.graph.initializer[0].external_data.add(
            key="location", value="../elsewhere"
        ),
        "weights",
    )


MANIFESTS = [
    [],
    {},
    {"payloads": 5},
    {"payloads": [5]},
    {"payloads": [{"name": 5}]},
    {"payloads": [{"name": "a", "references": 5}]},
    {"payloads": [{"name": "a", "references": [[]]}]},
    {"payloads": [], "providers": 5},
    {"payloads": [], "providers": {"QNNExecutionProvider": 5}},
    {"payloads": [], "pending": {}},
    {"payloads": [], "sealed": 5},
    {"payloads": [], "sealed": {"bytes": "x", "sha256": 5}},
    {"payloads": [], "sealed": {"bytes": -1, "sha256": ""}},
]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=json.dumps)
@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
def test_a_manifest_that_is_none_is_refused(sound, tmp_path, manifest, beside):
    folder = shutil.copytree(sound / "file", tmp_path / "file")
    path = folder / "net_ctx.onnx"
    model = onnx.load(path)
    del model.metadata_props[:]
    if beside:
        (folder / "net_ctx.onnx.epctx.json").write_text(json.dumps(manifest))
    else:
        model.metadata_props.add(key="epctx.manifest", value=json.dumps(manifest))
    path.write_bytes(model.SerializeToString())

    errors = work_on(path, folder)

    assert errors
    assert all("manifest" in error.message for error in errors)


@pytest.mark.parametrize("text", ["", "5", "[" * 100_000, "{}", "null"])
def test_a_checksum_of_initializers_that_is_none_is_no_crash(hostile, text):
    hostile(
        lambda model: model.metadata_props.add(key="epctx.initializers", value=text),
        "weights",
    )


def test_unknown_types_are_no_crash(hostile):
    def edit(model):
        model.graph.initializer[1].data_type = 999
        model.graph.input[0].type.tensor_type.elem_type = 999
        model.graph.node[0].attribute.add(name="unknown")

    hostile(edit, "weights")


@pytest.mark.parametrize(
    "place", ["input", "output", "attribute", "node.input", "node.output"]
)
def test_a_name_in_a_function_that_is_not_utf8_is_refused(sound, tmp_path, place):
    folder = shutil.copytree(sound / "weights", tmp_path / "weights")
    path = folder / "net_ctx.onnx"
    model = onnx.load(path, load_external_data=False)
    node = onnx.helper.make_node("Relu", ["a"], ["b"])
    function = onnx.helper.make_function("own", "F", ["a"], ["b"], [node], [])
    holder = function.node[0] if "." in place else function
    getattr(holder, place.rpartition(".")[2]).append("mark-utf8")
    model.functions.append(function)
    data = model.SerializeToString().replace(b"mark-utf8", b"\xff" * 9)
    path.write_bytes(data)

    with pytest.raises(InvalidGraph, match="not UTF-8"):
        diff(path, path)


def test_nodes_in_a_circle_are_no_hang(hostile):
    def edit(model):
        model.graph.node[0].input[0] = "y"

    hostile(edit, "weights")
