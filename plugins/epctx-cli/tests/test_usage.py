"""The command line as such: exit codes, errors, streams, help."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from epctx_core import __version__


def an_empty_file(folder):
    (folder / "m.onnx").touch()


def junk(folder):
    (folder / "m.onnx").write_bytes(bytes(range(256)) * 9)


def a_folder(folder):
    (folder / "m.onnx").mkdir()


def nothing(folder):
    assert not (folder / "m.onnx").exists()


@pytest.mark.parametrize("make", [nothing, an_empty_file, junk, a_folder])
@pytest.mark.parametrize(
    "command", [["compile", "--ep", "QNN"], ["run"], ["inspect"], ["compare", "m.onnx"]]
)
def test_a_model_that_is_none_is_bad_input(epctx, tmp_path, monkeypatch, make, command):
    make(tmp_path)
    monkeypatch.chdir(tmp_path)

    said = epctx(*command, "m.onnx")

    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert "m.onnx" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["complie"], "Did you mean 'compile'?"),
        (
            ["compile", "m", "--ep", "QNN", "--embd"],
            "unknown option '--embd'. Did you mean '--embed'?",
        ),
        (["compile", "m", "--ep", "QNN", "--no-clob"], "Did you mean '--no-clobber'?"),
        (["compile", "m", "--ep", "QNN", "--outptu=x"], "Did you mean '--output'?"),
        (["compile"], "MODEL"),
        (["compile", "m", "--ep"], "--ep"),
        (["compile", "m", "--ep", "QNN", "-o", ""], "-o has no path"),
        (
            ["compile", "m", "--ep", "QNN", "-c", "a=1", "b=2"],
            "write -c, -p or --free-dimension before each",
        ),
        (
            ["compile", "m", "--ep", "QNN", "--free-dimension", "h=1", "w=1"],
            "write -c, -p or --free-dimension before each",
        ),
        (
            ["compile", "m", "--ep", "QNN", "-c", "ep.context_enable"],
            "not of the form KEY=VALUE",
        ),
        (
            ["compile", "m", "--ep", "QNN", "-c", "ep.context_embed_mod=1"],
            "Did you mean 'ep.context_embed_mode'?",
        ),
        (
            ["compile", "m", "--ep", "QNN", "-c", "ep.context_embed_mode=2"],
            "'0' or '1'",
        ),
        (
            ["compile", "m", "--ep", "QNN", "-p", "htp_arch=73"],
            "not of the form EP.KEY=VALUE",
        ),
        (
            ["compile", "m", "--ep", "QNN", "-p", "QMN.htp_arch=73"],
            "Did you mean 'QNN'?",
        ),
        (["compile", "m", "--ep", "QNN", "-p", "Other.x=1"], "Add --ep Other"),
        (
            ["compile", "m", "--ep", "QNN", "-p", "QNN.htp_arhc=73"],
            "Did you mean 'htp_arch'?",
        ),
        (["compile", "m", "--ep", "QNN", "-p", "QNN.htp_arch=74"], "allowed: 68"),
        (["compile", "m", "--ep", "QNN", "--ep", "qnn"], "asked for twice"),
        (["run", "m", "--seed", "many"], "--seed"),
        (["run", "m", "--seed", "-1"], "--seed"),
        (["run", "m", "n"], "unexpected argument 'n'"),
        (["plugins"], "ACTION"),
        (["plugins", "lst"], "'list'"),
        (["plugins", "list", "--laod"], "Did you mean '--load'?"),
    ],
    ids=" ".join,
)
def test_wrong_usage_says_what_is_wrong_and_what_was_meant(epctx, arguments, words):
    said = epctx(*arguments)

    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert words in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "m", "-p", "VitisAI.encryption_key=verysecret"],
        ["run", "m", "--ep", "VitisAI", "-p", "encryption_key=verysecret"],
        ["run", "m", "--ep", "VitisAI", "-p", "Vitis.encryption_key=verysecret"],
        ["run", "m", "--ep", "VitisAI", "-p", "VitisAI.encryption_kye=verysecret"],
        [
            "run",
            "m",
            "--ep",
            "VitisAI",
            "-p",
            "VitisAI.target=X1",
            "VitisAI.encryption_key=verysecret",
        ],
        ["run", "m", "--ep", "VitisAI", "-p", "VitisAI.encryption_key=verysecret"],
    ],
    ids=" ".join,
)
def test_what_may_be_a_secret_is_in_no_message(epctx, resnet, arguments):
    said = epctx(*(resnet.path if word == "m" else word for word in arguments))

    assert said.code == 2
    assert "verysecret" not in said.out + said.err


@pytest.mark.parametrize("name", ["TensorRT", "NoSuchThing"])
def test_an_ep_that_nobody_brings_is_a_missing_plugin(epctx, resnet, name):
    said = epctx("compile", resnet.path, "--ep", name)

    assert said.code == 3
    assert f"no installed plugin provides the Execution Provider {name!r}" in said.err


def test_a_session_option_that_nothing_acts_on_is_warned_about(epctx, model):
    said = epctx("run", model("y = Relu(x)"), "-c", "session.use_env_allocators=1")

    assert said.code == 0
    assert (
        "warning: the session option 'session.use_env_allocators' has no effect"
        in said.err
    )


def test_a_session_option_that_nobody_knows_is_wrong_usage(epctx, model):
    said = epctx("run", model("y = Relu(x)"), "-c", "session.disable_model_compiles=1")

    assert said.code == 2
    assert "Did you mean 'session.disable_model_compile'?" in said.err


@pytest.mark.parametrize(
    "place",
    [
        ["-v", "inspect", "no.onnx"],
        ["inspect", "no.onnx", "-v"],
        ["--traceback", "inspect", "no.onnx"],
        ["inspect", "no.onnx", "--traceback"],
    ],
)
def test_verbose_and_traceback_add_the_traceback_wherever_they_stand(epctx, place):
    said = epctx(*place)

    assert said.code == 2
    assert said.err.startswith("error: there is no model file 'no.onnx'.\n")
    assert "Traceback" in said.err
    assert "NoSuchFile" in said.err


def test_an_error_with_json_is_one_object_on_standard_output_and_the_block_on_standard_error(
    process,
):
    said = process("inspect", "no.onnx", "--json")

    assert said.code == 2
    assert said.json["error"] == {
        "code": "NO_SUCHFILE",
        "message": "there is no model file 'no.onnx'.",
        "hint": None,
        "path": "no.onnx",
    }
    assert said.err == "error: there is no model file 'no.onnx'.\n"


def test_wrong_usage_with_json_is_one_object_too(process):
    said = process("compile", "--jsn", "--json")

    assert said.code == 2
    assert said.json["error"]["code"] == "INVALID_ARGUMENT"


def test_the_traceback_alone_prints_no_more_details(epctx, model):
    path = model("y = Relu(x)")

    plain = epctx("explain", path, "--ep", "QNN")
    traced = epctx("explain", path, "--ep", "QNN", "--traceback")
    verbose = epctx("explain", path, "--ep", "QNN", "-v")

    assert traced.out == plain.out
    assert verbose.out != plain.out


def test_every_command_takes_traceback_quiet_and_verbose(epctx):
    commands = list_commands(epctx)

    assert len(commands) > 15
    for command in commands:
        said = epctx(*command.split(), "--help")
        assert said.code == 0
        for option in ("--traceback", "--quiet", "--verbose"):
            assert option in said.out, (command, option)


def list_commands(epctx):
    """Return every command and action that completion knows, but no group."""
    script = epctx("completion", "bash").out
    paths = re.findall(r'^ *"/([\w/-]+)"\)', script, re.MULTILINE)
    groups = {path.partition("/")[0] for path in paths if "/" in path}
    return [path.replace("/", " ") for path in paths if path not in groups]


@pytest.mark.parametrize("arguments", [[], ["-v"]])
def test_epctx_alone_says_how_to_start(epctx, arguments):
    said = epctx(*arguments)

    assert (said.code, said.err) == (0, "")
    assert 4 <= len(re.findall(r"^  epctx ", said.out, re.MULTILINE)) <= 5
    assert "epctx --help" in said.out
    assert "`epctx docs`" in said.out
    assert len(said.out.splitlines()) < 15


def test_the_commands_to_start_with_exist(epctx):
    listed = re.findall(r"^  epctx ((?:plugins )?\w+)", epctx().out, re.MULTILINE)

    assert len(listed) > 1
    for command in listed:
        assert epctx(*command.split(), "--help").code == 0


def test_help_and_version_are_answers(epctx):
    told, version, own = epctx("--help"), epctx("--version"), epctx("compile", "--help")

    assert (told.code, version.code, own.code) == (0, 0, 0)
    assert "compare" in told.out
    assert version.out.startswith("epctx 0.")
    assert "--require-compiled" in own.out


def test_the_help_lists_commands_in_groups_with_a_line_for_each(epctx, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    listed = epctx("--help").out.partition("commands:\n")[2]

    groups = dict(re.findall(r"^(\w.*):\n((?:  .+\n)+)", listed, re.MULTILINE))
    lines = {title: text.splitlines() for title, text in groups.items()}
    names = [line.split()[0] for group in lines.values() for line in group]
    assert all(re.match(r"  [a-z]+ +[a-z]", each) for g in lines.values() for each in g)
    assert sorted(names) == sorted({each.split()[0] for each in list_commands(epctx)})
    assert [line.split()[0] for line in lines["compile and run"]] == [
        *("compile", "share", "run", "bench", "gate", "batch")
    ]
    assert [line.split()[0] for line in lines["caches"]] == ["cache"]
    assert 5 <= len(groups) <= 8


def test_the_installed_command_and_the_module_are_the_same(process):
    installed = subprocess.check_output(
        [Path(sys.executable).with_name("epctx"), "--version"], text=True, timeout=60
    )

    assert installed == process("--version").out == f"epctx {__version__}\n"


def test_importing_the_command_line_is_cheap():
    heavy = {"argparse", "onnx", "numpy", "rich", "pluggy", "importlib_metadata"}
    code = "import sys, epctx_cli; print(*sys.modules)"

    output = subprocess.check_output(
        [sys.executable, "-c", code], text=True, timeout=60
    )

    assert heavy & set(output.split()) == set()


def test_a_reader_that_goes_away_is_no_error(compiled):
    read, write = os.pipe()
    os.close(read)

    done = subprocess.run(
        [sys.executable, "-m", "epctx_core", "inspect", str(compiled)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (0, "")


def ran(*arguments, buffered=True, **streams):
    """Run the command line with streams of a test's own; return its exit code and what
    it wrote to standard error.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", "epctx_core", *map(str, arguments)],
        env=environment if buffered else {**environment, "PYTHONUNBUFFERED": "1"},
        text=True,
        timeout=60,
        check=False,
        **{"stderr": subprocess.PIPE, **streams},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["plugins", "list"], ["plugins", "list", "--json"], ["--help"], ["--version"], ["compile", "--help"],
        ["plugins", "list", "-v"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_standard_output_that_cannot_be_written_is_one_plain_error(arguments, buffered):
    with Path("/dev/full").open("w") as full:
        code, err = ran(*arguments, buffered=buffered, stdout=full)

    assert (
        err == "error: standard output could not be written: No space left on device.\n"
    )
    assert code == 2


@pytest.mark.parametrize(
    "arguments", [["plugins", "list"], ["plugins", "list", "--json"], ["--help"]]
)
def test_standard_output_that_was_closed_is_told_in_the_same_way(arguments):
    command = [sys.executable, "-m", "epctx_core", *arguments]

    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (
        2,
        "error: standard output could not be written: it is closed.\n",
    )


def test_a_report_that_cannot_be_written_takes_nothing_back_that_was(model):
    path = model("y = Relu(x)")

    with Path("/dev/full").open("w") as full:
        code, err = ran("compile", path, "--ep", "QNN", stdout=full)

    assert code == 2
    assert (
        err.splitlines()[-1]
        == "error: standard output could not be written: No space left on device."
    )
    assert path.with_name("small_ctx.onnx").is_file()


def test_what_a_plugin_printed_is_not_lost_unsaid_when_a_warning_comes_first(
    model, site, monkeypatch
):
    body = (
        "    print('its own')\n    import logging; "
        "logging.getLogger('epctx.ep').warning('of its own')\n"
    )
    folder = site("epctx-loud", "LoudExecutionProvider", body=body)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    )

    with Path("/dev/full").open("w") as full:
        code, err = ran("compile", model("y = Relu(x)"), "--ep", "Loud", stdout=full)

    assert code == 2
    assert err.splitlines()[0] == "warning: of its own"
    assert (
        err.splitlines()[-1]
        == "error: standard output could not be written: No space left on device."
    )


def test_a_command_that_failed_keeps_its_exit_code_when_its_result_cannot_be_written():
    with Path("/dev/full").open("w") as full:
        code, err = ran("plugins", "info", "Nowhere", "--json", stdout=full)

    assert code == 3
    assert "Nowhere" in err
    assert err.endswith(
        "error: standard output could not be written: No space left on device.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code"), [(["plugins", "list", "--load", "-v"], 0), (["nothing"], 2)]
)
def test_standard_error_that_cannot_be_written_changes_no_exit_code(arguments, code):
    with Path("/dev/full").open("w") as full:
        found, _ = ran(*arguments, stdout=subprocess.DEVNULL, stderr=full)

    assert found == code


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("as_json", [False, True])
def test_interrupting_leaves_nothing_behind(site, model, tmp_path, as_json):
    body = (
        "    def __init__(self, context):\n"
        "        import pathlib, time\n"
        f"        pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "        time.sleep(60)\n"
    )
    folder = site("epctx-slow", "SlowExecutionProvider", body=body)
    path = model("y = Relu(x)")
    command = [sys.executable, "-m", "epctx_core", "compile", str(path), "--ep", "Slow"]

    child = subprocess.Popen(
        [*command, *(["--json"] if as_json else [])],
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(tmp_path / "begun")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)

    assert child.returncode == 130
    assert err == "error: interrupted.\n"
    if as_json:
        assert json.loads(out)["error"]["code"] == "INTERRUPTED"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["begun", "site", "small.onnx"]


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


QUIET = """
compile {model} --ep QNN
share {model} --ep QNN
run {context}
inspect {context}
verify {context}
explain {model} --ep QNN
compare {model} {context}
convert {model} {folder}/m.ort
extract {model} -o {folder}/part.onnx --outputs {output}
embed {context} -o {folder}/whole.onnx
externalize {context} -o {folder}/parts.onnx
merge {model} {model} --prefix 2=b/ -o {folder}/merged.onnx
diff {model} {context}
report {model} --ep QNN -o {folder}/page.html
cache ls
cache stats
plugins list
plugins info QNN
plugins new npu -o {folder}/{turn}
doctor {model}
docs
docs errors
schema
completion bash
"""


@pytest.mark.parametrize("line", ["", *QUIET.strip().splitlines()])
def test_quiet_prints_nothing_where_there_is_no_error(epctx, compiled, resnet, line):
    names = {
        "model": resnet.path,
        "context": compiled,
        "folder": compiled.parent,
        "output": onnx.load(resnet.path).graph.output[0].name,
    }

    loud = epctx(*line.format(**names, turn="loud").split())
    quiet = epctx("-q", *line.format(**names, turn="quiet").split())

    assert loud.out
    assert (quiet.out, quiet.err) == ("", "")
    assert quiet.code == loud.code


def test_quiet_prints_the_json_that_was_asked_for(epctx, compiled):
    assert epctx("inspect", compiled, "--json", "-q").json["ep_contexts"]
    assert epctx("inspect", compiled, "--json", "-q").err == ""


def test_ctrl_c_while_modules_are_imported_is_said_in_a_word():
    program = """
import sys

class Interrupting:
    def find_spec(name, *_):
        if name.startswith("epctx_cli") and "." in name:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting)
from epctx_core.__main__ import main
sys.exit(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, "doctor"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 130
    assert ended.stderr == "error: interrupted.\n"
