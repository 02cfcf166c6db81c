"""`import torch`, as little of it as an engine needs: it is most of what is left of a start."""

import importlib
import sys
from types import ModuleType

# Registers what operators do to tensors that have a shape and no memory ("meta" tensors, for compilers and tracers).
# It takes a fifth of the import; an engine has no such tensors.
_SHAPES_ONLY = "torch._meta_registrations"


def import_torch() -> None:
    """Import torch without its rules for meta tensors. Whoever imports those by their name later gets them."""
    if "torch" in sys.modules:
        return
    sys.modules[_SHAPES_ONLY] = ModuleType(_SHAPES_ONLY)
    try:
        torch = importlib.import_module("torch")
    finally:
        del sys.modules[_SHAPES_ONLY]
    vars(torch).pop(_SHAPES_ONLY.rpartition(".")[2], None)
    _make_generators_usable(torch)


def _make_generators_usable(torch: ModuleType) -> None:
    """What was left out would also have imported the module that does this; without it no Generator can be made."""
    if hasattr(torch._C, "_set_generator_metaclass"):
        torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)
