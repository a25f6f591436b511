"""`epctx plugins check` on plugins of other kinds than EPs."""

from __future__ import annotations

import pytest
from installed import install_distribution

MODULE = '''
def transform(model, weights, level):
    """Leave a model as it is."""

def add_arguments(parser):
    parser.description = "Say hello."
    parser.add_argument("--loud", action="store_true", help="louder")
    parser.set_defaults(run=run)

def run(arguments, console):
    console.say("HELLO" if arguments.loud else "hello")
    return 0
'''


@pytest.fixture
def hello(tmp_path):
    """A folder with a package that has a command, a graph transformer, and an engine
    that cannot be imported.
    """
    entries = {
        "epctx.commands": {"hello": "acme_hello:add_arguments"},
        "epctx.graph_transformers": {"nothing": "acme_hello:transform"},
        "epctx.engines": {"absent": "acme_absent:Engine"},
    }
    install_distribution(tmp_path / "hello", "acme-hello", entries)
    (tmp_path / "hello" / "acme_hello.py").write_text(MODULE)
    return tmp_path / "hello"


def test_an_installed_engine_is_checked_by_its_name(process):
    said = process(
        "plugins", "check", "--engine", "onnxruntime", "--only", "class", "--json"
    )

    assert said.code == 0
    assert (said.json["kind"], said.json["ok"]) == ("engine", True)
    assert said.json["counts"] == {"passed": 2, "failed": 0, "skipped": 0}


def test_an_installed_command_is_checked_with_its_arguments(process, hello):
    arguments = ["--command", "acme-hello:hello", "--argument=--loud", "-v"]

    said = process("plugins", "check", *arguments, path=[hello])

    assert said.code == 0
    assert "Conformance of the command hello" in said.out
    assert "ok      it runs, and ends with an exit code of epctx" in said.out
    assert "0 failed" in said.out


def test_an_installed_transformer_is_checked_and_a_failure_is_exit_1(process, hello):
    module = hello / "acme_hello.py"
    chosen = ["--only", "function", "--only", "models"]
    arguments = ["plugins", "check", "--transformer", "nothing", *chosen]

    right = process(*arguments, path=[hello])
    module.write_text(MODULE.replace("level):", "):"))
    wrong = process(*arguments, path=[hello])

    assert right.code == 0
    assert wrong.code == 1
    assert "transform(model, weights, level)" in wrong.out
    assert "Next: epctx plugins check --transformer nothing --only" in wrong.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--engine", "onnxruntim"], 3, "Did you mean 'onnxruntime'?"),
        (["--engine", "absent"], 3, "No module named 'acme_absent'"),
        (["--command", "nobody"], 3, "the command 'nobody' is not installed"),
        (["QNN", "--engine", "absent"], 2, "NAME and --engine do not go together"),
        (["--engine", "a", "--command", "b"], 2, "do not go together"),
        (["--command", "hello", "--model", "m.onnx"], 2, "--model needs NAME"),
        (["--engine", "onnxruntime", "--without", "export"], 2, "--without needs NAME"),
        (["--engine", "onnxruntime", "--only", "clas"], 2, "Groups: class, "),
        (["QNN", "--argument", "x"], 2, "--argument needs --command"),
    ],
)
def test_wrong_usage_and_missing_plugins_are_told(
    process, hello, arguments, code, words
):
    said = process("plugins", "check", *arguments, path=[hello])

    assert (said.code, words in said.err) == (code, True), said.err
