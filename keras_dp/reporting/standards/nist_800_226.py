"""NIST SP 800-226: guidelines for evaluating differential privacy."""

from keras_dp.reporting import limits
from keras_dp.reporting.standards import facts
from keras_dp.reporting.standards.requirements import Requirement, Standard

# Sections of chapters are named, not numbered.
NIST_800_226 = Standard(
    "nist-800-226",
    "NIST SP 800-226, Guidelines for Evaluating Differential Privacy "
    "Guarantees (final, March 2025)",
    "The page follows the components of the differential privacy pyramid, from "
    "epsilon down to the collection of the data.",
    (
        Requirement(
            "chapter 2, privacy parameters",
            "Epsilon and delta",
            "State epsilon and delta together. Delta must be so small that a "
            "failure of the guarantee is out of the question, and epsilon so "
            "small that the promise means something.",
            (facts.guarantee,),
            ("epsilon_choice", "number_of_units"),
        ),
        Requirement(
            "chapter 2, variants",
            "The variant of the definition",
            "Name the variant of differential privacy, and what was converted "
            "into epsilon and delta.",
            (facts.accountants,),
        ),
        Requirement(
            "chapter 2, unit of privacy",
            "Whose data are protected",
            "Say in what neighbouring data sets differ: one event, or all data "
            "of a person, added or exchanged; and how much one person can "
            "contribute.",
            (facts.unit,),
            ("unit_identity",),
        ),
        Requirement(
            "chapter 2, meaning of the promise",
            "What an attacker can learn",
            "Say what the guarantee means for one person, and what it does not "
            "prevent.",
            (facts.attacker, facts.membership, facts.reconstruction),
        ),
        Requirement(
            "chapter 2, other data releases",
            "Other releases of the same data",
            "Count all releases of the same data together. Releases without "
            "noise have risks of their own, which nothing here lowers.",
            (facts.coverage,),
            ("other_releases",),
            limits=(limits.OTHER_RELEASES,),
        ),
        Requirement(
            "chapter 2, empirical measures",
            "Audits",
            "Tests can find a broken implementation. They come beside a proof, "
            "not in its place.",
            (facts.audits,),
            ("attack_tests",),
            limits=(limits.AUDITS,),
        ),
        Requirement(
            "chapter 3, algorithms and sensitivity",
            "The mechanisms and their correctness",
            "Name each mechanism, the bound on the contribution of one unit, "
            "and the noise. Take libraries that many have tested.",
            (facts.mechanisms, facts.software),
        ),
        Requirement(
            "chapter 3, machine learning",
            "Choices that were made with the data",
            "Count what was tuned, trained before or stopped by looking at the "
            "data, besides the last training.",
            (facts.choices,),
            ("tuning",),
            limits=(limits.OTHER_RUNS,),
        ),
        Requirement(
            "chapter 3, utility and accuracy",
            "Utility",
            "Say how useful the result is for its purpose, and how it was "
            "measured. A measurement on the data is a release, too.",
            (facts.metrics,),
            ("utility",),
        ),
        Requirement(
            "chapter 3, bias",
            "Bias by group",
            "Noise, clipping and corrections of odd answers hit small groups "
            "harder. Look for systemic, human and statistical bias.",
            (facts.metrics,),
            ("bias_by_group",),
        ),
        Requirement(
            "chapter 4, query models",
            "Who may ask for more",
            "Say whether further questions are answered, and what ends them "
            "when the budget is spent.",
            (facts.budget,),
            ("further_releases",),
        ),
        Requirement(
            "chapter 4, trust models",
            "The trust model",
            "Say who sees the data before the noise: a curator, users "
            "themselves, or parties that compute together.",
            (),
            ("trust_model",),
            limits=(limits.TRUSTED,),
        ),
        Requirement(
            "chapter 4, side channels",
            "Implementation and side channels",
            "Random numbers must be cryptographic. Floating-point numbers, "
            "time and memory can reveal what the noise should hide.",
            (facts.randomness,),
            ("side_channels",),
            limits=(limits.ROUNDING, limits.UNPROTECTED),
        ),
        Requirement(
            "chapter 4, access control",
            "Security of the data and access to them",
            "The guarantee is for what is released. The data themselves need "
            "security like any others.",
            (facts.people,),
            ("access_control",),
            limits=(limits.READERS,),
        ),
        Requirement(
            "chapter 4, data collection exposure",
            "Collection of the data",
            "Say what is exposed when data are collected, sent and stored, and "
            "collect no more than is needed.",
            (),
            ("data_collection",),
        ),
    ),
)
