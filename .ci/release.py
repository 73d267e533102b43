"""Builds wheel and sdist: the same bytes whenever a commit is built.

    python .ci/release.py dist [https://github.com/OWNER/keras_dp]

What is built is the last commit, not the working tree. Times and modes in the
archives are those of the commit, or SOURCE_DATE_EPOCH. With the address of the
repository, the page on the index links to the files of the tag of this version.
"""

import gzip
import io
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(*command: object, cwd: Path = ROOT) -> bytes:
    """Returns what a command prints.

    Raises:
        CalledProcessError: It failed; what it said was printed.
    """
    return subprocess.run(
        [*map(str, command)], cwd=cwd, check=True, stdout=subprocess.PIPE
    ).stdout


def build(out: Path, repository: str = "") -> list[Path]:
    """Builds the last commit.

    Args:
        out: A folder for the archives, which may not exist yet.
        repository: The address of the repository, if it has one.

    Returns:
        The sdist and the wheel, which is built from the sdist.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or run(
        "git", "log", "-1", "--format=%ct"
    )
    os.environ["SOURCE_DATE_EPOCH"] = str(int(epoch))
    os.umask(0o022)  # The modes of unpacked files are those in the wheel.
    uv = (Path(sys.executable).with_name("uv"), "build", "--quiet")
    options = ("--no-build-isolation", "--python", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        commit = io.BytesIO(run("git", "archive", "HEAD"))
        with tarfile.open(fileobj=commit) as archive:
            archive.extractall(source, filter="data")
        if repository:
            link(source, repository.rstrip("/"))
        run(*uv, "--sdist", *options, "--out-dir", folder, source)
        (made,) = Path(folder).glob("*.tar.gz")
        out.mkdir(parents=True, exist_ok=True)
        sdist = out / made.name
        sdist.write_bytes(normal(made.read_bytes(), int(epoch)))
    run(*uv, "--wheel", *options, "--out-dir", out.resolve(), sdist.resolve())
    return [sdist, *out.glob("*.whl")]


def normal(archive: bytes, epoch: int) -> bytes:
    """Returns a tar.gz archive in which only names and contents differ."""
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old, key=lambda each: each.name):
            entry = tarfile.TarInfo(member.name)
            entry.type, entry.size = member.type, member.size
            entry.mtime, entry.mode = epoch, 0o755 if member.isdir() else 0o644
            new.addfile(entry, old.extractfile(member))
    return gzip.compress(plain.getvalue(), mtime=epoch)


def link(source: Path, repository: str) -> None:
    """Makes links of the README absolute, and names the repository."""
    own = runpy.run_path(str(source / "keras_dp/_version.py"))
    tag = f"v{own['__version__']}"
    page = source / "README.md"
    files = f"{repository}/blob/{tag}/"
    text = re.sub(r"\]\((?!https?:|#)", f"]({files}", page.read_text("utf-8"))
    images = f"{repository}/raw/{tag}/docs/"
    page.write_text(text.replace('="docs/', f'="{images}'), "utf-8")
    project = source / "pyproject.toml"
    urls = (
        f'\n[project.urls]\nRepository = "{repository}"\n'
        f'Changelog = "{files}CHANGELOG.md"\n'
    )
    project.write_text(project.read_text("utf-8") + urls, "utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]), *sys.argv[2:])
