"""`epctx completion`: what shells complete with its scripts."""

from __future__ import annotations

import os
import pty
import select
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
        (["epctx", "-v", "doc"], {"docs", "doctor"}),
        (["epctx", "--ver"], {"--version", "--verbose"}),
        (["epctx", "compile", "m.onnx", "--out"], {"--output"}),
        (
            ["epctx", "cache", ""],
            {
                "ls",
                "stats",
                "lookup",
                "why",
                "verify",
                "gc",
                "clear",
            },
        ),
        (["epctx", "cache", "gc", "--s"], {"--size"}),
        (["epctx", "plugins", "check", "--libr"], {"--library"}),
        (["epctx", "compile", "mod"], set()),
        (["epctx", "compile", "m.onnx", "--ep", "Q"], {"QNN"}),
        (["epctx", "compile", "m.onnx", "--ep", "=", "Vi"], {"VitisAI"}),
        (["epctx", "share", "-e", "Open"], {"OpenVINO"}),
        (["epctx", "bench", "m.onnx", "--ep", "Q"], {"QNN"}),
        (["epctx", "compile", "m.onnx", "-o", "out"], set()),
        (["epctx", "completion", "f"], {"fish"}),
        (["epctx", "compile", "m.onnx", "-p", "Q"], {"QNN."}),
        (["epctx", "docs", "err"], {"errors"}),
        (["epctx", "plugins", "info", "Q"], {"QNN"}),
        (["epctx", "plugins", "info", "epctx-sim-q"], {"epctx-sim-qnn"}),
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


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("epctx insp", "inspect"),
        ("epctx compile --ep Vit", "compile --ep VitisAI"),
        ("epctx compile --ep=Vit", "compile --ep=VitisAI"),
        ("epctx compile --ep QNN mob", "compile --ep QNN mobile.onnx"),
        ("epctx cache ver", "cache verify"),
    ],
)
def test_a_tab_in_a_real_shell_completes(shell, typed, completed, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    script = subprocess.check_output(
        [sys.executable, "-m", "epctx_core", "completion", shell], text=True
    )
    (tmp_path / "script").write_text(script)
    (tmp_path / "mobile.onnx").touch()

    quiet = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"]}[shell]
    shown = type_into(
        [shell, *quiet, "-i"],
        "source ./script",
        'epctx() { echo "<$*>"; }',
        f"{typed}\t",
        folder=tmp_path,
    )

    assert f"<{completed}>" in shown


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_key_follows_the_name_of_an_ep_without_a_space(script, tmp_path):
    (tmp_path / "script").write_text(script)

    shown = type_into(
        ["bash", "--norc", "--noprofile", "-i"],
        "source ./script",
        'epctx() { echo "<$*>"; }',
        "epctx compile -p Vit\tkey=1",
        folder=tmp_path,
    )

    assert "<compile -p VitisAI.key=1>" in shown


PROMPT = b"ready> "


def type_into(command, *lines, folder):
    """Type lines into a shell with a terminal, one at each prompt; return all that it
    shows.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        home = {"HOME": str(folder), "TERM": "xterm", "PS1": PROMPT.decode()}
        os.execvpe(command[0], command, {**os.environ, **home})  # noqa: S606 - the shell itself is meant

    shown = b""
    left = [f"{line}\n".encode() for line in (*lines, "exit")]
    try:
        answer = b""
        # A shell that says nothing for so long will not say more.
        while select.select([terminal], [], [], 20)[0]:
            piece = os.read(terminal, 65536)
            shown += piece
            answer += piece
            if PROMPT in answer and left:
                os.write(terminal, left.pop(0))
                answer = b""
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    os.waitpid(child, 0)
    return shown.decode()


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("epctx comp", ["compare", "compile", "completion"]),
        ("epctx compile --ep Vit", ["VitisAI"]),
        ("epctx compile --no-cl", ["--no-clobber"]),
        ("epctx compile mob", ["mobile.onnx"]),
        ("epctx compile -o mob", ["mobile.onnx"]),
        ("epctx cache ver", ["verify"]),
        ("epctx cache verify --str", []),
        ("epctx compile verify --str", []),
        ("epctx compile -p Vit", ["VitisAI."]),
        ("epctx schema mer", ["merge"]),
        ("epctx schema mob", []),
        ("epctx docs err", ["errors"]),
        ("epctx schema cache st", ["stats"]),
        ("epctx plugins info Q", ["QNN"]),
        ("epctx verify --str", ["--strict"]),
        ("epctx completion zs", ["zsh"]),
    ],
)
def test_fish_completes_commands_options_eps_and_files(typed, expected, tmp_path):
    script = subprocess.check_output(
        [sys.executable, "-m", "epctx_core", "completion", "fish"], text=True
    )
    (tmp_path / "script.fish").write_text(script)
    (tmp_path / "mobile.onnx").touch()

    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source script.fish; complete -C {typed!r}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        timeout=60,
    )

    assert done.stderr == ""
    found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert sorted(found) == expected


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
