"""What to say to somebody who mistyped something, or has not installed it."""

import difflib
from collections.abc import Iterable

EXTRAS = {  # and all else: paper
    "ray": "cluster",
    "trimesh": "faces",
    "embreex": "faces",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
}


def install(*modules: str) -> str:
    """How to get what an import did not find, however the package itself was installed.

    >>> install("tyro")
    "pip install 'fastweights[paper]'"
    """
    extras = sorted({EXTRAS.get(module.split(".")[0], "paper") for module in modules})
    return f"pip install 'fastweights[{','.join(extras)}]'"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known.

    >>> did_you_mean("fast-weigths/20", ["lstm/20", "fast-weights/20"])
    '; did you mean fast-weights/20?'
    >>> did_you_mean("something", ["else"])
    ''
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
