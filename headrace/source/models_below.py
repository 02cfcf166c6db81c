"""Which models lie below a place: a listing of all depths, grouped by folder. Names and sizes only. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.source.files import CONFIG_NAME, INDEX_NAME, BadModelFiles
from headrace.source.objects import Listing, ObjectInfo
from headrace.source.weight_files import choose_weights, is_weight_name

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_WEIGHTS = (".safetensors", ".gguf", *_PICKLED)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """One folder that holds a model, with all that lies below it.

    Attributes:
        path: relative to the place that was listed; "" is the place itself.
        format: "safetensors" (can be served, as far as names tell), "safetensors, incomplete", "adapter", "gguf",
            "pickle", or "no weights".
        changed_s: when its youngest file was written, in seconds since 1970; None where the store does not say.
    """

    path: str
    size_bytes: int
    files: int
    format: str
    changed_s: int | None


def models_below(items: Iterable[ObjectInfo]) -> tuple[FoundModel, ...]:
    """The models among all objects below a place, by path.

    A folder is a model if weights or a config.json lie directly in it. What lies deeper belongs to it, unless it is a
    folder with both, such as a trainer's checkpoint-500.
    """
    folders: dict[str, list[ObjectInfo]] = {}
    for item in items:
        folders.setdefault(item.name.rpartition("/")[0], []).append(item)
    models: dict[str, list[ObjectInfo]] = {}
    for path in sorted(folders, key=lambda path: path.split("/") if path else []):
        own = folders[path]
        owner = _owner(path, models)
        has_config = any(_base(item) == CONFIG_NAME for item in own)
        has_weights = any(_base(item).endswith(_WEIGHTS) for item in own)
        if (has_config and has_weights) or (owner is None and (has_config or has_weights)):
            models[path] = list(own)
        elif owner is not None:
            models[owner] += own
    return tuple(_model(path, models[path]) for path in sorted(models))


def _owner(path: str, models: dict[str, list[ObjectInfo]]) -> str | None:
    """The nearest folder above (or the same) that is a model."""
    while path:
        if path in models:
            return path
        path = path.rpartition("/")[0]
    return "" if "" in models else None


def _base(item: ObjectInfo) -> str:
    return item.name.rpartition("/")[2]


def _model(path: str, items: Sequence[ObjectInfo]) -> FoundModel:
    own = [item for item in items if item.name.rpartition("/")[0] == path]
    times = [item.modified_s for item in items if item.modified_s is not None]
    return FoundModel(
        path, sum(item.size_bytes for item in items), len(items), _format(own), max(times, default=None)
    )


def _is_of_adapter(name: str) -> bool:
    return name.startswith("adapter_") and name.endswith((".safetensors", ".json"))


def _format(own: Sequence[ObjectInfo]) -> str:
    """By the names of the files directly in the folder."""
    names = {_base(item) for item in own}
    if any(name.endswith(".safetensors") for name in names):
        if not any(is_weight_name(name) for name in names) and any(map(_is_of_adapter, names)):
            return "adapter"
        here = Listing(tuple(replace(item, name=_base(item)) for item in own))
        if INDEX_NAME in names:  # what it names is not read here
            return "safetensors" if CONFIG_NAME in names else "safetensors, incomplete"
        try:
            choose_weights(here, "", None)
        except BadModelFiles:
            return "safetensors, incomplete"
        return "safetensors" if CONFIG_NAME in names else "safetensors, incomplete"
    if any(name.endswith(".gguf") for name in names):
        return "gguf"
    if any(name.endswith(_PICKLED) for name in names):
        return "pickle"
    return "no weights"
