"""`epctx completion`: print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from epctx_cli.arguments import CommandParser, Words, add_common
from epctx_cli.exit_codes import ExitCode
from epctx_cli.results import CompletionResult

if TYPE_CHECKING:
    from epctx_cli.console import Console

SHELLS = ("bash", "zsh", "fish")
_BASH = """\
_epctx() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="" commands="" options="" values="" before="" index
    # `--ep=QNN` is three words in bash, and one in zsh.
    if [[ "$word" == "=" ]]; then
        word=""
    elif [[ "$previous" == "=" ]]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    elif [[ "$word" == --*=* ]]; then
        previous="${{word%%=*}}" before="${{word%%=*}}=" word="${{word#*=}}"
    fi
    for ((index = 1; index < COMP_CWORD; index++)); do
        case "$command/${{COMP_WORDS[index]}}" in
            {paths}) command="$command/${{COMP_WORDS[index]}}" ;;
        esac
    done
    case "$command" in
{cases}
    esac
    case "$command $previous" in
{values}
    esac
    # A key follows the name of an EP; zsh would put a space between the two.
    [[ "$values" == *. && -n "${{ZSH_VERSION-}}" ]] && values=""
    if [[ -n "$values" ]]; then
        compopt +o default 2>/dev/null
        [[ "$values" == *. ]] && compopt -o nospace 2>/dev/null
        COMPREPLY=($(compgen -P "$before" -W "$values" -- "$word"))
        return
    fi
    # Without a match, the shell completes names of files.
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
        *) COMPREPLY=($(compgen -W "$commands" -- "$word")) ;;
    esac
}}
complete -o default -F _epctx epctx
"""
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""
_FISH = """\
function __epctx_at --description 'True if the command line begins with these commands'
    set -l words
    for word in (commandline -poc)[2..-1]
        string match -q -- '-*' $word; or set -a words $word
    end
    set -l count (count $argv)
    test (count $words) -ge $count; or return 1
    test "$words[1..$count]" = "$argv"
end
"""
_EPILOG = """\
Write the script to a file once, and again after plugins or epctx changed:
  bash  epctx completion bash > ~/.local/share/bash-completion/completions/epctx
  fish  epctx completion fish > ~/.config/fish/completions/epctx.fish
  zsh   epctx completion zsh > ~/.epctx-completion.zsh
        and in ~/.zshrc: source ~/.epctx-completion.zsh
bash needs the package bash-completion for this folder; without it, source the
file in ~/.bashrc. Make the folder first if there is none.
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the script."""
    from epctx_cli.entry import make_parser

    words = make_parser().list_words()
    script = _write_fish(words) if arguments.shell == "fish" else _write_bash(words)
    if arguments.shell == "zsh":
        script = _ZSH + script
    console.say(script.rstrip(), wrap=False)
    console.result(CompletionResult(shell=arguments.shell, script=script))
    return ExitCode.DONE


def _write_bash(words: Mapping[tuple[str, ...], Words]) -> str:
    cases: list[str] = []
    values: list[str] = []
    for path, each in words.items():
        command = _join(path)
        names = " ".join(each.commands)
        options = " ".join(each.options)
        cases.append(f'        "{command}") commands="{names}" options="{options}" ;;')
        values += [
            f'        "{command} {option}") values="{" ".join(choices)}" ;;'
            for option, choices in each.values.items()
            if choices
        ]
    return _BASH.format(
        paths=" | ".join(f'"{_join(path)}"' for path in words if path),
        cases="\n".join(cases),
        values="\n".join(values),
    )


def _join(path: tuple[str, ...]) -> str:
    return "".join(f"/{name}" for name in path)


def _write_fish(words: Mapping[tuple[str, ...], Words]) -> str:
    lines = [_FISH]
    for path, each in words.items():
        place = f"__epctx_at {' '.join(path)}" if path else "__fish_use_subcommand"
        if each.commands:
            names = " ".join(each.commands)
            unseen = f"; and not __fish_seen_subcommand_from {names}" if path else ""
            lines.append(f"complete -c epctx -n '{place}{unseen}' -f -a '{names}'\n")
        for option in dict.fromkeys([*each.options, *each.values]):
            kind = "l" if option.startswith("--") else "s"
            line = f"complete -c epctx -n '{place}' -{kind} {option.lstrip('-')}"
            if values := each.values.get(option):
                line += f" -x -a '{' '.join(values)}'"
            elif option in each.values:
                line += " -r"
            lines.append(f"{line}\n")
    return "".join(lines)
