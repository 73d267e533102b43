"""Declarations: what a person must say, in a TOML file that they fill in."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from keras_dp import _check

# Each question is for people who know the data, the model and its use. One
# file serves all standards; `{unit}` is the privacy unit.
_TABLE = """
declared_by: Who makes these declarations, in which role, and when?
released: What is released, to whom: which files with which hashes, which
    weights, statistics or metrics?
purpose: What is the model for, and what must it not be used for? Is it meant
    to give out data of those in its training data?
license: Under which license may the model be used?
number_of_units: How many units are in the data (the unit is: {unit})? Is delta
    well below one over that number?
epsilon_choice: Who decided on epsilon and delta, and why is this bound
    acceptable for these data?
unit_identity: How is it known which records belong to one {unit}? Can a person
    be in the data under several names, or in records of others?
other_releases: What else was or will be released from these data: statistics,
    models, samples, validation results?
tuning: What was chosen by looking at the data, and in which ledger is that:
    settings, features, the architecture, when to stop?
utility: How good is the result for its purpose: which measure, on which data,
    with which error?
bias_by_group: How good is it for each group that matters, and how many of each
    group are in the data? Noise and clipping cost small groups more.
further_releases: Who may make further releases from these data, and who limits
    them?
trust_model: Who is trusted with the records and with answers before noise: the
    collector, the cloud, the nodes of a federation?
access_control: Who can read the records, the ledger and unpublished weights,
    how is that enforced, and how long are records kept?
side_channels: Who can measure time or memory of the training, or read its logs
    and metrics without noise?
data_collection: How were the data collected and sent, and what is exposed
    there before the training?
data_description: Which kinds of data and attributes are in the data set, which
    of them are sensitive, and what part of which population is it?
data_sources: From which sources are the data, why these, and are they fit for
    the purpose?
data_minimisation: Which data were left out, pseudonymised or filtered before
    the training, and why is the rest needed?
model_size: How many parameters has the model, and on how many records was it
    trained? What does that mean for what it can memorise?
extraction_risk: Is the likelihood of getting personal data out of the model
    insignificant, given these bounds? Who judged that, and how?
query_risk: Is the likelihood of getting personal data by asking the model, on
    purpose or not, insignificant? Who judged that, and how?
means_of_others: Who gets or may reach the model, with which other data,
    skills, time and money?
output_measures: What limits the outputs of the model: filters, rate limits,
    rounding of scores?
reviews: Who reviewed the design, the program and its settings, inside or
    outside of the organisation, and what did they find?
attack_tests: Which attacks were tried on the model, and how did they end:
    membership and attribute inference, exfiltration, regurgitation of training
    data, model inversion, reconstruction?
impact_assessment: Is there a data protection impact assessment, or a reason
    why none is needed?
officer_advice: What did the data protection officer advise, if one had to be
    asked?
measures: Which technical and organisational measures lower the risk in the
    whole life of the model, against which threats?
information_given: What are the people in the data, and those who use the
    model, told of it?
legal_basis: On which legal basis were the data processed in development, and
    on which is the model used?
harms: Which harm could come to a {unit}, or to a group, if data were
    identified or an inference were right?
roles: Who is responsible for the release, for the ledger, and for questions of
    the people in the data? Under the GDPR: who is the controller, and who
    processes for them?
policies: Which principles, policies and procedures govern de-identification
    and releases?
monitoring: Who watches the use of what was released, new data and new attacks,
    and when is this assessment done again?
incident_response: What happens if somebody is identified, or the guarantee is
    found wrong?
"""
QUESTIONS = {
    key: " ".join(text.split())
    for key, text in re.findall(r"^(\w+): (.*(?:\n    .*)*)", _TABLE, re.M)
}
# Characters that TOML does not take as they are.
_ESCAPED = re.compile(r'[\\"\x00-\x08\x0b-\x1f\x7f]')


def read_declarations(path: str | Path) -> dict[str, str]:
    """Returns the declarations in a file; those without a text are left out.

    Args:
        path: The name of a TOML file that `form` made, with texts filled in.

    Raises:
        ValueError: The file is no TOML, or it has an unknown key or a value
            that is no text.
        OSError: The file cannot be read.
    """
    try:
        content = tomllib.loads(Path(path).read_text("utf-8"))
    except ValueError as error:  # Both decoders raise it.
        raise ValueError(
            f"`declarations` must be a TOML file. Received: {str(path)!r}, "
            f"where {error}. `keras-dp report --form` writes one to fill in."
        ) from error
    return checked(content)


def checked(content: Mapping[str, object]) -> dict[str, str]:
    """Returns declarations, stripped, without empty ones.

    Args:
        content: Texts by the keys of `QUESTIONS`.

    Raises:
        ValueError: A key is unknown, or a value is no text.
    """
    found = {}
    for key, text in content.items():
        if key not in QUESTIONS:
            near = difflib.get_close_matches(key, QUESTIONS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else "Remove it."
            raise ValueError(
                "`declarations` must have keys that a standard asks for. "
                f"Received: {_check.shown(key)}. {hint}"
            )
        if not isinstance(text, str):
            raise ValueError(
                "`declarations` must be texts in quotes. Received: "
                f"{key}={_check.shown(text)}."
            )
        if text.strip():
            found[key] = text.strip()
    return found


def form(
    keys: Iterable[str], *, unit: str, held: Mapping[str, str] | None = None
) -> str:
    """Returns a TOML file to fill in, with a question above each text.

    Args:
        keys: The keys to ask for, from `QUESTIONS`.
        unit: The word for the privacy unit.
        held: Texts that are known already. Those of other keys are kept, too.

    >>> print(form(["declared_by"], unit="patient", held={"declared_by": "A"}))
    # Who makes these declarations, in which role, and when?
    declared_by = \"\"\"
    A
    \"\"\"
    <BLANKLINE>
    """
    held = held or {}
    lines = []
    for key in dict.fromkeys((*keys, *held)):
        text = _ESCAPED.sub(
            lambda match: f"\\u{ord(match[0]):04x}", held.get(key, "")
        )
        lines += [
            f"# {question(key, unit)}",
            f'{key} = """',
            text,
            '"""',
            "",
        ]
    return "\n".join(lines)


def question(key: str, unit: str) -> str:
    """Returns the question of a declaration for a privacy unit."""
    return QUESTIONS[key].format(unit=unit)
