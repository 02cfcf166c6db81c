"""The `headrace` command: finds the subcommand, runs it, and turns errors into words and exit codes.

Nothing heavy is imported here or by the command modules themselves: `--help` answers at once, and what a
command needs is imported when it runs.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType

from headrace import __version__
from headrace.cli.interrupts import Terminated
from headrace.cli.output import CannotPrint, abandon_output, flush_output, prepare_output
from headrace.cli.parser import Parser, UsageError, print_error
from headrace.errors import HeadraceError

COMMANDS = ("serve", "push", "pull", "check", "inspect", "ls", "cache", "bench", "demo")

DESCRIPTION = "Serve a language model whose weights stream from an object store straight into memory."
EXAMPLES = """\
examples:
  headrace demo                                  a real store, a real small model, one question answered
  headrace push ./qwen s3://my-bucket/qwen       upload a model folder
  headrace check s3://my-bucket/qwen             can it be served from here?
  headrace serve s3://my-bucket/qwen             open an OpenAI-compatible server on 127.0.0.1:30000
  headrace serve ./qwen --port 8000              the same from a local folder
  headrace ls s3://my-bucket                     the models in a bucket
  headrace bench load s3://my-bucket/qwen        how fast its weights come from there

`headrace COMMAND --help` tells what a command takes.
HEADRACE_DEBUG=1 shows the traceback behind an error message."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `headrace` with these arguments (sys.argv's by default) and return its exit code.

    0 done, 1 an error, 2 a command line that cannot be understood; 130 interrupted, 143 terminated.
    """
    return guarded(lambda: _run_command(list(sys.argv[1:] if argv is None else argv)))


def guarded(command: Callable[[], int]) -> int:
    """The exit code of a command whose errors are told to the user as sentences on stderr."""
    prepare_output()
    try:
        try:
            return command()
        except SystemExit as request:  # argparse: --help, --version, usage errors
            return request.code if isinstance(request.code, int) else 1
        finally:
            flush_output()
    except HeadraceError as error:
        if isinstance(error, CannotPrint):
            abandon_output()
        if os.environ.get("HEADRACE_DEBUG", "") not in ("", "0"):
            traceback.print_exc()
        print_error(error.message, error.remedy)
        return 2 if isinstance(error, UsageError) else 1
    except Terminated:
        return 143
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone (`headrace ... | head`).
        abandon_output()
        return 141


def _run_command(argv: list[str]) -> int:
    parser = Parser(prog="headrace", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    # Only the help page and errors need to know the other commands.
    wanted = argv[:1] if argv and argv[0] in COMMANDS else COMMANDS
    modules: dict[str, ModuleType] = {}
    for name in wanted:
        modules[name] = importlib.import_module(f"headrace.cli.{name}")
        modules[name].add_parser(subparsers)
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(argv)
    if args.command is None:
        parser.error("a command is missing.")
    code: int = modules[args.command].run(args)
    return code
