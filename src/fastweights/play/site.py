"""The files of the page, by the address that each has on it."""

from pathlib import Path

from ..base import files
from ..models import pretrained

PAGE = Path(__file__).parent / "page"
INDEX = "index.html"


def contents() -> dict[str, Path]:
    """Every file that belongs to the page, by its address, which has no leading slash."""
    found = {path.relative_to(PAGE).as_posix(): path for path in sorted(PAGE.rglob("*")) if path.is_file()}
    nets = {f"nets/{name}.safetensors": pretrained.FOLDER / name / "best.safetensors" for name in pretrained.NAMES}
    return found | nets


def write(folder: Path) -> int:
    """Write all of them into a folder, for any static host; how many bytes that are."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out must be a folder, which may be new; {folder} is a file")
    for address, path in contents().items():
        files.write_bytes(folder / address, path.read_bytes())
    return sum(path.stat().st_size for path in contents().values())
