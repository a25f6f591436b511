"""`epctx share`: several models, one binary."""

from __future__ import annotations

import numpy as np
import pytest
from support.share_models import options, run, write_model
from support.sim_eps import QNN
from support.small_models import chain, saved

DONE, FAILED, USAGE = 0, 1, 2


@pytest.fixture
def models(tmp_path):
    return [
        write_model(QNN, tmp_path / f"{name}.onnx", rows)
        for name, rows in (("a", 1), ("b", 4))
    ]


def test_it_ends_with_the_files_and_what_sharing_saved(epctx, models, tmp_path):
    said = epctx("share", *models, "--ep", "QNN")

    assert said.code == 0
    assert said.out.splitlines()[-1] == "Sharing saved 192.0 KiB of weights."
    assert [said.out.index(name) for name in ("a_qnn.bin", "a_ctx.onnx", "b_ctx.onnx")]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a.onnx", "a_ctx.onnx", "a_qnn.bin", "b.onnx", "b_ctx.onnx",
    ]  # fmt: skip
    assert np.allclose(
        run(tmp_path / "b_ctx.onnx", 4, options(QNN)), run(models[1], 4), atol=1e-4
    )


def test_the_form_of_the_other_tool_gives_the_same(epctx, models, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()

    epctx(
        "share",
        *models,
        "--ep",
        "QNN",
        "-p",
        "QNN.htp_arch=75",
        "-c",
        "ep.context_node_name_prefix=p_",
        "-o",
        ours,
    )
    said = epctx(
        "share", "-e", "qnn", "-i", "htp_arch|75", "-C",
        "ep.context_node_name_prefix|p_", "-o", theirs, ",".join(map(str, models)),
    )  # fmt: skip

    assert said.code == 0
    assert {p.name: p.read_bytes() for p in ours.iterdir()} == {
        p.name: p.read_bytes() for p in theirs.iterdir()
    }


def test_models_may_stand_on_both_sides_of_options(epctx, models, tmp_path):
    together, apart = tmp_path / "together", tmp_path / "apart"
    for folder in (together, apart):
        folder.mkdir()

    epctx("share", *models, "--ep", "QNN", "-o", together)
    said = epctx("share", models[0], "--ep", "QNN", models[1], "-o", apart)

    assert said.code == 0
    assert {p.name: p.read_bytes() for p in apart.iterdir()} == {
        p.name: p.read_bytes() for p in together.iterdir()
    }


def test_a_sealed_group_tells_a_binary_of_another_build(epctx, models, tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    epctx("share", models[0], "--ep", "QNN", "-o", tmp_path / "old")

    said = epctx("share", *models, "--ep", "QNN", "-o", tmp_path / "new", "--seal")

    assert said.code == DONE
    assert said.out.splitlines()[-1] == "The folder is sealed."
    assert epctx("verify", tmp_path / "new").code == DONE

    (tmp_path / "old" / "a_qnn.bin").replace(tmp_path / "new" / "a_qnn.bin")
    said = epctx("verify", tmp_path / "new")
    assert said.code == FAILED
    assert "a_qnn.bin: it has other content" in said.out


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (["--epp", "QNN"], "unknown option '--epp'. Did you mean '--ep'?"),
        (["b.onnx", "--epp"], "unknown option '--epp'"),
        (["b.onnx", "QNN.htp_arch=73"], "'QNN.htp_arch=…' needs an option"),
    ],
)
def test_what_is_no_model_is_refused_also_behind_options(epctx, models, rest, words):
    said = epctx("share", models[0], "--ep", "QNN", *rest)

    assert said.code == USAGE
    assert words in said.err


def test_it_says_what_is_simulated_and_what_was_not_compiled(epctx, models, tmp_path):
    plain = saved(chain(["Atanh", "Acosh"]), tmp_path / "plain.onnx")

    said = epctx("share", *models, plain, "--ep", "QNN")

    assert said.code == FAILED
    assert "Simulated: QNNExecutionProvider computes on this CPU" in said.out
    assert (
        "warning: nothing was compiled of plain.onnx by QNNExecutionProvider, so "
        "'plain_ctx.onnx' is a plain model"
    ) in said.err
    assert (
        epctx("share", *models, plain, "--ep", "QNN", "--allow-uncompiled").code == DONE
    )


def test_options_stand_as_for_compile(epctx, models, tmp_path):
    said = epctx(
        "share",
        *models,
        "--ep",
        "QNN",
        "-c",
        f"ep.context_file_path={tmp_path / 'x_ctx.onnx'}",
    )
    assert said.code == USAGE
    assert "ep.context_file_path has no meaning" in said.err

    said = epctx("share", *models, "--ep", "QNN", "-p", "OpenVINO.device_type=CPU")
    assert said.code == USAGE
    assert "only QNN was given" in said.err


def test_the_result_as_json_names_all_files(epctx, models):
    answer = epctx("share", *models, "--ep", "QNN", "--json").json

    assert [file["path"] for file in answer["files"]] == [
        "a_qnn.bin",
        "a_ctx.onnx",
        "b_ctx.onnx",
    ]
    assert answer["saved_bytes"] == 3 * 128 * 128 * 4
    assert [member["output"] for member in answer["members"]] == [
        "a_ctx.onnx",
        "b_ctx.onnx",
    ]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([], "needs an Execution Provider"),
        (["--ep", "QNN", "--name", "one"], "2 models and 1 name"),
        (["--ep", "QNN", "-i", "htp_arch=75"], "not of the form KEY|VALUE"),
        (
            ["--ep", "QNN", "--ep", "OpenVINO", "-i", "htp_arch|75"],
            "needs exactly one EP",
        ),
        (["--ep", "QNN", "-c", "ep.context_embed_mode=1"], "contradict"),
    ],
    ids=str,
)
def test_what_cannot_be_shared_is_refused(epctx, models, extra, words):
    said = epctx("share", *models, *extra)

    assert said.code == USAGE
    assert words in said.err
    assert not list(models[0].parent.glob("*_ctx.onnx"))
