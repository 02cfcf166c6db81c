"""`python -m headrace.launch_server --model-path MODEL ...`: `headrace serve` under the name that SGLang's users know."""

import sys
from collections.abc import Sequence

from headrace.cli import serve
from headrace.cli.main import guarded
from headrace.cli.parser import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a model as `headrace serve` does, with the same flags, and return the exit code."""

    def command() -> int:
        parser = Parser(
            prog="python -m headrace.launch_server", description=serve.DESCRIPTION, epilog=serve.EXAMPLES
        )
        serve.add_flags(parser)
        return serve.run(parser.parse_args(argv))

    return guarded(command)


if __name__ == "__main__":
    sys.exit(main())
