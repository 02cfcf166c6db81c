"""Writes docs/flags.md from the parser: `python docs/render_flags.py > docs/flags.md`. A test compares the two."""

import argparse
import importlib
import re
import sys
from collections.abc import Iterator

from headrace.cli.flags import add_flags
from headrace.cli.main import COMMANDS
from headrace.cli.parser import Parser
from headrace.cli.sglang_ignored import NO_EFFECT
from headrace.cli.sglang_unsupported import UNSUPPORTED

HEAD = """\
# Flags

`headrace serve MODEL [flags]` and `python -m headrace.launch_server --model-path MODEL [flags]` are the same
command. Names and meanings are those of SGLang's server. `--flag VALUE` and `--flag=VALUE` both work; names may
not be cut short. MODEL is the URI of a place in a store, or a local folder, see
[object_storage.md](object_storage.md). [The other commands' flags](#the-other-commands) are below.

The store's settings come from its vendor's own variables and files
([which](object_storage.md#where-the-store-is-and-who-asks)). Headrace's own variables:

| Variable | Meaning |
|---|---|
| `HEADRACE_API_KEY` | as `--api-key`, but not to be read in the list of processes |
| `HEADRACE_CACHE` | folder of the metadata cache and of the demo's store (default: `$XDG_CACHE_HOME/headrace` or `~/.cache/headrace`) |
| `HEADRACE_CLIENT_CERT`, `HEADRACE_CLIENT_KEY` | PEM files of a client certificate that a store asks for ([more](object_storage.md#tls)) |
| `HEADRACE_INSECURE_TLS` | `1` takes any certificate of a store, with a warning |
| `HEADRACE_HTTP_TOKEN` | a bearer token for `https://` models ([more](object_storage.md#plain-web-servers)) |
| `HEADRACE_S3_ANONYMOUS`, `HEADRACE_S3_REQUEST_PAYER` | S3 without a signature; who pays for requests ([more](stores/s3.md#where-the-store-is)) |
| `HEADRACE_KERNELS` | `reference` computes with PyTorch alone, without the kernels in C++ ([more](engine.md#the-kernels)) |
| `HEADRACE_DEBUG` | `1` shows the traceback behind an error message |
| `NO_COLOR` | any value: no colours |

Exit codes: 0 after a shutdown that was asked for, 1 an error, 2 a command line that cannot be understood, 130
interrupted, 143 terminated.
"""
NO_EFFECT_HEAD = """\
## Flags of SGLang's server that have no effect here

They are accepted with their values, and the server says so in one line each at start.

| Flags | Why they have no effect |
|---|---|"""
UNSUPPORTED_HEAD = """\
## Flags of SGLang's server that are not supported yet

They ask for what is not there, so they are errors, unless they are given the value that asks for nothing.

| Flags | What is not supported yet | Accepted |
|---|---|---|"""
TAIL = """
Any other flag is an error that names the nearest known one.

## The other commands

What they do is told in [tools.md](tools.md), in [verification.md](verification.md) (`push --manifest`) and in
[benchmarks.md](benchmarks.md) (`bench`).
"""


def page() -> Iterator[str]:
    """The page, part by part."""
    yield HEAD
    parser = Parser(prog="headrace serve")
    add_flags(parser)
    for group in parser._action_groups:
        flags = [
            action
            for action in group._group_actions
            if action.option_strings and action.help != argparse.SUPPRESS and action.dest != "help"
        ]
        if flags:
            yield f"## {(group.title or '').capitalize().replace('sglang', 'SGLang')}\n"
            yield "| Flag | Values | Meaning |\n|---|---|---|"
            yield from (_row(action) for action in flags)
            yield ""
    yield NO_EFFECT_HEAD
    for ignored in NO_EFFECT:
        yield f"| {_names(*ignored.switches, *ignored.values, *ignored.lists)} | {ignored.reason} |"
    yield ""
    yield UNSUPPORTED_HEAD
    for missing in UNSUPPORTED:
        names = _names(*missing.switches, *missing.values, *missing.lists, *missing.optional)
        accepted = " ".join(f"`{flag} {value}`" for flag, value in sorted(missing.values.items()) if value)
        what = re.sub(r" (is|are)(?=$| \()", "", missing.what)
        yield f"| {names} | {what} | {accepted} |"
    yield TAIL
    for name in COMMANDS:
        if name != "serve":
            yield from _command(name)


def _command(name: str) -> Iterator[str]:
    """A command's flags, and those of the commands below it."""
    parser = Parser(prog="headrace")
    subparsers = parser.add_subparsers()
    importlib.import_module(f"headrace.cli.{name}").add_parser(subparsers)
    waiting: list[tuple[str, argparse.ArgumentParser]] = list(subparsers.choices.items())
    while waiting:
        title, found = waiting.pop(0)
        flags = [action for action in found._actions if action.dest != "help"]
        rows = [_row(action) for action in flags if action.option_strings]
        if rows:
            operands = "".join(f" {action.metavar}" for action in flags if not action.option_strings)
            yield f"### `headrace {title}{operands}`\n"
            yield "| Flag | Values | Meaning |\n|---|---|---|"
            yield from rows
            yield ""
        for action in flags:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [(f"{title} {below}", each) for below, each in action.choices.items()]


def _row(action: argparse.Action) -> str:
    if action.choices is not None:
        values = " ".join(f"`{choice}`" for choice in action.choices)
    else:
        values = "" if action.nargs == 0 else str(action.metavar)
    return f"| {_names(*action.option_strings)} | {values} | {action.help} |"


def _names(*flags: str) -> str:
    return " ".join(f"`{flag}`" for flag in sorted(flags))


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
