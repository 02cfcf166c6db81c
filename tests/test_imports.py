"""Who may import whom: the walls of the house, read from the source."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import headrace

ROOT = Path(headrace.__file__).parent

# package → the packages that it may import, at any place in its files. headrace.errors is open to all.
ALLOWED: dict[str, set[str]] = {
    "source": set(),
    "store": {"source"},
    "stream": {"store", "source"},
    "kernels": set(),
    "models": {"kernels"},
    "text": set(),
    "ipc": set(),
    "engine": {"models", "stream", "store", "source", "text", "ipc"},
    "server": {"source", "text", "ipc"},
    "bench": {"source", "store", "stream"},
    "cli": {
        "source",
        "store",
        "stream",
        "models",
        "kernels",
        "text",
        "ipc",
        "engine",
        "server",
        "demo",
        "bench",
    },
    "demo": {"source", "store", "stream", "models", "kernels", "text", "ipc", "engine", "server", "cli"},
}
TORCH_FREE = ("source", "store", "stream", "text", "ipc", "server", "cli", "bench")
ABOVE_ALL = {"errors", "__init__"}
PART_OF_CLI = {"launch_server", "__main__"}


@dataclass(frozen=True)
class Import:
    """One imported module (dotted, absolute) and the line that asks for it."""

    module: str
    line: int


def module_name(path: Path) -> str:
    parts = ("headrace", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def package_of(module: str) -> str:
    """The part of the house that a module belongs to: "store", "cli", ... or "errors"."""
    name = (*module.split("."), "__init__")[1]
    return "cli" if name in PART_OF_CLI else name


def imports_in(node: ast.AST, module: str) -> Iterator[Import]:
    """The modules that one import statement names; `from package import name` may name a module too."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module}:{node.lineno} imports by a relative name"
        assert node.module is not None
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield Import(full if full in MODULES else node.module, node.lineno)


def all_imports(module: str) -> list[Import]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return [found for node in ast.walk(tree) for found in imports_in(node, module)]


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported: not those of functions or `if TYPE_CHECKING`."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield statement
        if isinstance(statement, ast.If) and is_type_checking(statement.test):
            yield from executed(statement.orelse)
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from executed(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from executed(handler.body)


def import_time_imports(module: str) -> list[Import]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return [found for statement in executed(tree.body) for found in imports_in(statement, module)]


def reached_at_import(module: str) -> dict[str, str]:
    """Every module that importing `module` imports → the chain by which it got there."""
    chains: dict[str, str] = {}
    waiting = [(module, module)]
    while waiting:
        current, chain = waiting.pop()
        if current in chains:
            continue
        chains[current] = chain
        if current in MODULES:
            parents = [current.rpartition(".")[0]] if "." in current else []
            names = parents + [found.module for found in import_time_imports(current)]
            waiting += [(name, f"{chain} → {name}") for name in names]
    return chains


def torch_free_modules() -> list[str]:
    return [
        module
        for module in MODULES
        if package_of(module) in TORCH_FREE or (package_of(module) == "models" and module.endswith(".layout"))
    ]


def test_each_package_imports_only_what_it_may() -> None:
    wrong = []
    for module in MODULES:
        own = package_of(module)
        if own in ABOVE_ALL:
            continue
        for found in all_imports(module):
            other = package_of(found.module)
            inside = found.module.split(".")[0] == "headrace"
            if inside and other not in ({own} | ALLOWED[own] | ABOVE_ALL):
                wrong.append(f"{module}:{found.line} imports {found.module}")
    assert wrong == []


def test_errors_import_nothing_and_the_package_itself_nothing_before_a_name_is_used() -> None:
    assert all_imports("headrace.errors") == []
    assert import_time_imports("headrace") == []


def test_torch_is_not_imported_by_those_that_must_start_without_it() -> None:
    wrong = []
    for module in torch_free_modules():
        for name, chain in reached_at_import(module).items():
            if name.split(".")[0] in ("torch", "transformers"):
                wrong.append(chain)
    assert wrong == []


def test_the_command_line_imports_nothing_but_itself_and_the_standard_library() -> None:
    wrong = []
    for module in MODULES:
        if package_of(module) != "cli":
            continue
        for found in import_time_imports(module):
            top = found.module.split(".")[0]
            own = top == "headrace" and package_of(found.module) in {"cli", *ABOVE_ALL}
            if not own and top not in sys.stdlib_module_names:
                wrong.append(f"{module}:{found.line} imports {found.module}")
    assert wrong == []


def test_the_rules_name_every_package() -> None:
    assert {package_of(module) for module in MODULES} - ABOVE_ALL == set(ALLOWED)


def test_the_reading_of_imports_sees_what_runs_and_only_that() -> None:
    source = (
        "import a\nif TYPE_CHECKING:\n    import b\nelse:\n    import c\ntry:\n    import d\nexcept E:\n    import e\n"
        "class X:\n    import f\ndef g():\n    import h\nwith x:\n    import i\n"
    )
    found = [found.module for node in executed(ast.parse(source).body) for found in imports_in(node, "m")]
    assert found == ["a", "c", "d", "e", "f", "i"]
