"""Packages of third parties that the core finds by entry points: a format of model
files, and an isolation of EPs.
"""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from support.installed import install_distribution

import epctx_core as epctx

NEG = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) '
    "{ y = Neg(x) }"
)
FORMAT = '''
"""Models as ONNX's own text, behind a line that says so."""

import onnx

from epctx_core.errors import InvalidProtobuf

HEAD = b"ACME 1\\n"


def recognizes(data):
    return data.startswith(HEAD)


def decode(data, path, count):
    if data.endswith(b"bug"):
        raise RuntimeError("this decoder has a fault")
    try:
        proto = onnx.parser.parse_model(data.removeprefix(HEAD).decode())
    except onnx.parser.ParseError as error:
        raise InvalidProtobuf(f"{path} is damaged: {error}", path=path) from error
    for _ in proto.graph.node:
        count("nodes")
    return proto
'''
ISOLATION = '''
"""Isolation that writes down what it was asked for, and changes nothing."""

import os


def note(*words):
    with open(os.environ["ACME_LOG"], "a") as file:
        print(*words, file=file)


def call(work, function, arguments, result, functions):
    note("call", function.__qualname__, result.__name__, work.config.isolation_seconds)
    try:
        return function(**arguments)
    finally:
        work.close()


def try_reading(model, session, *, seconds, max_bytes):
    note("read", os.path.basename(model))
    if "evil" in model:
        return False, "it was ended by acme"
    return True, ""
'''
RUN = """
import logging, sys
import epctx_core as epctx
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
"""


@pytest.fixture
def site(tmp_path):
    """Installs distributions as pip does: a module each, and its entry points."""
    folder = tmp_path / "site"

    def install(distribution, module, code, **entries):
        groups = {f"epctx.{group}": names for group, names in entries.items()}
        install_distribution(folder, distribution, groups, version="1.2")
        (folder / f"{module}.py").write_text(code)

    return install


@pytest.fixture
def python(tmp_path):
    """Runs a program where those are installed; returns its output, or its error."""

    def run(code, *arguments, **environment):
        done = subprocess.run(
            [sys.executable, "-c", RUN + code, *map(str, arguments)],
            env={
                **os.environ,
                "PYTHONPATH": str(tmp_path / "site"),
                "ACME_LOG": str(tmp_path / "acme.log"),
                "EPCTX_RECEIPTS": str(tmp_path / "receipts"),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        return done.stdout if done.returncode == 0 else done.stderr

    return run


@pytest.fixture
def acme_format(site, tmp_path):
    """The format `ACME`, and a model in it."""
    site("acme-format", "acme_format", FORMAT, model_formats={"ACME": "acme_format"})
    model = tmp_path / "model.acme"
    model.write_text(f"ACME 1\n{onnx.printer.to_text(NEG)}")
    return model


LOAD = """
import numpy as np
options = epctx.SessionOptions()
for entry in sys.argv[2:]:
    options.add_session_config_entry(*entry.split("="))
with epctx.InferenceSession(sys.argv[1], options) as session:
    print(session.run(None, {"x": np.array([1, -2], np.float32)})[0].tolist())
"""


def test_a_model_in_the_format_of_a_third_package_runs_and_is_described_and_verified(
    acme_format, python
):
    assert python(LOAD, acme_format) == "[-1.0, 2.0]\n"
    assert (
        python("print(epctx.inspect_model(sys.argv[1]).other_nodes)", acme_format)
        == "1\n"
    )
    verified = python("print(epctx.verify_model(sys.argv[1]).ok)", acme_format)
    assert verified == "True\n"


def test_such_a_model_is_compiled(acme_format, python, tmp_path):
    code = """
options = epctx.SessionOptions()
options.add_provider("epctx-sim-qnn:QNN")
report = epctx.ModelCompiler(options, sys.argv[1]).compile_to_file(sys.argv[2])
print(report.compiled)
"""
    assert python(code, acme_format, tmp_path / "model_ctx.onnx") == "True\n"

    with epctx.InferenceSession(tmp_path / "model_ctx.onnx") as session:
        (result,) = session.run(None, {"x": np.array([1, -2], np.float32)})
    assert result.tolist() == [-1, 2]


def test_a_host_that_wants_another_format_is_refused(acme_format, python):
    assert python(LOAD, acme_format, "session.load_model_format=ACME") == (
        "[-1.0, 2.0]\n"
    )
    said = python(LOAD, acme_format, "session.load_model_format=ONNX")
    assert (
        "InvalidProtobuf: session.load_model_format is ONNX, and model.acme is not in "
        "that format." in said
    )


def test_the_budget_counts_what_a_third_party_decodes(acme_format, python):
    code = """
options = epctx.SessionOptions()
options.input_budget = epctx.InputBudget(nodes=1)
epctx.InferenceSession(sys.argv[1], options)
"""
    acme_format.write_text(acme_format.read_text().replace("}", "z = Neg(y) }"))

    assert "InvalidGraph: model.acme has more than 1 nodes" in python(code, acme_format)


def test_a_fault_of_a_format_names_its_package_and_keeps_the_cause(acme_format, python):
    acme_format.write_bytes(b"ACME 1\nbug")

    said = python(LOAD, acme_format)

    assert "RuntimeError: this decoder has a fault" in said
    assert (
        "PluginError: the model format 'ACME' of acme-format 1.2 failed: RuntimeError: "
        "this decoder has a fault." in said
    )


def test_a_broken_format_hides_nothing_about_a_damaged_file(site, python, tmp_path):
    site("acme-format", "acme_format", "1 / 0", model_formats={"ACME": "acme_format"})
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\xff" * 40)

    said = python(LOAD, damaged)

    assert "InvalidProtobuf: damaged.onnx is not an ONNX model" in said
    assert "acme" not in said


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("raise GeneratorExit('no licence')", "GeneratorExit: no licence"),
        ("raise BaseException('no licence')", "BaseException: no licence"),
    ],
)
def test_a_broken_format_is_blamed_for_the_files_that_have_its_suffix(
    code, cause, acme_format, python, tmp_path
):
    (tmp_path / "site" / "acme_format.py").write_text(code)

    assert (
        f"PluginError: the model format 'ACME' of acme-format 1.2 failed: {cause}"
        in python(LOAD, acme_format)
    )


def test_a_format_that_gives_no_model_is_blamed(acme_format, site, python):
    code = "def recognizes(data): return True\ndef decode(*_): return {}"
    site("odd-format", "odd_format", code, model_formats={"ODD": "odd_format"})

    said = python(LOAD, acme_format, "session.load_model_format=ODD")

    assert (
        "PluginError: the model format 'ODD' of odd-format 1.2 decoded model.acme to "
        "something else than a model." in said
    )


def test_the_format_that_a_host_names_is_asked_alone(acme_format, python):
    said = python(LOAD, acme_format, "session.load_model_format=ACNE")

    assert (
        "PackageMissing: the model format 'ACNE' is not installed. Did you mean 'ACME'?"
        in said
    )


def test_no_format_is_imported_for_an_onnx_model(acme_format, python, tmp_path):
    onnx.save(NEG, tmp_path / "m.onnx")
    code = LOAD + 'print("acme_format" in sys.modules)'

    assert python(code, tmp_path / "m.onnx") == "[-1.0, 2.0]\nFalse\n"


READERS = """
options = epctx.SessionOptions()
options.add_provider("CPUExecutionProvider")
compiling = epctx.SessionOptions()
compiling.add_provider("epctx-sim-qnn:QNN")
readers = {
    "load": lambda: epctx.InferenceSession(model, options),
    "compile": lambda: epctx.ModelCompiler(compiling, model).compile_to_file(f"{out}.onnx"),
    "verify": lambda: epctx.verify_model(model, options),
    "inspect": lambda: epctx.inspect_model(model),
    "metadata": lambda: epctx.get_model_compatibility(model, "QNNExecutionProvider"),
    "load or compile": lambda: epctx.load_or_compile(model, compiling, cache_dir=out),
}
for name, read in readers.items():
    try:
        read()
    except (epctx.errors.InvalidProtobuf, epctx.errors.InvalidGraph):
        pass
    if "acme_format" in sys.modules:
        sys.exit(f"{name} imported it")
print("none")
"""


@pytest.mark.parametrize("name", ["model.onnx", "model", None])
def test_no_models_bytes_cause_the_import_of_a_format(
    name, acme_format, python, tmp_path
):
    """A host takes models from strangers: what they send is no reason to import what
    lies in its environment.
    """
    model = repr(acme_format.read_bytes())
    if name is not None:
        model = repr(str(acme_format.rename(tmp_path / name)))

    said = python(f"model = {model}\nout = sys.argv[1]\n{READERS}", tmp_path / "out")

    assert said == "none\n"


def test_a_host_that_wants_onnx_imports_no_format_for_any_file(acme_format, python):
    code = f"""
try:
    options = epctx.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ONNX")
    epctx.InferenceSession({str(acme_format)!r}, options)
except epctx.errors.InvalidProtobuf:
    print("acme_format" in sys.modules)
"""

    assert python(code) == "False\n"


def test_a_model_under_any_name_is_read_in_the_format_that_the_host_names(
    acme_format, python, tmp_path
):
    model = acme_format.rename(tmp_path / "download")
    code = """
options = epctx.SessionOptions()
options.add_session_config_entry("session.load_model_format", "ACME")
model = open(sys.argv[1], "rb").read()
for each in model, sys.argv[1]:
    epctx.InferenceSession(each, options).close()
    print(epctx.verify_model(each, options).ok)
    epctx.load_or_compile(each, options, cache_dir=sys.argv[2]).close()
    print("loaded")
"""

    assert python(code, model, tmp_path / "cache") == "True\nloaded\n" * 2


@pytest.fixture
def acme_isolation(site, tmp_path):
    """The isolation `acme`; returns what it was asked for."""
    site(
        "acme-isolation",
        "acme_isolation",
        ISOLATION,
        isolation={"acme": "acme_isolation"},
    )
    log = tmp_path / "acme.log"
    log.write_text("")
    return lambda: log.read_text().splitlines()


COMPILE = """
options = epctx.SessionOptions()
options.add_provider("epctx-sim-qnn:QNN")
options.add_session_config_entry("ep.isolate", "compile")
options.add_session_config_entry("ep.isolate_by", "acme")
options.add_session_config_entry("ep.isolate_timeout_seconds", "7")
epctx.ModelCompiler(options, sys.argv[1]).compile_to_file(sys.argv[2])
"""


@pytest.mark.parametrize("kind", ["SystemExit", "GeneratorExit", "BaseException"])
def test_an_isolation_that_raises_no_exception_is_blamed(site, python, tmp_path, kind):
    code = f"def call(*_, **__): raise {kind}('no licence')"
    site("acme-isolation", "acme_isolation", code, isolation={"acme": "acme_isolation"})
    onnx.save(NEG, tmp_path / "m.onnx")

    said = python(COMPILE, tmp_path / "m.onnx", tmp_path / "m_ctx.onnx")

    assert (
        "PluginError: the isolation 'acme' of acme-isolation 1.2 failed: "
        f"{kind}: no licence" in said
    )


def test_the_isolation_of_a_third_package_replaces_ours(
    acme_isolation, python, tmp_path
):
    onnx.save(NEG, tmp_path / "m.onnx")

    assert python(COMPILE, tmp_path / "m.onnx", tmp_path / "m_ctx.onnx") == ""

    assert acme_isolation() == ["call Compile.run_stages CompileReport 7"]
    assert (tmp_path / "m_ctx.onnx").exists()


def test_it_reads_a_strange_model_first_for_verify(acme_isolation, python, tmp_path):
    code = """
options = epctx.SessionOptions()
options.add_session_config_entry("ep.isolate_by", "acme")
for finding in epctx.verify_model(sys.argv[1], options).findings:
    print(finding.code, finding.message)
"""
    onnx.save(NEG, tmp_path / "evil.onnx")

    said = python(code, tmp_path / "evil.onnx")

    assert acme_isolation() == ["read evil.onnx"]
    assert (
        "model-invalid a process that only read evil.onnx did not survive it: it was "
        "ended by acme" in said
    )


def test_an_isolation_that_is_not_there_is_named_with_those_that_are(
    acme_isolation, python, tmp_path
):
    onnx.save(NEG, tmp_path / "m.onnx")

    said = python(
        COMPILE.replace('"acme"', '"acmee"'), tmp_path / "m.onnx", tmp_path / "c.onnx"
    )

    assert (
        "PackageMissing: the isolation 'acmee' is not installed. Did you mean 'acme'?"
        in said
    )
    assert not (tmp_path / "c.onnx").exists()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_library", "no_such_library (required by acme-isolation)"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("def call(*_, **__): raise OSError('no room')", "failed: OSError: no room"),
    ],
)
def test_a_fault_of_an_isolation_names_its_package(site, python, tmp_path, code, why):
    site("acme-isolation", "acme_isolation", code, isolation={"acme": "acme_isolation"})
    onnx.save(NEG, tmp_path / "m.onnx")

    said = python(COMPILE, tmp_path / "m.onnx", tmp_path / "c.onnx")

    assert why in said.splitlines()[-1] or why in said
    assert "acme-isolation" in said
    assert "InternalError" not in said


VERIFY = """
options = epctx.SessionOptions()
options.add_session_config_entry("ep.isolate_by", sys.argv[2])
print(epctx.verify_model(sys.argv[1], options).ok)
"""


def test_verify_needs_the_isolation_that_a_host_named(acme_isolation, python, tmp_path):
    onnx.save(NEG, tmp_path / "m.onnx")

    said = python(VERIFY, tmp_path / "m.onnx", "acmee")

    assert "PackageMissing: the isolation 'acmee' is not installed." in said


def test_verify_blames_an_isolation_that_fails(site, python, tmp_path):
    code = "def try_reading(*_, **__): return None"
    site("acme-isolation", "acme_isolation", code, isolation={"acme": "acme_isolation"})
    onnx.save(NEG, tmp_path / "m.onnx")

    said = python(VERIFY, tmp_path / "m.onnx", "acme")

    assert "PluginError: the isolation 'acme' of acme-isolation 1.2 failed" in said


@pytest.mark.parametrize("named", ["no_such_plugin", "acme-isolation:no"])
def test_verify_names_a_host_plugin_that_is_not_installed(python, tmp_path, named):
    onnx.save(NEG, tmp_path / "m.onnx")

    said = python(VERIFY, tmp_path / "m.onnx", "process", EPCTX_HOST_PLUGINS=named)

    assert f"PackageMissing: the host plugin {named!r} is not installed." in said
