"""Sentences on what no number of a ledger covers, whatever it holds."""

INFERENCE = (
    "What the releases teach about people in general can affect a person whose "
    "data were never used."
)
OTHER_RELEASES = (
    "Releases of the same data that are not in this ledger come on top: "
    "metrics of validation records and choices made by them, such as when to "
    "stop; and layers, weights and settings that were adapted, trained or "
    "tuned without this ledger."
)
UNPROTECTED = (
    "The releases are protected, and nothing else: not the records, the memory "
    "of the machine, or the time that a computation takes."
)
ROUNDING = (
    "The theorems are about real numbers, and sums are floating-point numbers. "
    "That rounding moves no sum beyond its bound is proven for the rounds of "
    "which the report says so, and assumed for others. Attacks on the low bits "
    "of noised numbers are ruled out for Gaussian noise that this library "
    "drew, and not for other noise or other libraries."
)
TRUST_IN_THE_RECORD = (
    "A ledger does not prove that every release was recorded, that a unit is "
    "what its name says, or that the program did what it recorded. Whoever "
    "can write the whole ledger can forge it: keep a signed certificate where "
    "they cannot change it."
)
JUDGEMENT = (
    "Whether a risk is acceptable, and whether a law is kept, is for people to "
    "decide. No number here decides it."
)
NUMBER_OF_RECORDS = (
    "The number of records and of units is public: noise, sampling and delta "
    "are chosen by it, and with few units delta is large."
)
# A person who signs must know all of them.
LIMITS = (
    INFERENCE,
    OTHER_RELEASES,
    UNPROTECTED,
    ROUNDING,
    NUMBER_OF_RECORDS,
    TRUST_IN_THE_RECORD,
    JUDGEMENT,
)
