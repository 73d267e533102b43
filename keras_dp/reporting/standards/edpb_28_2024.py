"""EDPB Opinion 28/2024: when an AI model counts as anonymous."""

from keras_dp.reporting.standards.requirements import standard

# The opinion's paragraphs are named, not numbered.
EDPB_28_2024 = standard(
    "edpb-28-2024",
    """
EDPB Opinion 28/2024 on certain data protection aspects related to the
processing of personal data in the context of AI models (17 December 2024)

The page follows what the opinion says of the anonymity of models and of its
documentation. It asks for the legal basis, and does not assess it.

anonymity, purpose of the model: A model made to give out personal data
A model that is made to give out data of those in its training data is not
anonymous.
-> purpose

anonymity, direct extraction: Extraction from the model
The likelihood that data of a person in the training data can be extracted from
the model, also with some probability only, must be insignificant.
-> guarantee, reconstruction, extraction_risk, JUDGEMENT

anonymity, queries: Personal data in answers of the model
The likelihood that such data come out by questions to the model, on purpose or
not, must be insignificant.
-> after_release, membership, query_risk, AGAIN

anonymity, reasonably likely means: All means reasonably likely to be used
Look at the means of the controller and of others: further data, cost, time,
technology; and at who can get the model.
-> attacker, means_of_others

design, selection of sources: Sources of the training data
Say how sources were chosen, and that they fit the purpose.
-> unit, data_sources

design, preparation and minimisation: Less personal data
Say whether anonymous or pseudonymous data would do, and what was filtered out
before the training.
-> data_minimisation

design, methods of training: Methods that lower identifiability
Say which methods of the training lower identifiability, such as differential
privacy or regularization, and how strongly.
-> mechanisms, accountants, coverage, tuning, OTHER_RELEASES

design, outputs: Measures at the outputs
Say what keeps personal data out of answers after the training.
-> after_release, output_measures, AGAIN

analysis of the model: Reviews of design and code
Show that the measures were put into effect as designed: by reviews of code,
reports, and audits by others.
-> software, choices, reviews, OTHER_RUNS

testing and resistance to attacks: Attacks that were tried
Test against attacks of the state of the art: inference of membership and
attributes, exfiltration, regurgitation, inversion, reconstruction. Say how
often and how thoroughly.
-> audits, attack_tests, AUDITS

documentation, impact assessment: The data protection impact assessment
Keep the assessment, or the decision that none is needed.
-> impact_assessment

documentation, data protection officer: Advice of the data protection officer
Keep the advice, where an officer was or had to be asked.
-> officer_advice

documentation, measures: Technical and organisational measures
Keep the measures that lower the likelihood of identification over the life of
the model, the model of threats, and the assessment of risks.
-> people, measures, access_control, roles, READERS, UNPROTECTED

documentation, resistance: Proof of the theoretical and tested resistance
Keep what shows the resistance in theory and in tests: the amount of training
data beside the number of parameters, the likelihood of identification by known
attacks, and who tested the model, when, how and with which result.
-> guarantee, reconstruction, membership, randomness, ROUNDING, model_size,
-> epsilon_choice, unit_identity, audits, attack_tests

documentation, information: Information for deployers and people in the data
Keep what was given to those who deploy the model and to the people in the
data.
-> information_given

legal basis: Legal basis of development and use
If the model is not anonymous, its use needs a basis; if development had none,
that can affect the use.
-> legal_basis, JUDGEMENT
""",
)
