"""Whether a loader's packages are installed, found out without importing them: some take seconds."""

from importlib.metadata import version
from importlib.util import find_spec


def installed(modules: tuple[str, ...], packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of packages. Raises ImportError for the first of the modules that is not there."""
    for module in modules:
        if find_spec(module) is None:
            raise ImportError(f"no module {module}", name=module)
    return {package: version(package) for package in packages}
