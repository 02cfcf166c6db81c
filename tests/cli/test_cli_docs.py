"""The pages that tell users about flags and errors say what the code says."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import headrace

PACKAGE = Path(headrace.__file__).parent
DOCS = PACKAGE.parent / "docs"


def texts_of(tree: ast.AST) -> list[str]:
    """Every string in the source, with "…" for what an f-string fills in."""
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            texts.append("".join(str(part) for part in parts))
    return texts


def test_the_page_of_flags_is_what_the_parser_knows() -> None:
    made = subprocess.run([sys.executable, str(DOCS / "render_flags.py")], capture_output=True, text=True)
    assert made.stdout == (DOCS / "flags.md").read_text(encoding="utf-8"), (
        "write it again: python docs/render_flags.py > docs/flags.md"
    )


def test_the_errors_in_the_troubleshooting_table_are_the_code_s_own() -> None:
    page = (DOCS / "object_storage.md").read_text(encoding="utf-8")
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
