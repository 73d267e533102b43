"""The registry's entry holds what a ledger knows, and marks the rest."""

import io
import json
import re

import pytest

from keras_dp import budgets
from keras_dp.experimental.registry import (
    TO_BE_FILLED_IN,
    registry_entry,
    write_registry_entry,
)
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    PrivacyLedger,
    UnverifiedSampling,
)

DELTA = 1e-5
STEP = [GaussianSum("gradients", 1.0, 4.0)]
# The fields of `schemas/deployments-schema.yaml`, commit 057e5d81.
FIELDS = {
    "basic": "name data_curators description intended_use data_product_type "
    "data_product_region data_product_sector publication_date",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details number_of_privacy_units "
    "privacy_parameters privacy_parameters_details",
    "deployment_model": "model_name model_name_details trust_assumptions "
    "actors release_type release_type_details data_source_type "
    "data_source_type_details access_type access_type_details",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms "
    "composition post_processing justification utility additional_information",
    "administrative": "evidence_sources status registry_authors tier",
}


def trained(*more, **header):
    header = {"dataset": "Clinic 2026", "unit": "patient", **header}
    ledger = PrivacyLedger.in_memory(**header)
    with ledger.start_run("first") as run:
        run.record(PoissonSampling(0.01, drawn_by_library=True), STEP, 100)
    for sampling, queries in more:
        ledger.record(sampling, queries)
    return ledger


def entry(ledger, **options):
    return registry_entry(ledger, delta=DELTA, **options)["deployment"]


def values(node, path=()):
    if isinstance(node, dict):
        for key, each in node.items():
            yield from values(each, (*path, key))
    elif isinstance(node, list):
        for each in node:
            yield from values(each, path)
    else:
        yield path, node


def test_has_the_fields_of_the_schema() -> None:
    found = entry(trained())

    assert {part: " ".join(found[part]) for part in found} == FIELDS


def test_the_privacy_loss_is_that_of_the_guarantee() -> None:
    ledger = trained(rows_per_unit=2)
    found = budgets.guarantee(ledger, delta=DELTA)

    loss = entry(ledger)["privacy_loss"]

    epsilon = loss["privacy_parameters"]["epsilon"]
    assert found.claim.epsilon <= epsilon < found.claim.epsilon + 1.1e-4
    assert loss["privacy_parameters"]["delta"] == DELTA
    assert loss["privacy_unit"] == "patient"
    assert "one patient more" in loss["privacy_unit_details"]
    assert "at most 2 of the records" in loss["privacy_unit_details"]
    assert found.theorem in loss["privacy_parameters_details"]
    assert found.theorem in entry(ledger)["implementation"]["composition"]


def test_what_only_people_know_is_marked() -> None:
    found = entry(trained())

    marked = {
        path[-1]
        for path, value in values(found)
        if TO_BE_FILLED_IN in str(value)
    }
    assert {"name", "intended_use", "publication_date", "tier"} <= marked
    assert not marked & {"privacy_unit", "epsilon", "delta", "mechanisms"}
    assert found["basic"]["data_product_type"] == "Machine learning model"


def test_names_of_people_and_machines_are_left_out() -> None:
    ledger = trained()
    author = ledger.runs[0].start.author
    text = str(entry(ledger))

    assert author.host not in text
    assert f"{author.user}@" not in text


def test_says_what_is_not_protected() -> None:
    ledger = trained((UnverifiedSampling(), [NonPrivateSum("loss")]))
    found = entry(ledger)

    assert (
        "without noise: loss." in found["dp_variant"]["unprotected_quantities"]
    )
    parameters = found["privacy_loss"]["privacy_parameters"]
    assert TO_BE_FILLED_IN in parameters["epsilon"]
    assert "not verified" in found["implementation"]["mechanisms"]


def test_says_which_samples_and_seeds_were_declared_or_chosen() -> None:
    ledger = trained()
    plain = entry(ledger)["implementation"]["mechanisms"]
    assert "keyed by the operating system. " in plain
    assert "declared" not in plain
    assert "not verified" not in plain

    ledger.record(PoissonSampling(0.01), STEP, 2, seeded=True)

    mechanisms = entry(ledger)["implementation"]["mechanisms"]
    assert "except in 2 rounds with a chosen seed" in mechanisms
    assert "Some sampling was declared" in mechanisms


def test_names_the_budget_and_the_seal() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")
    budgets.open_account(ledger, "all", budgets.RenyiFilter(3.0, DELTA))
    seal = ledger.seal()
    found = entry(ledger)

    assert (
        "epsilon <= 3 at delta = 1e-05 (Rényi filter)"
        in found["deployment_model"]["release_type_details"]
    )
    assert seal.hash in found["implementation"]["additional_information"]


class TestTheYaml:
    """Every value is written as JSON, which YAML reads, but for numbers."""

    def read(self, text):
        """Reads the lines back, without a YAML library."""
        found, path = [], []
        for line in text.splitlines():
            indent, dash, rest = re.fullmatch(r"( *)(- )?(.*)", line).groups()
            depth = (len(indent) + len(dash or "")) // 2
            if dash and rest.startswith('"'):
                found.append((tuple(path), json.loads(rest)))
                continue
            key, value = re.fullmatch(r"(\w+):(?: (.*))?", rest).groups()
            path = [*path[:depth], key]
            if value is not None:
                found.append((tuple(path), json.loads(value)))
        return found

    @pytest.mark.parametrize(
        "dataset", ["clinic", 'a "quoted": \\ # name', "é\n- x\x7f\udc80"]
    )
    def test_holds_the_entry(self, dataset) -> None:
        ledger = trained((FullDataset(), STEP), dataset=dataset)
        file = io.StringIO()

        write_registry_entry(ledger, file, delta=DELTA)

        expected = registry_entry(ledger, delta=DELTA)
        read = self.read(file.getvalue())
        flat = [value for _, value in read if value != {}]
        assert len(flat) == len(list(values(expected)))
        for found, (_, value) in zip(flat, values(expected), strict=True):
            if isinstance(value, str) and not value.isprintable():
                assert found.isprintable()
            else:
                assert found == value
        assert {path[0] for path, _ in read} == {"url_slug", "deployment"}

    def test_small_numbers_are_numbers_in_yaml_1_1(self) -> None:
        file = io.StringIO()

        write_registry_entry(trained(), file, delta=DELTA)

        assert "delta: 1.0e-05\n" in file.getvalue()
