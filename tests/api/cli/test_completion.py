"""`epctx completion`: what shells complete with its scripts."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import pytest

COMPLETE = """
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_epctx
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script():
    """Print the script for bash once."""
    done = subprocess.run(
        [sys.executable, "-m", "epctx_core", "completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["epctx", "com"], {"compile", "compare", "completion"}),
        (["epctx", "-v", "doc"], {"doctor"}),
        (["epctx", "--ver"], {"--version", "--verbose"}),
        (["epctx", "compile", "m.onnx", "--out"], {"--output"}),
        (
            ["epctx", "cache", ""],
            {
                "ls",
                "stats",
                "lookup",
                "why",
                "export",
                "import",
                "verify",
                "gc",
                "clear",
            },
        ),
        (["epctx", "cache", "gc", "--s"], {"--size"}),
        (["epctx", "plugins", "check", "--libr"], {"--library"}),
        (["epctx", "compile", "mod"], set()),
    ],
)
def test_bash_completes_commands_and_long_options(script, words, expected):
    code = script + COMPLETE.format(words=" ".join(map(shlex.quote, words)))

    done = subprocess.run(
        ["bash", "--norc", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stderr == ""
    assert set(done.stdout.split()) == expected


def test_each_shell_has_a_script_with_every_command(epctx):
    for shell in ("bash", "zsh", "fish"):
        said = epctx("completion", shell, "--json")
        assert (said.code, said.json["shell"]) == (0, shell)
        assert "plugins" in said.json["script"]
        assert "completion" in said.json["script"]
        assert "compdef" in said.json["script"] or "complete " in said.json["script"]


def test_an_unknown_shell_is_an_error(epctx):
    said = epctx("completion", "tcsh")

    assert said.code == 2
    assert "'tcsh'" in said.err
