"""What the documentation calls a file of this repository is one, and the tree of the architecture is the code's."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SUFFIXES = "py|cpp|h|toml|sh"
NAMED = re.compile(rf"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:{SUFFIXES}))?|[\w-]+\.(?:py|cpp|h))`")
TREE = re.compile(r"^headrace/\n((?: +\S.*\n)+)", re.MULTILINE)
FOLDERS = re.compile(r"(?:[a-z0-9_]+/ ?)+(?= |$)")
# Folders of ours; paths below others are a model's, a store's or a user's.
ROOMS = {path.name for path in (ROOT / "headrace").iterdir() if path.is_dir()} | {
    "headrace",
    "tests",
    "benchmarks",
    "docs",
    "deploy",
    "decoder",
}
OTHERS = {"modeling_qwen3.py"}  # transformers'


def existing() -> set[str]:
    """Every file and folder of ours as "/path/", from the root."""
    found = {f"/{path.name}/" for path in ROOT.iterdir()}
    for room in ("headrace", "tests", "benchmarks", "docs", "deploy"):
        found |= {f"/{path.relative_to(ROOT)}/" for path in (ROOT / room).rglob("*")}
    return found


EXISTING = existing()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page: Path) -> None:
    missing = []
    for name in set(NAMED.findall(page.read_text())) - OTHERS:
        if "/" in name and name.split("/")[0] not in ROOMS:
            continue
        end = f"/{name.rstrip('/')}/"
        if not any(path.endswith(end) for path in EXISTING):
            missing.append(name)
    assert missing == []


def test_the_tree_of_the_architecture_has_every_folder_and_no_other() -> None:
    tree = TREE.search((ROOT / "docs/architecture.md").read_text())
    assert tree is not None
    told: set[str] = set()
    room = ""
    for line in tree.group(1).splitlines():
        names = FOLDERS.match(line.strip())
        assert names is not None, line
        for name in names.group().split():
            if line.startswith("   "):
                told.add(room + name)
            else:
                room = name
                told.add(name)
    package = ROOT / "headrace"
    there = {f"{path.parent.relative_to(package)}/" for path in package.rglob("__init__.py")} - {"./"}
    assert told == there
