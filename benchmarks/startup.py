"""Exec to first token: cold starts of `headrace serve` with SmolLM2-135M-Instruct in a SeaweedFS of our own.

The flags are those of `headrace bench startup`, which this calls once the store is there; for a model of yours call
that.

    python benchmarks/startup.py                       # median of 7
    python benchmarks/startup.py -n 11 --plot start.png --json
    python benchmarks/startup.py --vs 'vllm=/path/to/vllm-serve.sh {model} {port}'
"""

import os
import sys

from common import own_store

from headrace.cli.interrupts import sigterm_as_interrupt
from headrace.cli.main import guarded, main


def measure() -> int:
    """The exit code."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return main(["bench", "startup", "--help"])
    with sigterm_as_interrupt(), own_store() as (uri, variables):
        os.environ.update(variables)
        return main(["bench", "startup", uri, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(guarded(measure))
