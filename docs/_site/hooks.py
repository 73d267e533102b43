"""Makes one site of the documents, wherever in the repository they lie.

A link to a file of the repository works on the site and in a clone: documents
outside of `docs/` become pages, and so does each source file that a page links
to. Formulas between dollar signs become MathML, which browsers draw without a
script. The guides can be downloaded as notebooks.
"""

import ast
import os
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent))
from notebooks import DOCS, ROOT, notebook

# Documents outside of `docs/`, and their pages.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/peers/README.md": "peers.md",
    "examples/README.md": "examples.md",
    "tutorials/README.md": "tutorials.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".svg": "xml"}
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(
    r"""(\]\(|(?:src|srcset)=")([^)\s#:"]+)(\#[^)\s]*)?(\)|")""", re.VERBOSE
)
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL | re.IGNORECASE
)
LONGEST_INLINE = 24  # Signs of a formula that a telephone shows in one line.


def on_files(files: Files, config: Any) -> Files:
    """Adds what lies outside of `docs/`, and the notebooks."""
    for source, uri in PAGES.items():
        files.append(
            File.generated(config, uri, abs_src_path=str(ROOT / source))
        )
    linked = set()
    for path in [*DOCS.rglob("*.md"), *(ROOT / source for source in PAGES)]:
        for target in _targets(path):
            if target.is_file() and _uri(target) is None:
                linked.add(target)
    for path in sorted(linked):
        files.append(
            File.generated(config, _source_uri(path), content=_listing(path))
        )
    for path in _guides():
        uri = path.relative_to(DOCS).with_suffix(".ipynb").as_posix()
        files.append(File.generated(config, uri, content=notebook(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Makes links those of the site, and lets pages come first in searches."""
    if page.file.src_uri.startswith(("api/", "source/")):
        page.meta.setdefault("search", {"boost": 0.1})
    source = Path(page.file.abs_src_path or "")
    if not page.file.abs_src_path or not source.is_relative_to(ROOT):
        return markdown
    if source in _guides():
        name = source.with_suffix(".ipynb").name
        markdown += f"\n\n[Download this page as a notebook]({name})\n"

    def on_the_site(link: re.Match[str]) -> str:
        path = (source.parent / link[2]).resolve()
        if not path.is_file():
            return link[0]  # MkDocs says that it leads nowhere.
        uri = _uri(path) or _source_uri(path)
        there = os.path.relpath(uri, Path(page.file.src_uri).parent)
        return f"{link[1]}{there}{link[3] or ''}{link[4]}"

    return _outside_of_code(markdown, on_the_site)


def on_page_content(html: str, **_: Any) -> str:
    """Writes formulas as MathML."""
    return FORMULA.sub(_formula, html)


def on_post_build(config: Any) -> None:
    """Refuses a site on which a public name has no entry."""
    missing = []
    for path in sorted((ROOT / "keras_dp").glob("*/__init__.py")):
        package = path.parent.name
        page = Path(config.site_dir, "api", f"{package}.html")
        if not page.is_file():  # The package is internal.
            continue
        ids = re.findall(
            rf'id="keras_dp\.{package}\.([^"]+)"', page.read_text("utf-8")
        )
        shown = {each.rpartition(".")[2] for each in ids}
        missing += [
            f"{package}.{name}" for name in _names(path) if name not in shown
        ]
    if missing:
        raise PluginError(f"No page of the API has {', '.join(missing)}.")


def _names(path: Path) -> list[str]:
    """Returns `__all__` of a package."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
        ):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def _formula(match: re.Match[str]) -> str:
    display = "block" if match[1].lower() == "div" else "inline"
    text = unescape(re.sub(r"^\s*\\[(\[]|\\[)\]]\s*$", "", match[2]))
    formula = latex2mathml.converter.convert(text, display=display)
    # A long one scrolls in a box of its own.
    if display == "block":
        return f'<div class="formula">{formula}</div>'
    if len(unescape(re.sub("<[^>]*>", "", formula))) > LONGEST_INLINE:
        return f'<span class="formula">{formula}</span>'
    return formula


def _guides() -> list[Path]:
    return [
        DOCS / "start.md",
        DOCS / "auditing.md",
        *sorted((DOCS / "guides").glob("*.md")),
    ]


def _targets(path: Path) -> list[Path]:
    text = FENCE.sub("", path.read_text("utf-8"))
    return [(path.parent / link[2]).resolve() for link in LINK.finditer(text)]


def _uri(path: Path) -> str | None:
    """Returns the place of a file on the site, `None` for source files."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return PAGES.get(path.relative_to(ROOT).as_posix())


def _source_uri(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def _listing(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    language = LANGUAGES.get(path.suffix, "text")
    return (
        "---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n"
        f"# `{name}`\n\n`````` {{.{language} linenums=1}}\n"
        f"{path.read_text('utf-8')}``````\n"
    )


def _outside_of_code(markdown: str, change: Any) -> str:
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(change, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(change, markdown[end:])])
