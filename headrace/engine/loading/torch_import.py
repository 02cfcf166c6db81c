"""`import torch`, as little of it as an engine needs: it is most of what is left of a start."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

# Registers what operators do to tensors that have a shape and no memory ("meta" tensors, for compilers and tracers).
# It, and what only it imports (decompositions, primitives, reference implementations), take a fifth of the import; an
# engine has no such tensors.
_SHAPES_ONLY = "torch._meta_registrations"
# Another version may do more in that module than is known of this one: it is imported whole.
_KNOWN_VERSION = "__version__ = '2.13."


def import_torch() -> None:
    """Import torch without its rules for meta tensors. Whoever imports those by their name later gets them."""
    if "torch" in sys.modules:
        return
    if not _is_known():
        importlib.import_module("torch")
        return
    sys.modules[_SHAPES_ONLY] = ModuleType(_SHAPES_ONLY)
    try:
        torch = importlib.import_module("torch")
    finally:
        del sys.modules[_SHAPES_ONLY]
    vars(torch).pop(_SHAPES_ONLY.rpartition(".")[2], None)
    # What was left out would also have imported the module that does this; without it no Generator can be made.
    torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


def _is_known() -> bool:
    spec = importlib.util.find_spec("torch")
    version = (
        Path(spec.origin).parent / "version.py" if spec is not None and spec.origin is not None else None
    )
    return version is not None and version.exists() and _KNOWN_VERSION in version.read_text(encoding="utf-8")
