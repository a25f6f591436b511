"""`epctx run`."""

from __future__ import annotations

import pickle
import zipfile

import numpy as np
import onnx
import pytest
from support.agreement import TOLERANCE, relative_error
from support.strange_files import STRANGE


def test_a_model_runs_on_stored_inputs_and_its_outputs_are_stored(
    epctx, resnet, tmp_path
):
    np.savez(tmp_path / "in.npz", **resnet.inputs)

    said = epctx(
        "run",
        resnet.path,
        "--input",
        tmp_path / "in.npz",
        "--output",
        tmp_path / "out.npz",
    )

    with np.load(tmp_path / "out.npz") as stored:
        assert stored.files == ["relu_16"]
        assert relative_error(stored["relu_16"], resnet.reference[0]) <= TOLERANCE
    assert said.code == 0
    assert "seed" not in said.out


def test_a_context_model_finds_its_ep_by_itself(epctx, compiled):
    said = epctx("run", compiled, "--json")

    assert said.code == 0
    assert said.json["providers"] == ["QNNExecutionProvider", "CPUExecutionProvider"]


def test_an_ep_that_takes_nothing_is_warned_of_and_does_not_count_as_simulated(
    epctx, model
):
    said = epctx("run", model("y = Erf(x)"), "--ep", "QNN")

    assert "EPs: QNNExecutionProvider (0 nodes), CPUExecutionProvider (1 node)" in (
        said.out
    )
    assert "warning: no node of small.onnx is taken by QNNExecutionProvider" in said.err
    assert "Simulated" not in said.out


def test_a_real_ep_beside_the_simulated_one_is_named_with_its_package_and_no_warning(
    process, model, site
):
    folder = site("acme-qnn", "QNNExecutionProvider")
    arguments = [model("y = Relu(x)"), "--ep", "QNN"]
    notice = "epctx-sim-qnn 0.1.0 is simulated"

    ran, verbose, alone = (
        process("run", *arguments, *more, path=path)
        for more, path in (((), [folder]), (("-v",), [folder]), ((), []))
    )
    compiled = process("compile", *arguments, "--allow-uncompiled", path=[folder])
    listed = process("plugins", "list", path=[folder])

    assert "EPs: QNNExecutionProvider (acme-qnn 1.0, 0 nodes), CPU" in ran.out
    assert "EPs: QNNExecutionProvider (0 nodes), CPU" in alone.out
    assert "acme-qnn" in compiled.out
    assert notice not in ran.err + compiled.err
    assert notice in verbose.err
    assert "duplicate" in listed.out


def test_of_two_distributions_the_one_that_made_the_context_model_runs_it(
    process, compiled, site
):
    folder = site("another-qnn", "QNNExecutionProvider")

    ran = process("run", compiled, "--json", path=[folder])
    compared = process(
        "compare", compiled, compiled.with_name("resnet.onnx"), "--json", path=[folder]
    )

    assert (ran.code, compared.code) == (0, 0), ran.err
    assert (
        ran.json["simulated"] == compared.json["simulated"] == ["QNNExecutionProvider"]
    )


def test_the_folder_of_the_outputs_is_created(epctx, model, tmp_path):
    said = epctx(
        "run", model("y = Relu(x)"), "--output", tmp_path / "new" / "dir" / "out.npz"
    )

    assert said.code == 0
    with np.load(tmp_path / "new" / "dir" / "out.npz") as stored:
        assert stored.files == ["y"]


def test_what_a_simulated_ep_computed_is_said_to_be_no_vendors_work(epctx, compiled):
    found, asked = epctx("run", compiled), epctx("run", compiled, "--ep", "QNN")
    plain = epctx("run", compiled.with_name("resnet.onnx"))

    words = (
        "Simulated: QNNExecutionProvider computes on this CPU, not on a vendor's "
        "hardware."
    )
    assert words in found.out
    assert words in asked.out
    assert "Simulated" not in plain.out
    assert epctx("run", compiled, "--json").json["simulated"] == [
        "QNNExecutionProvider"
    ]


def test_inputs_made_from_a_seed_are_said_to_be_and_are_the_same_every_time(
    epctx, model
):
    path = model("y = Relu(x)")

    first, again, other = (
        epctx("run", path),
        epctx("run", path),
        epctx("run", path, "--seed", "1"),
    )

    assert "Inputs made from seed 0: x float32[N=1, 3]" in first.out
    assert table_of(first) == table_of(again) != table_of(other)


def table_of(said):
    return [line for line in said.out.splitlines() if line.startswith("  ")]


def test_made_inputs_are_normal_floats_zeros_and_ones_and_booleans(
    epctx, model, tmp_path
):
    path = model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[500] f, int64[500] i, '
        "bool[500] b, float16[N] h)"
        " => (float[500] F, int64[500] I, bool[500] B, float16[N] H) { F = "
        "Identity(f) I = Identity(i) B = Identity(b) H = Identity(h) }"
    )

    said = epctx("run", path, "--output", tmp_path / "out.npz")

    with np.load(tmp_path / "out.npz") as made:
        assert abs(made["F"].mean()) < 0.2
        assert 0.8 < made["F"].std() < 1.2
        assert set(made["I"]) == {0, 1}
        assert set(made["B"]) == {False, True}
        assert made["H"].shape == (1,)
        assert made["H"].dtype == np.float16
    assert said.code == 0


def test_the_report_describes_each_output(epctx, model, tmp_path):
    path = model("y = Identity(x)")
    np.savez(tmp_path / "in.npz", x=np.array([[1, 2, 6]], np.float32))

    said = epctx("run", path, "--input", tmp_path / "in.npz")

    (row,) = [line.split() for line in said.out.splitlines() if line.startswith("  y")]
    assert row == ["y", "tensor(float)", "[1,", "3]", "1", "6", "3"]
    assert "ran in" in said.out


def test_json_holds_null_where_a_number_is_not_finite(epctx, model, tmp_path):
    path = model("y = Identity(x)")
    np.savez(tmp_path / "in.npz", x=np.array([[1, np.inf, np.nan]], np.float32))

    said = epctx("run", path, "--input", tmp_path / "in.npz", "--json")

    assert said.json["outputs"] == [
        {
            "name": "y",
            "type": "tensor(float)",
            "shape": [1, 3],
            "min": None,
            "max": None,
            "mean": None,
        }
    ]
    assert said.json["made_from_seed"] is None


def test_with_json_the_note_about_made_inputs_goes_to_standard_error(epctx, model):
    said = epctx("run", model("y = Relu(x)"), "--json")

    assert said.json["made_from_seed"] == 0
    assert "Inputs made from seed 0" in said.err


def test_bfloat16_survives_the_way_through_two_files(epctx, model, tmp_path):
    path = model(
        '<ir_version: 8, opset_import: ["" : 17]> g (bfloat16[4] x) => (bfloat16[4] '
        "y) { y = Identity(x) }"
    )

    first = epctx("run", path, "--output", tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(
        (tmp_path / "a.npz").read_bytes().replace(b"y.npy", b"x.npy")
    )
    second = epctx(
        "run", path, "--input", tmp_path / "b.npz", "--output", tmp_path / "c.npz"
    )

    assert (first.code, second.code) == (0, 0)
    assert (tmp_path / "c.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()


def test_an_output_called_file_or_with_a_slash_can_be_stored(epctx, model, tmp_path):
    path = model("file = Relu(x) y = Relu(file)")
    proto = onnx.load(path)
    proto.graph.output[0].name = "file"
    proto.graph.node[1].output[0] = "a/b"
    proto.graph.output.append(onnx.helper.make_tensor_value_info("a/b", 1, ["N", 3]))
    onnx.save(proto, path)

    said = epctx("run", path, "--output", tmp_path / "out.npz")

    with np.load(tmp_path / "out.npz") as stored:
        assert sorted(stored.files) == ["a/b", "file"]
    assert said.code == 0


def an_object_array(path):
    np.savez(path, x=np.array([{}], dtype=object))


def a_pickle(path):
    path.write_bytes(pickle.dumps([1, 2]))


def a_single_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def cut_off(path):
    np.savez(path, x=np.zeros((1, 3), np.float32))
    path.write_bytes(path.read_bytes()[:-40])


def damaged_inside(path):
    np.savez_compressed(path, x=np.arange(300, dtype=np.float32))
    data = bytearray(path.read_bytes())
    data[60:90] = b"\xff" * 30
    path.write_bytes(bytes(data))


def no_array_inside(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY garbage")


def plain_bytes_under_an_inputs_name(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"\0" * 12)


def a_header_that_lies(path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }"
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        )


def a_folder(path):
    path.mkdir()


@pytest.mark.parametrize(
    "make",
    [
        an_object_array,
        a_pickle,
        a_single_array,
        cut_off,
        damaged_inside,
        no_array_inside,
        a_header_that_lies,
        plain_bytes_under_an_inputs_name,
        a_folder,
        *STRANGE.values(),
    ],
)
def test_a_bad_input_file_is_bad_input(epctx, model, tmp_path, make):
    make(tmp_path / "in.npz")

    said = epctx("run", model("y = Relu(x)"), "--input", tmp_path / "in.npz")

    assert said.code == 2
    assert "in.npz' cannot be read as a .npz file" in said.err
    assert "allow_pickle=" not in said.err
    assert "Traceback" not in said.err


def test_a_missing_input_file_is_said_to_be_missing(epctx, model, tmp_path):
    said = epctx("run", model("y = Relu(x)"), "--input", tmp_path / "none.npz")

    assert said.code == 2
    assert "there is no input file" in said.err


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": np.zeros((1, 3), np.float32)}, "no input 'X'"),
        ({}, "'x' (float[N,3]) is missing"),
        ({"x": np.zeros((1, 3))}, "is float64; the model takes float32"),
        ({"x": np.zeros((1, 4), np.float32)}, "has the shape [1, 4]"),
        ({"x": np.zeros((1, 3), np.float32), "z": np.zeros(1)}, "no input 'z'"),
    ],
)
def test_an_input_of_wrong_name_type_or_shape_is_named(
    epctx, model, tmp_path, arrays, words
):
    np.savez(tmp_path / "in.npz", **arrays)

    said = epctx("run", model("y = Relu(x)"), "--input", tmp_path / "in.npz")

    assert said.code == 2
    assert words in said.err


def test_no_values_are_made_for_text(epctx, model):
    path = model(
        '<ir_version: 8, opset_import: ["" : 17]> g (string[2] s) => (string[2] t) { '
        "t = Identity(s) }"
    )

    said = epctx("run", path)

    assert said.code == 2
    assert "there are no random values for the input 's'" in said.err
    assert "--input" in said.err


def test_values_are_made_for_complex_numbers(epctx, model):
    path = model(
        '<ir_version: 8, opset_import: ["" : 17]> g (complex64[2,N] c) => '
        "(complex64[2,N] d) { d = Identity(c) }"
    )

    said = epctx("run", path)

    assert said.code == 0


def test_what_no_file_of_arrays_can_hold_is_left_to_a_session(epctx, model):
    path = model(
        '<ir_version: 8, opset_import: ["" : 17]> g (seq(float[2]) s) => (int64 n) { '
        "n = SequenceLength(s) }"
    )

    said = epctx("run", path)

    assert said.code == 2
    assert "'s' of type seq(tensor(float))" in said.err
    assert "InferenceSession" in said.err
    assert "--input" not in said.err


def test_an_output_folder_that_is_a_file_is_noticed_before_the_model_is_loaded(
    epctx, tmp_path
):
    (tmp_path / "file").touch()

    said = epctx("run", tmp_path / "no.onnx", "--output", tmp_path / "file" / "out.npz")

    assert said.code == 2
    assert "file' is not a folder" in said.err


def test_a_model_that_fails_while_it_runs_is_no_usage_error(epctx, model):
    path = model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x, int64[1] s) => '
        "(float[M] y) { y = Reshape(x, s) }"
    )
    np.savez(path.with_name("in.npz"), x=np.zeros(6, np.float32), s=np.array([4]))

    said = epctx("run", path, "--input", path.with_name("in.npz"))

    assert said.code == 1
    assert said.err.startswith("error: ")


def test_a_payload_that_is_gone_names_file_and_node(epctx, compiled):
    compiled.with_name("resnet_qnn.bin").unlink()

    said = epctx("run", compiled)

    assert said.code == 2
    assert "resnet_qnn.bin" in said.err
    assert "QNNExecutionProvider_" in said.err


def test_a_source_that_nobody_takes_is_a_missing_plugin(epctx, compiled):
    proto = onnx.load(compiled)
    for attribute in proto.graph.node[0].attribute:
        if attribute.name == "source":
            attribute.s = b"NoSuchExecutionProvider"
    onnx.save(proto, compiled)

    said = epctx("run", compiled, "--json")

    assert said.code == 3
    assert "source 'NoSuchExecutionProvider'" in said.err
    assert said.json["error"]["code"] == "NOT_IMPLEMENTED"


def test_an_explicit_list_of_eps_is_exhaustive(epctx, compiled):
    said = epctx("run", compiled, "--ep", "CPU")

    assert said.code == 3
    assert "to the providers" in said.err


NESTED = """
c = Constant <value = bool {1}> ()
y = If (c) <
  then_branch = then () => (float[N, 3] t) { a = Tanh(x) t = Sin(a) },
  else_branch = other () => (float[N, 3] e) { e = Exp(x) }
>
"""
"""Two nodes with three inside one of them."""


def test_nodes_inside_subgraphs_count(epctx, model):
    said = epctx("run", model(NESTED), "--json")

    assert said.json["nodes"] == {"CPUExecutionProvider": 5}
    assert "placement" not in said.json


def test_the_placement_is_one_table_in_text_and_one_object_in_json(epctx, model):
    arguments = [
        "run",
        model("a = Relu(x) y = Erf(a)"),
        "--ep",
        "QNN",
        "--free-dimension",
        "N=2",
    ]

    shown = epctx(*arguments, "--placement")
    placement = epctx(*arguments, "--placement", "--json").json["placement"]

    assert [row["nodes"] for row in placement["eps"]] == [1, 1]
    assert placement["eps"][0]["simulated"] is True
    (left,) = placement["left"]
    assert (left["nodes"], left["operators"]) == (1, {"Erf": 1})
    assert "nodes: 2, on the CPU EP: 1" in shown.out
    assert left["reason"] in shown.out
    assert shown.out.count(placement["eps"][0]["provided_by"]) == 1
