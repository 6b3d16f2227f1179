"""`msk-auth completion`: prints completion scripts for shells, made from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final

from ._terminal import Commands, write_line


def add_completion(commands: Commands) -> None:
    """Add the command."""
    completion = commands.add(
        "completion",
        summary="print a script that completes this command in a shell",
        examples=(
            "  msk-auth completion bash > ~/.local/share/bash-completion/completions/msk-auth\n"
            "  msk-auth completion zsh > ~/.zfunc/_msk-auth\n"
            "  msk-auth completion fish > ~/.config/fish/completions/msk-auth.fish"
        ),
    )
    completion.add_argument("shell", choices=sorted(_SHELLS))

    def run(given: argparse.Namespace) -> int:
        words = {name: _words(*command) for name, command in commands.added.items()}
        write_line(_SHELLS[given.shell](words))
        return 0

    completion.set_defaults(run=run)


# From a command to its words, each with an explanation; the one of the empty word is the command's own.
_Words = dict[str, dict[str, str]]


def _words(summary: str, command: argparse.ArgumentParser) -> dict[str, str]:
    words = {"": summary}
    # Argparse has no public name for the arguments of a parser. It has used this one since Python 2.7.
    for action in command._actions:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if action.option_strings:
            words[action.option_strings[-1]] = (action.help or "").partition(";")[0]
        words |= {str(choice): "" for choice in action.choices or ()}
    return words


def _bash(commands: _Words) -> str:
    cases = "\n".join(
        f'    {name}) words="{" ".join(filter(None, words))}" ;;'
        for name, words in commands.items()
    )
    return f"""\
_msk_auth() {{
  local words="{" ".join(commands)} --help --version"
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  [[ $COMP_CWORD -eq 1 ]] && words="{" ".join(commands)} --help --version"
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o bashdefault -o default -F _msk_auth msk-auth"""


def _zsh(commands: _Words) -> str:
    listed = "\n".join(f"    {_quoted(name + ':' + words[''])}" for name, words in commands.items())
    cases = "\n".join(
        f"    {name}) compadd -- {' '.join(filter(None, words))}; _files ;;"
        for name, words in commands.items()
    )
    # In a folder of `fpath` the file is the function itself; with `source` it only defines it.
    return f"""\
#compdef msk-auth
_msk-auth() {{
  local -a commands
  commands=(
{listed}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
{cases}
  esac
}}
if [[ $funcstack[1] == _msk-auth ]]; then
  _msk-auth "$@"
else
  compdef _msk-auth msk-auth
fi"""


def _fish(commands: _Words) -> str:
    lines = [
        f"complete -c msk-auth -n __fish_use_subcommand -f -a {name} -d {_quoted(words[''])}"
        for name, words in commands.items()
    ]
    for name, words in commands.items():
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for word, explanation in words.items():
            if word:
                what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
                described = f" -d {_quoted(explanation)}" if explanation else ""
                lines.append(f"complete -c msk-auth {seen} {what}{described}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "’") + "'"


_SHELLS: Final[Mapping[str, Callable[[_Words], str]]] = {
    "bash": _bash,
    "fish": _fish,
    "zsh": _zsh,
}
