"""The sources that a line of a statement may rest on, and their meanings."""

from keras_dp._version import __version__

RECORD = "record"
COMPUTED = "computed"
DECLARED = "declared"
MEANINGS = {
    RECORD: "read from the rows that the training wrote",
    COMPUTED: f"computed from these rows by keras_dp {__version__}",
    DECLARED: "written by people, and checked by nobody",
}
