"""The pages that tell users about flags and errors say what the code says."""

import argparse
import ast
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.cli.main import COMMANDS
from headrace.cli.parser import Parser
from headrace.cli.serve import serve_options

PACKAGE = Path(headrace.__file__).parent
DOCS = PACKAGE.parent / "docs"
DEPLOY = PACKAGE.parent / "deploy"
LAUNCH = "python3 -m headrace.launch_server "


def parse(line: str) -> argparse.Namespace:
    """A whole command line, as the `headrace` command reads it."""
    parser = Parser(prog="headrace")
    subparsers = parser.add_subparsers(dest="command")
    for name in COMMANDS:
        importlib.import_module(f"headrace.cli.{name}").add_parser(subparsers)
    return parser.parse_args(shlex.split(line, comments=True)[1:])


def told_commands() -> list[str]:
    """Every headrace command in an indented block of a page, continued lines joined."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^    (.+)$", text, flags=re.MULTILINE):
            line = line.replace(LAUNCH, "headrace serve ")
            if line.startswith(tuple(f"headrace {command} " for command in COMMANDS)):
                found.append(line)
    return found


def deployed_command(file: str) -> str:
    """The arguments that a manifest gives the container."""
    text = (DEPLOY / file).read_text(encoding="utf-8")
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return "headrace " + " ".join(re.findall(r"^ +- (serve|s3://\S+|--\S+)", text, flags=re.MULTILINE))


def texts_of(tree: ast.AST) -> list[str]:
    """Every string in the source, with "…" for what an f-string or a template fills in."""
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(re.sub(r"\{[a-z]+\}", "…", node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            texts.append("".join(str(part) for part in parts))
    return texts


def test_the_page_of_flags_is_what_the_parser_knows() -> None:
    made = subprocess.run([sys.executable, str(DOCS / "render_flags.py")], capture_output=True, text=True)
    assert made.stdout == (DOCS / "flags.md").read_text(encoding="utf-8"), (
        "write it again: python docs/render_flags.py > docs/flags.md"
    )


@pytest.mark.parametrize("name", ["object_storage.md", "stores/s3.md", "stores/hub.md", "stores/web.md"])
def test_the_errors_in_the_troubleshooting_table_are_the_code_s_own(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    _, _, table = page.partition("## Troubleshooting")
    told = re.findall(r"^\| `(.+?)` \|", table, flags=re.MULTILINE)
    said = [text for path in PACKAGE.rglob("*.py") for text in texts_of(ast.parse(path.read_text("utf-8")))]
    assert [error for error in told if not any(error in text for text in said)] == []
    assert len(told) > 15


def test_every_link_between_the_pages_leads_somewhere() -> None:
    broken = []
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []


def test_the_pages_tell_commands() -> None:
    assert len(told_commands()) > 3


@pytest.mark.parametrize("line", told_commands())
def test_every_command_that_a_page_tells_is_understood(line: str) -> None:
    args = parse(line)
    if args.command == "serve":
        assert serve_options(args, {}).engine.model.startswith(
            ("s3://", "https://", "gs://", "az://", "abfss://", "hf://", "org/")
        )


@pytest.mark.parametrize("file", ["compose.rustfs.yaml", "kubernetes/deployment.yaml"])
def test_the_command_that_a_manifest_runs_is_understood(file: str) -> None:
    options = serve_options(parse(deployed_command(file)), {})
    assert (options.engine.model, options.served_model_name) == ("s3://my-bucket/models/qwen", "qwen")
    assert (options.host, options.port, options.notes) == ("0.0.0.0", 30000, ())
