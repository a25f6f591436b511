"""The kits for engines, graph transformers and commands name each fault, and find none
in an honest plugin.
"""

from __future__ import annotations

import pytest
from conformance.faulty_kinds import (
    FAULTY_ENGINES,
    FAULTY_TRANSFORMERS,
    HonestEngine,
    honest,
)
from epctx_conformance.kinds import commands, engines, transformers
from epctx_conformance.report import Outcome
from epctx_onnxruntime.engine import OnnxRuntimeEngine
from installed import install_distribution

from epctx_core.errors import PackageMissing

COMMAND = """
from epctx_cli.command import ExitCode, add_common

def add_arguments(parser):
    parser.description = "Count the letters of a word."
    parser.add_argument("word", metavar="WORD", help="the word; 100%% of it")
    add_common(parser)
    parser.set_defaults(run=run)

def run(arguments, console):
    console.say(f"{len(arguments.word)} letters")
    console.result({"letters": len(arguments.word)})
    return ExitCode.DONE
"""
FAULTY_COMMANDS = [
    ("def add_arguments", "def other", "it_can_be_imported", "AttributeError"),
    ("from epctx_cli", "import absent\nfrom epctx_cli", "it_can_be_imported", "absent"),
    ("def run", "print('hello')\n\ndef run", "it_can_be_imported", "writes 'hello"),
    ("parser.description =", "text =", "it_has_a_description", "does not say what"),
    (
        ', help="the word; 100%% of it"',
        "",
        "each_argument",
        "argument word has no help",
    ),
    ("set_defaults(run=run)", "set_defaults(go=run)", "it_sets_the", "not set `run`"),
    ("100%%", "100%", "help_prints", "--help ends with the exit code"),
    ("console.say(", "(", "it_runs", "prints no report"),
    ("console.say(", "raise KeyError(", "it_runs", "ends with the exit code 3"),
    ("console.result(", "(", "with_json", "prints '' and not one JSON object"),
    ('{"letters": len(arguments.word)}', "{}", "with_json", "without content"),
]


def chosen(kit, beginning):
    found = [check.name for check in kit.choose(None)]
    return [name for name in found if name.startswith(beginning)]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Install a command `letters`, whose module has some text replaced."""

    def install(number, before="", after=""):
        module = f"acme_letters_{number}"
        entries = {"epctx.commands": {"letters": f"{module}:add_arguments"}}
        install_distribution(tmp_path, "acme-letters", entries)
        assert before in COMMAND
        (tmp_path / f"{module}.py").write_text(COMMAND.replace(before, after, 1))
        monkeypatch.syspath_prepend(tmp_path)
        return "letters"

    return install


@pytest.mark.parametrize("engine", FAULTY_ENGINES, ids=lambda cls: cls.__name__)
def test_a_faulty_engine_fails_a_check_that_names_the_fault(engine):
    beginning, words = FAULTY_ENGINES[engine]

    report = engines.check_engine(engine, only=chosen(engines.KIT, beginning))

    assert [words in result.text for result in report.failed] == [True], report.text()
    assert not report.ok


def test_an_honest_engine_passes_every_check():
    report = engines.check_engine(HonestEngine)

    assert report.failed == ()
    assert report.count(Outcome.PASSED) > 15
    assert report.as_dict()["kind"] == "engine"
    assert report.text().startswith("Conformance of the engine honest 1.0\n")


def test_the_engine_on_onnxruntime_passes_a_check_of_each_group_but_onnxs_cases():
    groups = engines.KIT.groups[:-1]
    sample = [engines.KIT.choose([group])[0].name for group in groups]

    report = engines.check_engine(OnnxRuntimeEngine, only=sample)

    assert report.failed == ()
    assert report.count(Outcome.PASSED) == len(groups)


@pytest.mark.stress
def test_the_engine_on_onnxruntime_passes_all_but_onnxs_cases_here():
    quick = [check.name for check in engines.KIT.choose(list(engines.KIT.groups[:-1]))]

    report = engines.check_engine(OnnxRuntimeEngine, only=quick)

    assert report.failed == ()
    assert report.count(Outcome.PASSED) == len(quick)


@pytest.mark.parametrize("transform", FAULTY_TRANSFORMERS, ids=lambda f: f.__name__)
def test_a_faulty_transformer_fails_a_check_that_names_the_fault(transform):
    beginning, words = FAULTY_TRANSFORMERS[transform]
    only = chosen(transformers.KIT, beginning)[:1]

    report = transformers.check_transformer(transform, only=only)

    assert [words in result.text for result in report.failed] == [True], report.text()


def test_an_honest_transformer_passes_every_check_that_applies_to_it():
    report = transformers.check_transformer(honest)

    assert report.failed == ()
    assert report.count(Outcome.PASSED) == 8


def test_a_transformer_that_changes_nothing_is_told_how_to_show_more():
    report = transformers.check_transformer(lambda model, weights, level: None)

    assert report.ok
    assert "give it one with --model" in report.text()


@pytest.mark.parametrize(
    ("number", "fault"), [*enumerate(FAULTY_COMMANDS)], ids=lambda each: str(each)[:30]
)
def test_a_faulty_command_fails_a_check_that_names_the_fault(command, number, fault):
    before, after, beginning, words = fault
    name = command(number, before, after)
    only = chosen(commands.KIT, beginning)

    report = commands.check_command(name, arguments=["word"], only=only)

    assert [words in result.text for result in report.failed] == [True], report.text()


def test_an_honest_command_passes_every_check(command):
    report = commands.check_command(command("honest"), arguments=["word"])

    assert report.failed == ()
    assert report.count(Outcome.PASSED) == len(report.results)


def test_a_command_that_needs_arguments_is_run_only_with_them(command):
    report = commands.check_command(command("needing"))

    skipped = [r.name for r in report.results if r.outcome is Outcome.SKIPPED]
    assert report.ok
    assert len(skipped) == 2
    assert "it needs arguments (word); give them with --argument" in report.text()


def test_a_command_that_is_not_installed_is_missing():
    with pytest.raises(PackageMissing, match="the command 'nobody' is not installed"):
        commands.check_command("nobody")
