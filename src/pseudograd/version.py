"""The version of this package, which stands once, in pyproject.toml."""

from importlib import metadata


def own_version() -> str:
    try:
        return metadata.version("pseudograd")
    except metadata.PackageNotFoundError:  # on the path, and never installed
        return "unknown"
