"""Every document can be printed in every form, and no name can forge it."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from keras_dp import budgets
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PrivacyLedger,
    Round,
)
from keras_dp.reporting import certify, explain, make_report, render
from keras_dp.reporting.account_state import accounts_document
from keras_dp.reporting.commands import COMMANDS
from keras_dp.reporting.document import Code, Picture, Text
from keras_dp.reporting.run_costs import runs_document
from keras_dp.spending import RunLimits

DELTA = 1e-5
MEAN = Round(FullDataset(True), (GaussianSum("mean", 1.0, 20.0),))
# It would be a line, an element, a cell, a link, or move a cursor.
FORGED = (
    "a|b\n  RDP  <= 0.0001\n<script>alert(1)</script>\" onload='x"
    "\n# <img src='x'> [c](d) `e`\x1b[2K\udc80"
)


def small(name="clinic"):
    """Returns a ledger with a part of every kind."""
    ledger = PrivacyLedger.in_memory(dataset=name, unit=name)
    ledger.record(FullDataset(), [GaussianSum(name, 1.0, 9.0)])
    budgets.open_account(ledger, name, budgets.RenyiFilter(8.0, DELTA))
    with ledger.start_run(
        name, description=name, limits=RunLimits(ledger)
    ) as run:
        run.record(MEAN.sampling, MEAN.queries, 3)
    ledger.seal(name)
    return ledger


def bare():
    ledger = PrivacyLedger.in_memory(dataset="d")
    ledger.record(FullDataset(), [NonPrivateSum("loss")])
    return ledger


def planned():
    """Returns the document of a plan."""
    options = SimpleNamespace(
        records=1000,
        epsilon=3.0,
        delta=DELTA,
        epochs=5,
        batch_sizes=[100],
        neighbours=None,
        rows_per_unit=1,
        ledger=None,
    )
    return COMMANDS["plan"].answer(options)


def reported(ledger):
    return make_report(ledger, delta=DELTA, details=True)


DOCUMENTS = {
    "report": lambda: reported(small()),
    "report of nothing": lambda: reported(PrivacyLedger.in_memory(dataset="d")),
    "report without a bound": lambda: reported(bare()),
    "forged report": lambda: reported(small(FORGED)),
    "short report": lambda: make_report(small(), delta=DELTA),
    "explanation": lambda: explain(small(), delta=DELTA),
    "runs": lambda: runs_document(small(FORGED), delta=DELTA),
    "accounts": lambda: accounts_document(small(FORGED)),
    "no accounts": lambda: accounts_document(bare()),
    "certificate": lambda: certify(small(FORGED), delta=DELTA).document(),
    "certificate without a bound": lambda: certify(
        bare(), delta=DELTA
    ).document(),
    "plan": planned,
}


@pytest.fixture(scope="module", params=DOCUMENTS, ids=str)
def document(request):
    return DOCUMENTS[request.param]()


class Page(HTMLParser):
    """Notes what a page holds, and that its elements are closed."""

    def __init__(self, text) -> None:
        super().__init__()
        self.tags, self.open, self.attributes, self.texts = set(), [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.texts.append(data)


def words(text):
    """Returns a text without what a form adds to it."""
    text = re.sub(r"\\(?=[^a-zA-Z0-9\s])", "", text.replace("<br>", " "))
    return re.sub(r"\W+", " ", text).strip()


def told(document, *, personal):
    """Yields all texts of a document."""
    for part in document.parts:
        if isinstance(part, Picture):
            continue
        if isinstance(part, Code):
            yield from part.lines
            continue
        yield part.title
        if isinstance(part, Text):
            yield from part.sentences
            continue
        yield from part.notes
        for row in part.rows:
            for index, cell in enumerate(row):
                if personal or index not in part.personal:
                    yield from [cell] if isinstance(cell, str) else cell


class TestEveryDocument:
    def test_is_whole_in_every_form_for_people(self, document) -> None:
        forms = {
            "text": render(document),
            "markdown": render(document, "markdown"),
            "html": " ".join(Page(render(document, "html")).texts),
        }

        for form, text in forms.items():
            shown = words(text)
            for each in told(document, personal=form != "markdown"):
                escaped = "".join(
                    c if c.isprintable() else ascii(c)[1:-1] for c in each
                )
                assert words(escaped) in shown, (form, each)
        figures = sum(
            len(each.svgs)
            for each in document.parts
            if isinstance(each, Picture)
        )
        assert render(document, "html").count("<svg ") == figures

    def test_is_an_object_for_programs(self, document) -> None:
        text = render(document, "json")

        # `Infinity` is no JSON.
        content = json.loads(text, parse_constant=pytest.fail)
        assert content == json.loads(json.dumps(dict(document.facts)))
        assert content

    @pytest.mark.parametrize("form", ["text", "markdown"])
    def test_can_be_printed(self, document, form) -> None:
        text = render(document, form)

        assert text.replace("\n", "").isprintable()
        assert not re.search(r"^  RDP  <= 0.0001", text, re.MULTILINE)

    def test_is_a_page_that_needs_nothing_else(self, document) -> None:
        text = render(document, "html")

        page = Page(text)
        assert not page.tags & {"script", "link", "img", "iframe"}
        assert not re.search(r"url\(|@import|http-equiv", text)
        assert not any(
            name in ("src", "href") or name.startswith("on")
            for name, _ in page.attributes
        )
        assert "prefers-color-scheme:dark" in text
        assert text.isascii()
        assert re.search(r"\b(inf|nan)\b", text) is None

    def test_is_markdown_in_which_no_name_is_markup(self, document) -> None:
        text = render(document, "markdown").replace("<br>", "")
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)

        assert not re.search(r"(?<!\\)<|(?<!\\)\]\(", text)
        assert all(
            re.match(r"#{1,3} \S|> |>$|- |\||```|$|[^#>|<\[`-]", line)
            for line in text.split("\n")
        )


def test_markdown_names_neither_people_nor_machines() -> None:
    ledger = small()
    author = ledger.runs[-1].start.author
    document = reported(ledger)

    assert f"@{author.host}" in render(document)
    for name in (f"{author.user}@", f"@{author.host}", author.program):
        assert name not in render(document, "markdown")
