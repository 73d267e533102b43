"""Lists of values that are counted."""

from keras_dp._counted import in_step


def test_rounds_in_step_are_those_of_the_definition() -> None:
    one, two, three = [("a", 5), ("b", 2)], [(1, 1), (2, 4), (3, 9)], [("x", 6)]

    got = [each for each, n in in_step(one, two, three) for _ in range(n)]

    columns = (
        [v for v, n in column for _ in range(n)] for column in (one, two)
    )
    assert got == [(*pair, "x") for pair in zip(*columns, strict=False)][:6]
