"""The user's cache: where downloaded and rendered data are kept."""

import os
from pathlib import Path


def user_cache() -> Path:
    """Our folder in it: `$XDG_CACHE_HOME/fastweights`, or `~/.cache/fastweights`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastweights"
