"""Commands: which there are, where they come from, and what one that is missing or
broken comes to.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from epctx_cli import command
from epctx_cli.command_table import OWN
from support.install_commands import pip_install
from support.installed import install_distribution

pytestmark = pytest.mark.internal

PLUGINS = Path(__file__).parents[2]
WORKING = """
from epctx_cli.command import ExitCode, add_common, byte_size

def add_arguments(parser):
    parser.add_argument("model", help="the model to weigh")
    add_common(parser)
    parser.set_defaults(run=run)

def run(arguments, console):
    console.table(("model", "size"), [(arguments.model, byte_size(2048))])
    console.result({"model": arguments.model, "bytes": 2048})
    return ExitCode.FAILED
"""


@pytest.fixture
def package(tmp_path):
    """Install a distribution with commands as pip would leave it; gives the folder to
    import from.
    """

    def install(name, code, commands=("weigh",), folder="site"):
        site = tmp_path / folder
        module = name.replace("-", "_")
        entries = dict.fromkeys(commands, f"{module}:add_arguments")
        install_distribution(site, name, {"epctx.commands": entries})
        (site / f"{module}.py").write_text(code)
        return site

    return install


def test_help_imports_neither_a_command_nor_anything_heavy():
    code = (
        "import json, sys; from epctx_cli import main; main(['--help']); "
        "print(json.dumps([*sys.modules]))"
    )

    output = subprocess.check_output(
        [sys.executable, "-c", code], text=True, timeout=60
    )

    modules = set(json.loads(output.splitlines()[-1]))
    commands = {command.target.partition(":")[0] for command in OWN if command.target}
    assert {"epctx_cli.command_table", "argparse"} <= modules
    assert (
        modules & {"onnx", "numpy", "rich", "packaging", "onnxruntime", *commands}
        == set()
    )


def test_each_command_of_ours_is_where_the_table_says():
    functions = {
        command.name: getattr(
            import_module(command.target.partition(":")[0]),
            command.target.partition(":")[2],
        )
        for command in OWN
        if command.target
    }

    assert all(callable(function) for function in functions.values())
    assert len(functions) > 10


def test_a_command_of_another_package_is_listed_by_name_and_works(epctx, package):
    site = package("epctx-acme", WORKING)

    listed = epctx("--help", path=[site])
    said = epctx("weigh", "small.onnx", path=[site])
    as_json = epctx("weigh", "small.onnx", "--json", path=[site])
    helped = epctx("weigh", "--help", path=[site])

    assert "weigh          from epctx-acme 1.0" in listed.out
    assert (said.code, said.err) == (1, "")
    assert said.out == "  model       size\n  small.onnx  2.0 KiB\n"
    assert as_json.json == {"schema": 1, "model": "small.onnx", "bytes": 2048}
    assert "the model to weigh" in helped.out


def test_a_result_has_the_keys_of_its_parts_and_those_of_as_dict(epctx, package):
    parts = """
from dataclasses import dataclass

@dataclass
class Model:
    name: str
    hidden: str = ""

    def as_dict(self):
        return {"file": self.name, "node": None}

@dataclass
class Weight:
    model: Model
    unit: str | None = None
"""
    result = 'console.result({"bytes": 1}, Model("a"), Weight(Model("b")))'
    dictionary = 'console.result({"model": arguments.model, "bytes": 2048})'
    site = package("epctx-acme", parts + WORKING.replace(dictionary, result))

    said = epctx("weigh", "small.onnx", "--json", path=[site])

    assert said.json == {
        "schema": 1,
        "bytes": 1,
        "file": "a",
        "node": None,
        "model": {"file": "b", "node": None},
    }


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (
            "import no_such_module",
            "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("raise SystemExit(4)", "cannot be loaded: SystemExit: 4"),
        ("pass", "cannot be loaded: AttributeError: "),
        (
            "def add_arguments(parser): pass",
            "cannot be run: AttributeError: it set no default `run`",
        ),
        (
            "def add_arguments(parser): parser.set_defaults(run=lambda *_: 1 // 0)",
            "failed: ZeroDivisionError: integer division or modulo by zero",
        ),
        (
            "def add_arguments(parser): parser.set_defaults(run=lambda *_: None)",
            "failed: TypeError: 'NoneType' object cannot be interpreted as an integer",
        ),
    ],
)
def test_a_broken_package_breaks_its_command_alone(epctx, package, code, cause):
    site = package("epctx-acme", code)

    said = epctx("weigh", path=[site])

    assert (said.code, said.out) == (3, "")
    first, rest = said.err.split("\n", 1)
    assert first.startswith(f"error: the command 'weigh' of epctx-acme 1.0 {cause}")
    assert rest == "  Upgrade or uninstall epctx-acme; all other commands work.\n"
    assert epctx("--help", path=[site]).code == 0
    assert epctx("plugins", "list", path=[site]).code == 0


def test_help_that_cannot_be_written_is_the_fault_of_its_package(epctx, package):
    code = "def add_arguments(parser): parser.add_argument('--share', help='50% of it')"

    said = epctx("weigh", "--help", path=[package("epctx-acme", code)])

    assert said.code == 3
    assert said.err.startswith("error: the command 'weigh' of epctx-acme 1.0 failed: ")


def test_our_commands_are_listed_first_and_as_ever(epctx, package):
    site = package("epctx-acme", WORKING, commands=("doctor", "compile", "weigh"))

    ours, all_of_them = epctx("--help").out, epctx("--help", path=[site]).out

    line = "  weigh          from epctx-acme 1.0\n"
    # Others may be installed, and have the heading, too.
    group = "" if "from other packages:" in ours else "\nfrom other packages:\n"
    assert all_of_them.replace(f"{group}{line}", "") == ours


def test_metadata_that_cannot_be_read_hides_no_other_command(epctx, package):
    site = package("epctx-acme", WORKING)
    broken = package("epctx-broken", WORKING, folder="broken")
    (broken / "epctx_broken-1.0.dist-info" / "entry_points.txt").write_bytes(
        b"[epctx.commands]\n\xff = a:b\n"
    )

    assert epctx("weigh", "m", path=[broken, site]).code == 1


def test_a_command_of_ours_cannot_be_replaced_and_doctor_says_so(epctx, package):
    site = package(
        "epctx-acme", "raise RuntimeError('imported')", commands=("doctor", "weigh")
    )

    said = epctx("doctor", "--json", path=[site])

    notes = [finding["message"] for finding in said.json["findings"]]
    assert said.code == 0
    assert (
        "the command 'doctor' of epctx-acme 1.0 is not used: epctx has one of "
        "that name."
    ) in notes


def test_a_command_that_two_packages_have_is_an_error_that_names_both(epctx, package):
    path = [
        package("epctx-acme", WORKING),
        package("epctx-other", WORKING, folder="other"),
    ]

    said = epctx("weigh", "m", path=path)
    examined = epctx("doctor", "--json", path=path)

    words = (
        "the command 'weigh' is ambiguous: epctx-acme 1.0 and epctx-other 1.0 have it."
    )
    assert (said.code, said.err) == (
        3,
        f"error: {words}\n  Uninstall all but one of them.\n",
    )
    assert examined.code == 1
    assert words in [finding["message"] for finding in examined.json["findings"]]


@pytest.mark.parametrize("name", ["weigh it", "-w"])
def test_a_command_that_cannot_be_typed_is_not_listed_and_doctor_reports_it(
    epctx, package, name
):
    site = package("epctx-acme", WORKING, commands=(name,))

    listed = epctx("--help", path=[site])
    examined = epctx("doctor", "--json", path=[site])

    assert "epctx-acme" not in listed.out
    (message,) = [
        f["message"]
        for f in examined.json["findings"]
        if "cannot be typed" in f["message"]
    ]
    assert message.startswith(f"the command {name!r} of epctx-acme 1.0 ")
    assert examined.code == 1


def test_doctor_reports_an_engine_that_two_packages_have(epctx, package):
    path = [package("epctx-acme", ""), package("epctx-other", "", folder="other")]
    for info in (info for site in path for info in site.glob("*.dist-info")):
        (info / "entry_points.txt").write_text(
            "[epctx.engines]\nacme = nowhere:Engine\n"
        )

    examined = epctx("doctor", "--json", path=path)

    words = (
        "the engine 'acme' is ambiguous: epctx-acme 1.0 and epctx-other 1.0 have it."
    )
    assert words in [finding["message"] for finding in examined.json["findings"]]


def test_a_misspelt_command_of_another_package_is_suggested(epctx, package):
    said = epctx("weihg", path=[package("epctx-acme", WORKING)])

    assert said.code == 2
    assert "Did you mean 'weigh'?" in said.err


def test_what_commands_of_other_packages_import_stays_small_and_is_described():
    names = command.__all__

    assert len(names) <= 13
    assert [name for name in names if not getattr(command, name).__doc__] == []


def test_our_commands_in_other_packages_use_only_what_is_meant_for_them():
    modules = {
        command.target.partition(":")[0]
        for command in OWN
        if command.package != "epctx-cli"
    }
    paths = [
        next(PLUGINS.glob(f"*/src/{module.replace('.', '/')}.py")) for module in modules
    ]

    imported = {
        node.module
        for path in paths
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("epctx_cli")
    }

    assert imported == {"epctx_cli.command"}


@pytest.mark.parametrize("module", ["epctx_core", "epctx_core.__main__"])
def test_without_this_package_the_script_says_how_to_install_it(tmp_path, module):
    (tmp_path / "epctx_cli").mkdir()
    absent = (
        "raise ModuleNotFoundError('No module named ' + repr(__name__), name=__name__)"
    )
    (tmp_path / "epctx_cli" / "__init__.py").write_text(absent)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__')"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "error: the package epctx-cli, which contains the commands, is not installed.\n"
        f"  {pip_install('epctx-cli')}\n"
    )
