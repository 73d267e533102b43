"""A virtual environment for each peer, made once."""

import hashlib
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CACHE = Path.home() / ".cache" / "keras_dp" / "peers"
# Holds the hash of the requirements that were installed in full.
MARK = "installed.sha256"


def requirements(name: str) -> list[Path]:
    """Returns the files to install, in order; the last without dependencies."""
    files = [FOLDER / f"{name}.txt", FOLDER / f"{name}_no_deps.txt"]
    return [file for file in files if file.exists()]


def python(name: str, folder: Path = CACHE, options: Sequence[str] = ()) -> str:
    """Returns the interpreter of a peer's environment, made if need be.

    Args:
        name: Of the requirements' file, such as `opacus`.
        folder: Where environments are kept.
        options: More arguments for pip, such as another index.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    files = requirements(name)
    wanted = hashlib.sha256(b"".join(f.read_bytes() for f in files))
    path = folder / name
    mark, interpreter = path / MARK, path / "bin" / "python"
    if mark.exists() and mark.read_text() == wanted.hexdigest():
        return str(interpreter)
    print(f"Installing {name} into {path}", file=sys.stderr, flush=True)
    venv.create(path, with_pip=True, clear=True)
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", *options]
    for file in files:
        alone = ["--no-deps"] if file.stem.endswith("_no_deps") else []
        subprocess.run([*pip, *alone, "-r", str(file)], check=True)
    mark.write_text(wanted.hexdigest())
    return str(interpreter)
