"""EDPB Opinion 28/2024: when an AI model counts as anonymous."""

from keras_dp.reporting import limits
from keras_dp.reporting.standards import facts
from keras_dp.reporting.standards.requirements import Requirement, Standard

# The opinion's paragraphs are named, not numbered.
EDPB_28_2024 = Standard(
    "edpb-28-2024",
    "EDPB Opinion 28/2024 on certain data protection aspects related to the "
    "processing of personal data in the context of AI models (17 December "
    "2024)",
    "The page follows what the opinion says of the anonymity of models and of "
    "its documentation. It asks for the legal basis, and does not assess it.",
    (
        Requirement(
            "anonymity, purpose of the model",
            "A model that is meant to give out personal data",
            "A model that is made to give out data of those in its training "
            "data is not anonymous.",
            (),
            ("purpose",),
        ),
        Requirement(
            "anonymity, direct extraction",
            "Extraction from the model",
            "The likelihood that data of a person in the training data can be "
            "extracted from the model, also with some probability only, must "
            "be insignificant.",
            (facts.guarantee, facts.reconstruction),
            ("extraction_risk",),
            limits=(limits.JUDGEMENT,),
        ),
        Requirement(
            "anonymity, queries",
            "Personal data in answers of the model",
            "The likelihood that such data come out by questions to the model, "
            "on purpose or not, must be insignificant.",
            (facts.after_release, facts.membership),
            ("query_risk",),
            limits=(limits.AGAIN,),
        ),
        Requirement(
            "anonymity, reasonably likely means",
            "All means that are reasonably likely to be used",
            "Look at the means of the controller and of others: further data, "
            "cost, time, technology; and at who can get the model.",
            (facts.attacker,),
            ("means_of_others",),
        ),
        Requirement(
            "design, selection of sources",
            "Sources of the training data",
            "Say how sources were chosen, and that they fit the purpose.",
            (facts.unit,),
            ("data_sources",),
        ),
        Requirement(
            "design, preparation and minimisation",
            "Less personal data",
            "Say whether anonymous or pseudonymous data would do, and what was "
            "filtered out before the training.",
            (),
            ("data_minimisation",),
        ),
        Requirement(
            "design, methods of training",
            "Methods that lower identifiability",
            "Say which methods of the training lower identifiability, such as "
            "differential privacy or regularization, and how strongly.",
            (facts.mechanisms, facts.accountants, facts.coverage),
            ("tuning",),
            limits=(limits.OTHER_RELEASES,),
        ),
        Requirement(
            "design, outputs",
            "Measures at the outputs",
            "Say what keeps personal data out of answers after the training.",
            (facts.after_release,),
            ("output_measures",),
            limits=(limits.AGAIN,),
        ),
        Requirement(
            "analysis of the model",
            "Reviews of design and code",
            "Show that the measures were put into effect as designed: by "
            "reviews of code, reports, and audits by others.",
            (facts.software, facts.choices),
            ("reviews",),
            limits=(limits.OTHER_RUNS,),
        ),
        Requirement(
            "testing and resistance to attacks",
            "Attacks that were tried",
            "Test against attacks of the state of the art: inference of "
            "membership and attributes, exfiltration, regurgitation, "
            "inversion, reconstruction. Say how often and how thoroughly.",
            (facts.audits,),
            ("attack_tests",),
            limits=(limits.AUDITS,),
        ),
        Requirement(
            "documentation, impact assessment",
            "The data protection impact assessment",
            "Keep the assessment, or the decision that none is needed.",
            (),
            ("impact_assessment",),
        ),
        Requirement(
            "documentation, data protection officer",
            "Advice of the data protection officer",
            "Keep the advice, where an officer was or had to be asked.",
            (),
            ("officer_advice",),
        ),
        Requirement(
            "documentation, measures",
            "Technical and organisational measures",
            "Keep the measures that lower the likelihood of identification "
            "over the life of the model, the model of threats, and the "
            "assessment of risks.",
            (facts.people,),
            ("measures", "access_control", "roles"),
            limits=(limits.READERS, limits.UNPROTECTED),
        ),
        Requirement(
            "documentation, resistance",
            "Proof of the theoretical and tested resistance",
            "Keep what shows the resistance in theory and in tests, and how "
            "the measure relates to the people in the data.",
            (facts.guarantee, facts.randomness),
            ("epsilon_choice", "unit_identity"),
            limits=(limits.ROUNDING,),
        ),
        Requirement(
            "documentation, information",
            "Information for deployers and for the people in the data",
            "Keep what was given to those who deploy the model and to the "
            "people in the data.",
            (),
            ("information_given",),
        ),
        Requirement(
            "legal basis",
            "Legal basis of development and use",
            "If the model is not anonymous, its use needs a basis; if "
            "development had none, that can affect the use.",
            (),
            ("legal_basis",),
            limits=(limits.JUDGEMENT,),
        ),
    ),
)
