"""NIST SP 800-226: guidelines for evaluating differential privacy."""

from keras_dp.reporting.standards.requirements import standard

# Sections of chapters are named, not numbered.
NIST_800_226 = standard(
    "nist-800-226",
    """
NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees
(final, March 2025)

The page follows the components of the differential privacy pyramid, from
epsilon down to the collection of the data.

chapter 2, privacy parameters: Epsilon and delta
State epsilon and delta together. Delta must be so small that a failure of the
guarantee is out of the question, and epsilon so small that the promise means
something.
-> guarantee, epsilon_choice, number_of_units

chapter 2, variants: The variant of the definition
Name the variant of differential privacy, and what was converted into epsilon
and delta.
-> accountants

chapter 2, unit of privacy: Whose data are protected
Say in what neighbouring data sets differ: one event, or all data of a person,
added or exchanged; and how much one person can contribute.
-> unit, unit_identity

chapter 2, meaning of the promise: What an attacker can learn
Say what the guarantee means for one person, and what it does not prevent.
-> attacker, membership, reconstruction

chapter 2, other data releases: Other releases of the same data
Count all releases of the same data together. Releases without noise have risks
of their own, which nothing here lowers.
-> coverage, other_releases, OTHER_RELEASES

chapter 2, empirical measures: Audits
Tests can find a broken implementation. They come beside a proof, not in its
place.
-> audits, attack_tests, AUDITS

chapter 3, algorithms and sensitivity: The mechanisms and their correctness
Name each mechanism, the bound on the contribution of one unit, and the noise.
Take libraries that many have tested.
-> mechanisms, software

chapter 3, machine learning: Choices that were made with the data
Count what was tuned, trained before or stopped by looking at the data, besides
the last training.
-> choices, tuning, OTHER_RUNS

chapter 3, utility and accuracy: Utility
Say how useful the result is for its purpose, and how it was measured. A
measurement on the data is a release, too.
-> metrics, utility

chapter 3, bias: Bias by group
Noise, clipping and corrections of odd answers hit small groups harder. Look
for systemic, human and statistical bias.
-> metrics, bias_by_group

chapter 4, query models: Who may ask for more
Say whether further questions are answered, and what ends them when the budget
is spent.
-> budget, further_releases

chapter 4, trust models: The trust model
Say who sees the data before the noise: a curator, users themselves, or parties
that compute together.
-> trust_model, TRUSTED

chapter 4, side channels: Implementation and side channels
Random numbers must be cryptographic. Floating-point numbers, time and memory
can reveal what the noise should hide.
-> randomness, side_channels, ROUNDING, UNPROTECTED

chapter 4, access control: Security of the data and access to them
The guarantee is for what is released. The data themselves need security like
any others.
-> people, access_control, READERS

chapter 4, data collection exposure: Collection of the data
Say what is exposed when data are collected, sent and stored, and collect no
more than is needed.
-> data_collection
""",
)
