"""The command `task-service` as Markdown, from the command itself."""

from __future__ import annotations

from collections.abc import Iterator

import click

from task_service.cli import main


def render() -> str:
    """One section for each subcommand, with its arguments and options."""
    return "\n\n".join(_sections(main, ("task-service",)))


def commands(
    group: click.Group = main, path: tuple[str, ...] = ("task-service",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def _sections(group: click.Group, path: tuple[str, ...]) -> Iterator[str]:
    for words, command in commands(group, path):
        context = click.Context(command, info_name=" ".join(words))
        usage = " ".join([*words, *command.collect_usage_pieces(context)])
        yield f"## {' '.join(words[1:])}"
        yield f"```text\n{usage}\n```"
        yield _prose(command.help or "")
        options = [_option(each) for each in command.params if isinstance(each, click.Option)]
        if options:
            yield "\n".join(["| option | meaning |", "|---|---|", *options])


def _option(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    words = [_prose(option.help or "")]
    if isinstance(option.type, click.Choice):
        words.append("One of " + ", ".join(f"`{each}`" for each in option.type.choices) + ".")
    if option.required:
        words.append("Required.")
    if option.show_default and option.default is not None:
        words.append(f"`{option.default}` by default.")
    return f"| {names} | {' '.join(filter(None, words))} |"


def _prose(text: str) -> str:
    paragraphs = text.replace("\b", "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
