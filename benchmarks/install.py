"""How long an installation takes, how much it is, and what an import costs.

    python benchmarks/install.py [--extras none cpu]

Each row is an empty environment, into which pip installs the wheel of the last
commit, from the index and without its cache. An import is a new process, timed
by the least of five.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {
    "none": "import keras_dp; keras_dp.PrivacyLedger",
    "cpu": "import keras_dp; keras_dp.make_private",
}
IMPORTS = 5


def run(*command: object, folder: Path) -> float:
    """Returns the seconds that a command takes.

    Raises:
        CalledProcessError: It failed.
    """
    start = time.perf_counter()
    subprocess.run([*map(str, command)], cwd=folder, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", nargs="+", default=["none", "cpu"])
    options = parser.parse_args()
    print("| Extra | pip install, s | Installed, MB | Import, s |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = ROOT / ".ci/release.py"
        run(sys.executable, script, folder / "dist", folder=ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        for extra in options.extras:
            environment = folder / extra
            run(sys.executable, "-m", "venv", environment, folder=folder)
            python = environment / "bin/python"
            before = size_of(environment)
            wanted = f"{wheel}[{extra}]" if extra != "none" else wheel
            pip = (python, "-m", "pip", "install", "--quiet", "--no-cache-dir")
            seconds = run(*pip, wanted, folder=folder)
            size = size_of(environment) - before
            imports = [
                run(python, "-c", PROGRAMS[extra], folder=folder)
                for _ in range(IMPORTS)
            ]
            print(
                f"| {extra} | {seconds:.0f} | {size / 1e6:.0f} | "
                f"{min(imports):.1f} |"
            )


def size_of(folder: Path) -> int:
    """Returns the bytes of all files in a folder."""
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


if __name__ == "__main__":
    main()
