"""Paths of `forebay://` URLs."""

__all__ = ["path_of"]


def path_of(url: str) -> str:
    """Returns the path of a URL; a path stays as it is."""
    if url.startswith("forebay://"):
        path = url[len("forebay://") :]
        # pathlib makes one slash of several, and libraries restore two of the three: the path starts at the root all the same.
        return path if path.startswith(("/", "~", "./", "../")) else f"/{path}"
    return url.removeprefix("forebay:")
