"""What the commands of all packages share: the command line, codes, notices, baselines and formats. Nothing here imports torch."""

USES = ()  # it imports none of the others


def own_version() -> str:
    """The version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pseudograd")
    except PackageNotFoundError:  # on the path, and never installed
        return "unknown"
