"""What the commands of the five packages share, without torch: the command line, codes, notices, their baselines and their formats."""

USES = ()  # it imports none of the others


def own_version() -> str:
    """The version of the distribution, which pyproject.toml alone says."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pseudograd")
    except PackageNotFoundError:  # on the path, and never installed
        return "unknown"
