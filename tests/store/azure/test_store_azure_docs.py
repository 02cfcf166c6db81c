"""The page on Azure tells errors in the code's own words, and settings by the names that the code reads."""

import ast
import re
from pathlib import Path

import headrace

PACKAGE = Path(headrace.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "stores" / "azure.md").read_text(encoding="utf-8")


def strings_of(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
            texts.append("".join(str(part) for part in parts))
    return texts


def test_every_error_of_the_troubleshooting_table_is_the_codes_own() -> None:
    said = " ".join(text for path in PACKAGE.glob("store/**/*.py") for text in strings_of(path))
    _, _, table = PAGE.partition("## Troubleshooting")
    told = re.findall(r"^\| `(.+?)`", table, flags=re.MULTILINE)
    assert len(told) > 20
    of_the_service = "This request is not authorized to perform this operation using this permission"
    strange = [
        part
        for message in told
        for part in re.split(
            r" ?\.\.\. ?|\(it has|\. |\(\.\.\.\)|az://", message.replace(f": {of_the_service}", "")
        )
        if part.strip(" .:();,") and part.strip(" .:();,") not in said
    ]
    assert strange == []


def test_every_setting_that_the_page_names_is_read() -> None:
    read = {text for path in PACKAGE.glob("store/azure/*.py") for text in strings_of(path)}
    named = set(re.findall(r"\b(?:HEADRACE_)?AZURE_[A-Z_]+\b", PAGE))
    others = {"AZURE_TENANT_ID", "AZURE_TOKEN_CREDENTIALS"}  # azure-identity's own
    assert {name for name in named - others if name not in read} == set()
    assert len(named) > 10
