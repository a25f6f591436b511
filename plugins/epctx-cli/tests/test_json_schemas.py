"""What commands print with `--json` has the keys and types of their schemas, and no
others.
"""

from __future__ import annotations

import shutil

import jsonschema
import onnx.parser
import pytest
from support.folders import REAL
from support.small_models import chain, saved


@pytest.fixture
def check(epctx, process):
    """Run a command with `--json`; check its result, with no further keys."""

    def run(command, *arguments, code=0, schema=None, **options):
        found = epctx("schema", *(schema or command).split(), "--json").json
        # Plugins of a folder are loaded in processes of their own.
        call = process if options else epctx
        said = call(*command.split(), *arguments, "--json", **options)

        assert said.code == code, said.err
        jsonschema.Draft202012Validator(
            forbid_other_keys(found["definition"])
        ).validate(said.json)
        return said.json

    return run


def forbid_other_keys(schema):
    """Return a schema that allows only the keys that it describes."""
    if isinstance(schema, list):
        return [forbid_other_keys(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: forbid_other_keys(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        strict.setdefault("additionalProperties", False)
    return strict


@pytest.fixture
def plain(tmp_path):
    """A plain model of which an EP takes some nodes."""
    return saved(chain(["Relu", "Add", "Atanh"]), tmp_path / "m.onnx")


@pytest.fixture
def context(plain, epctx):
    """A context model with its binary and its source."""
    assert epctx("compile", plain, "--ep", "QNN").code == 0
    return plain.with_name("m_ctx.onnx")


def test_a_compile_and_its_check(check, plain):
    without = check("compile", plain, "--ep", "QNN")
    checked = check("compile", plain, "--ep", "QNN", "--check")

    assert "check" not in without
    assert checked["check"]["equal"]
    assert checked["partitions"]
    assert checked["refusals"]


def test_a_share_group(check, plain, tmp_path):
    other = saved(chain(["Relu", "Mul"], seed=1), tmp_path / "other.onnx")

    found = check("share", plain, other, "--ep", "QNN")

    assert len(found["members"]) == 2


def test_a_run(check, context):
    found = check("run", context)

    assert found["outputs"]
    assert found["simulated"] == ["QNNExecutionProvider"]


def test_a_context_model_and_a_plain_one_are_inspected(check, plain, context):
    compiled = check("inspect", context)
    source = check("inspect", plain)

    assert compiled["ep_contexts"][0]["plugin"]["simulated"] is not None
    assert "ir_version" not in compiled
    assert source["largest_weights"]


def test_a_right_and_a_damaged_model_are_verified(check, context):
    assert check("verify", context)["ok"]

    context.with_name("m_qnn.bin").unlink()

    assert check("verify", context, code=1)["findings"]
    assert check("inspect", context)["files"][0]["problem"]


def test_an_explanation(check, plain, tmp_path):
    found = check(
        "explain",
        plain,
        "--ep",
        "QNN",
        "--annotate",
        tmp_path / "shown.onnx",
        code=1,
    )

    assert found["left"] == 1
    assert any(node["refusals"] for node in found["nodes"])


def test_equal_and_different_models_are_compared(check, plain, context, tmp_path):
    other = saved(chain(["Relu", "Add", "Atanh"], seed=1), tmp_path / "other.onnx")

    assert check("compare", context, plain)["equal"]
    different = check("compare", other, plain, code=1)

    assert different["outputs"][0]["first"]
    assert different["first_inside"]


def test_partitions_are_compared(check, plain, tmp_path):
    options = ("--ep", "QNN", "-p", "QNN.enable_htp_fp16_precision=1")
    check("compile", plain, *options)
    context = plain.with_name(f"{plain.stem}_ctx.onnx")

    found = check(
        *("compare", context, plain, "--by-partition", *options),
        *("--rtol", "0.01", "--reduce", tmp_path / "smallest"),
    )

    assert found["by_partition"]["rows"]
    assert found["reduction"]["nodes"] == 1


def test_a_conversion(check, plain, tmp_path):
    check("convert", plain, tmp_path / "m.ort")


def test_lists_of_plugins_and_one_that_is_broken(check, broken_plugin):

    assert check("plugins list")["plugins"]
    assert check("plugins list", "--load", path=[broken_plugin])["engines"]
    assert check("plugins info", "QNN")["plugins"][0]["options"]
    broken = check("plugins info", "Broken", path=[broken_plugin], code=3)
    assert "options" not in broken["plugins"][0]
    assert check("plugins info", "epctx-onnxruntime")["others"]


@pytest.fixture
def broken_plugin(site):
    """A folder with a plugin that cannot be imported."""
    return site("acme-broken", "BrokenExecutionProvider", code="raise OSError('no')")


def test_a_new_plugin(check, tmp_path):
    assert check("plugins new", "acme", "-o", tmp_path)["ep"] == "AcmeExecutionProvider"


def test_checks_of_a_plugin(check):
    found = check("plugins check", "QNN", "--only", "signatures")

    assert found["counts"]["passed"] >= 1


def test_a_diagnosis(check, broken_plugin):
    found = check("doctor", path=[broken_plugin], code=1)

    assert found["findings"]
    assert found["libraries"]


def test_a_cache_and_what_is_done_with_it(check, plain, tmp_path, monkeypatch):
    from epctx_core import SessionOptions, compile_cached

    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    options = SessionOptions()
    options.add_provider("QNN")
    stored = compile_cached(plain, options)

    assert check("cache ls")["entries"]
    assert check("cache stats")["by_eps"]
    assert check("cache lookup", plain, "--ep", "QNN")["hit"]
    check("cache lookup", plain, "--ep", "VitisAI", code=1)
    why = check("cache why", plain, "--ep", "VitisAI")
    assert why["nearest"]["differences"]
    assert check("cache gc")["kept"] == 1
    stored.write_bytes(b"")
    assert not check("cache verify", code=1)["ok"]
    assert check("cache clear")["kept"] == 0
    assert check("cache why", plain, "--ep", "QNN")["nearest"] is None


def test_work_on_files(check, plain, context, tmp_path):
    for folder in ("embedded", "apart", "part", "joined"):
        (tmp_path / folder).mkdir()
    embedded = tmp_path / "embedded/m_ctx.onnx"
    second = saved(chain(["Relu"]), tmp_path / "second.onnx")

    assert check("embed", context, "-o", embedded)["files"]
    check("externalize", embedded, "-o", tmp_path / "apart/m_ctx.onnx")
    check("extract", plain, "-o", tmp_path / "part/p.onnx", "--node", "n0")
    check(
        "merge",
        plain,
        second,
        "-o",
        tmp_path / "joined/j.onnx",
        "--join",
        "m.y=second.x",
        "--prefix",
        "second=b_",
    )
    assert check("diff", plain, second, code=1)["differences"]
    assert check("diff", plain, plain)["differences"] == []

    called = onnx.load(plain)
    called.functions.append(
        onnx.parser.parse_function(
            '<domain: "own", opset_import: ["" : 17]> f (a) => (b) { b = Neg(a) }'
        )
    )
    onnx.save(called, tmp_path / "called.onnx")
    of_function = check("diff", plain, tmp_path / "called.onnx", code=1)
    assert "function" in {each["part"] for each in of_function["differences"]}


def test_a_seal(check, tmp_path):
    for name in ("share1_ctx.onnx", "share2_ctx.onnx", "share1_qnn.bin"):
        shutil.copy(REAL / name, tmp_path)

    assert check("seal", tmp_path / "share1_ctx.onnx")["payloads"]


def test_a_measurement(check, plain):
    found = check(
        "bench", plain, "--ep", "QNN", "--turns", 1, "--runs", 1, "--no-onnxruntime"
    )

    assert found["columns"][0]["rows"]


def test_a_completion_and_the_list_of_schemas(check):
    check("completion", "bash")
    check("schema")
    assert check("schema", "verify")["commands"] == ["verify"]


def test_the_pages_of_the_documentation(check):
    assert len(check("docs")["pages"]) > 30
    assert check("docs", "errors")["text"]


def test_an_error_of_any_command(check, tmp_path):
    found = check("run", tmp_path / "none.onnx", code=2, schema="error")

    assert found["error"]["path"]


def test_the_list_has_each_command_that_has_a_result(epctx):
    listed = epctx("schema").out.splitlines()

    assert {"error", "compile", "cache ls", "plugins check", "bench", "diff"} <= {
        *listed
    }
    for command in listed:
        said = epctx("schema", *command.split())
        assert '"$schema": "https://json-schema.org/draft/2020-12/schema"' in said.out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("compil", "there is no schema of 'compil'. Did you mean 'compile'?"),
        ("cache", "Name one of cache ls, cache stats, "),
        ("nothing", "`epctx schema` lists the commands that have one."),
    ],
)
def test_a_command_without_a_schema_is_refused(epctx, command, said):
    done = epctx("schema", command)

    assert done.code == 2
    assert said in done.err


def test_a_gate(check, plain, tmp_path):
    words = ("gate", plain, "--ep", "QNN", "--baseline", tmp_path / "gate.json")

    written = check(*words, "--update")
    compared = check(*words)

    assert written["checks"] == []
    assert compared["checks"]
    assert compared["facts"] == written["facts"]
