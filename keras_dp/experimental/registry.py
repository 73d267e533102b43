"""Drafts an entry for the Differential Privacy Deployments Registry.

The registry of OpenDP and NIST is public. It holds a YAML file for each
deployment, in https://github.com/opendp/deployments-registry-data. The fields
are those of its `schemas/deployments-schema.yaml` at commit 057e5d81 (2026).
The schema still changes: check the entry with the registry's own tests.

A ledger knows the privacy loss, the unit and the mechanisms. It does not know
what the data are, what is published, and why. Such fields are marked, so that
the registry's checks refuse an entry that nobody has completed.

Source: Ghazi, Nanayakkara, Vadhan (2025), arXiv:2509.13509v2, the schema.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from keras_dp._version import __version__
from keras_dp.accountants.claim import rounded_up
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.budgets import Guarantee, budget_of, guarantee
from keras_dp.ledger import NonPrivateSum, PrivacyLedger, UnverifiedSampling

TO_BE_FILLED_IN = "TO BE FILLED IN"
"""The mark of a registry entry's fields that people must complete."""

_DIFFERENCES = {
    "add_or_remove_one": "one of them holds the data of one {unit} more",
    "replace_one": "they differ in the data of one {unit}",
    "zero_out": (
        "in one of them the data of one {unit} count as zero in every sum"
    ),
}
_TRUST = (
    "Whoever runs the training sees the data, and is trusted with them. "
    "Everybody else may see all answers and the weights after every round, "
    "know all records but those of one {unit}, and combine this with anything. "
    "The guarantee does not cover attackers who read the memory of the machine "
    "or measure the time of a round."
)
_PROTECTIONS = (
    "Noise comes from {generator}, keyed by the operating system{exception}. "
    "Sums are floating point; attacks on the low bits of noised numbers are "
    "not ruled out. Every release is written to the ledger before it is "
    "computed."
)


def registry_entry(
    ledger: PrivacyLedger,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
) -> dict[str, Any]:
    """Returns the registry's entry for a ledger.

    The entry has the guarantee of the whole ledger. The names of users and
    machines in the ledger are left out.

    Args:
        ledger: The ledger. All of its rounds count.
        delta: The delta of the guarantee, in (0, 1).
        neighbours: The adjacency relation; by default the strongest that all
            rounds support.

    Returns:
        Dicts and lists, nested as in the registry's schema. A field that people
        must complete holds `TO_BE_FILLED_IN` and a hint.

    Raises:
        ValueError: `delta` or `neighbours` is not a possible one.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> ledger.record(PoissonSampling(0.01), [GaussianSum("all", 1.0, 4.0)])
    >>> entry = registry_entry(ledger, delta=1e-5)["deployment"]
    >>> entry["privacy_loss"]["privacy_parameters"]
    {'epsilon': 0.0081, 'delta': 1e-05}
    >>> entry["basic"]["intended_use"]
    'TO BE FILLED IN: what the data product is used for'
    """
    found = guarantee(ledger, delta=delta, neighbours=neighbours)
    dataset = ledger.header.dataset
    slug = re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-")
    return {
        "url_slug": slug or _missing("a short name for the address"),
        "deployment": {
            "basic": _basic(ledger),
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": _missing(
                    f"which data sets could stand in the place of {dataset}"
                ),
                "unprotected_quantities": _unprotected(ledger),
            },
            "privacy_loss": _privacy_loss(ledger, found),
            "deployment_model": _model(ledger),
            "implementation": _implementation(ledger, found),
            "administrative": {
                "evidence_sources": {},
                "status": "Draft",
                "registry_authors": [_missing("who completes this entry")],
                "tier": _missing("1, 2 or 3"),
            },
        },
    }


def write_registry_entry(
    ledger: PrivacyLedger,
    file: TextIO,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
) -> None:
    """Writes the registry's entry as YAML, for people to complete and check.

    Args:
        ledger: The ledger. All of its rounds count.
        file: A text file, opened for writing.
        delta: The delta of the guarantee, in (0, 1).
        neighbours: As in `registry_entry`.

    Raises:
        ValueError: `delta` or `neighbours` is not a possible one.
    """
    entry = registry_entry(ledger, delta=delta, neighbours=neighbours)
    file.writelines(f"{line}\n" for line in _yaml(entry, 0))


def _basic(ledger: PrivacyLedger) -> dict[str, Any]:
    kinds = {
        "training": "Machine learning model",
        "trial": "Machine learning model",
        "statistics": "Summary statistics",
    }
    purposes = {run.start.purpose for run in ledger.runs if run.start}
    products = {kinds[each] for each in purposes if each in kinds}
    return {
        "name": _missing("the name of the data product"),
        "data_curators": [
            {
                "data_curator_name": _missing("who publishes it"),
                "data_curator_type": _missing(
                    "Government, Industry or Nonprofit"
                ),
            }
        ],
        "description": _missing("the data product in a few sentences"),
        "intended_use": _missing("what the data product is used for"),
        "data_product_type": products.pop()
        if len(products) == 1
        else _missing("such as Machine learning model, Summary statistics"),
        "data_product_region": _missing("whose data, or under whose laws"),
        "data_product_sector": _missing(
            "Technology, Healthcare, Education, Government, Energy or Finance"
        ),
        "publication_date": _missing("as YYYY-MM-DD"),
    }


def _unprotected(ledger: PrivacyLedger) -> str:
    bare = sorted(
        {
            query.name
            for each, _ in ledger.rounds
            for query in each.queries
            if isinstance(query, NonPrivateSum)
        }
    )
    known = "The ledger holds no release without noise."
    if bare:
        known = f"Released without noise: {', '.join(bare)}."
    return (
        f"{known} Configuration, sampling probabilities and the number of "
        "rounds are public. "
        + _missing(
            "what else about the data was published without noise, such as "
            "their number or metrics of validation records"
        )
    )


def _privacy_loss(ledger: PrivacyLedger, found: Guarantee) -> dict[str, Any]:
    header, claim = ledger.header, found.claim
    parameters: dict[str, Any] = {"epsilon": _missing("there is no bound")}
    if claim.is_bound and math.isfinite(claim.epsilon):
        parameters = {"epsilon": float(rounded_up(claim.epsilon))}
    parameters["delta"] = claim.delta
    details = _missing("no adjacency relation is supported by all rounds")
    if claim.neighbours is not None:
        differ = _DIFFERENCES[claim.neighbours].format(unit=header.unit)
        details = (
            f"Two data sets are adjacent if {differ}. It was declared that one "
            f"{header.unit} has at most {header.rows_per_unit} of the records "
            "that are sampled and bounded."
        )
    return {
        "privacy_unit": header.unit,
        "privacy_unit_details": details,
        "number_of_privacy_units": _missing("how many, about"),
        "privacy_parameters": parameters,
        "privacy_parameters_details": " ".join(
            f"{each}." for each in found.sentences(header.unit)
        ),
    }


def _model(ledger: PrivacyLedger) -> dict[str, Any]:
    accounts = [
        budget_of(each.account)
        for each in ledger.accounts
        if each.account.parent is None
    ]
    runs = sum(1 for run in ledger.runs if run.number)
    budget = "No budget was fixed that later runs could not exceed."
    if accounts:
        budget = "No run exceeds the budget: " + "; ".join(
            f"epsilon <= {each.epsilon:g} at delta = {each.delta:g} "
            f"({each.kind})"
            for each in accounts
        )
    return {
        "model_name": "Central",
        "model_name_details": "Noise is added to sums over the records.",
        "trust_assumptions": _TRUST.format(unit=ledger.header.unit),
        "actors": _missing("who may access the data or the data product"),
        "release_type": _missing("One release or Many releases"),
        "release_type_details": (
            f"The ledger holds {_counted(runs, 'run')}. {budget}"
        ),
        "data_source_type": _missing("Static or Dynamic"),
        "data_source_type_details": _missing(
            "whether data are added, and when"
        ),
        "access_type": _missing("Interactive or Non-interactive"),
        "access_type_details": _missing("who may ask what"),
    }


def _implementation(ledger: PrivacyLedger, found: Guarantee) -> dict[str, Any]:
    purposes = Counter(run.start.purpose for run in ledger.runs if run.start)
    counted = ", ".join(
        f"{n} of {each}" for each, n in sorted(purposes.items())
    )
    preprocessing = (
        f"Runs in the ledger, all of which are counted: {counted}. "
        if counted
        else ""
    )
    releases = Counter(
        (type(query).__name__, type(each.sampling).__name__)
        for each, _ in ledger.rounds
        for query in each.queries
    )
    mechanisms = "; ".join(
        f"{query} over {sampling}" for query, sampling in sorted(releases)
    )
    samplings = [each.sampling for each, _ in ledger.rounds]
    caution, exception = "", ""
    if any(isinstance(each, UnverifiedSampling) for each in samplings):
        caution += " Some sampling was not verified."
    if any(not getattr(each, "drawn_by_library", True) for each in samplings):
        caution += " Some sampling was declared, and not done by this library."
    seeded = sum(count for each, count in ledger.rounds if each.seeded)
    if seeded:
        exception = (
            f", except in {_counted(seeded, 'round')} with a chosen seed"
        )
    generator = {"chacha20": "ChaCha20 (RFC 8439)", "philox": "Philox"}
    sealed = ledger.seals[-1:]
    return {
        "preprocessing_and_hyperparameter_tuning": preprocessing
        + _missing("what was done outside of the ledger"),
        "mechanisms": f"keras_dp {__version__}. Events of the ledger: "
        f"{mechanisms or 'none'}.{caution} "
        + _PROTECTIONS.format(
            generator=generator[ledger.header.generator], exception=exception
        ),
        "composition": f"{found.theorem}. Accountant: "
        f"{found.claim.accountant or 'none has a bound'}.",
        "post_processing": _missing("what is computed from the answers"),
        "justification": _missing("why these choices were made"),
        "utility": _missing("how good the data product is"),
        "additional_information": (
            f"The ledger was sealed at row {sealed[0].number}: "
            f"{sealed[0].hash}. "
            if sealed
            else ""
        )
        + _missing("links, code"),
    }


def _missing(what: str) -> str:
    return f"{TO_BE_FILLED_IN}: {what}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _yaml(value: Any, depth: int) -> Iterator[str]:
    """Yields lines of YAML, with texts quoted as in JSON."""
    indent = "  " * depth
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            yield f"{indent}{key}:"
            yield from _yaml(each, depth + 1)
        elif isinstance(each, list):
            yield f"{indent}{key}:"
            for item in each:
                if isinstance(item, Mapping):
                    first, *rest = _yaml(item, depth + 2)
                    yield f"{indent}  - {first.lstrip()}"
                    yield from rest
                else:
                    yield f"{indent}  - {_scalar(item)}"
        else:
            yield f"{indent}{key}: {_scalar(each)}"


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        # YAML 1.1 reads 1e-05 as a text.
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")
    if isinstance(value, str):
        value = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return json.dumps(value, ensure_ascii=False)
