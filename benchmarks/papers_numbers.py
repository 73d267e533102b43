"""The epsilons that three papers state, by their methods and in truth.

Each table holds what is stated, what the method of the paper gives for the
stated setting, and the truth: the least epsilon, by the tight accountant, of
the ledger that the setting means. Rows without a stated number hold the
assumptions that lead to one where the setting does not, and what else the
text can mean.

    python benchmarks/papers_numbers.py [--plot docs/images/abadi_figure_2.png]

Sources: Abadi et al. (2016), arXiv:1607.00133v2, sections 1 and 4; Nasr et
al., "Generalizable Deep Learning with Differential Privacy", the version
before arXiv:2007.11524, tables 1 and 2; van der Veen et al. (2018),
arXiv:1812.02890v1, sections 2.1 and 2.2.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from scipy import optimize

from benchmarks.strong_composition import StrongComposition
from keras_dp.accountants import RDP
from keras_dp.accountants.replay import Replay
from keras_dp.ledger import (
    GaussianSum,
    PoissonSampling,
    Round,
)

MOMENTS = RDP(conversion="moments")

Ledger: TypeAlias = list[tuple[Round, int]]


class Row(NamedTuple):
    """A setting and its epsilons.

    Attributes:
        setting: What was assumed.
        stated: Epsilon as the paper prints it; empty if it does not.
        method: Epsilon by the paper's method, computed when called.
        ledger: What the setting means.
        delta: Of all three.
        units: How often a record may be in a sample.
    """

    setting: str
    stated: str
    method: Callable[[], float] | None
    ledger: Ledger
    delta: float
    units: int = 1

    def by_method(self) -> float:
        """Returns what the method of the paper gives; NaN if it has none."""
        return math.nan if self.method is None else self.method()

    def true(self) -> float:
        """Returns the least epsilon."""
        replay = Replay(self.ledger)
        return replay.claim(units=self.units, delta=self.delta).epsilon


def ledger(rate: float, noises: Sequence[float], rounds: int) -> Ledger:
    """Returns equal rounds; sums with noises in units of their bounds."""
    sums = tuple(
        GaussianSum(f"sum {i}", 1.0, noise) for i, noise in enumerate(noises)
    )
    return [(Round(PoissonSampling(rate), sums), rounds)]


def moments(rounds: Ledger, delta: float) -> Callable[[], float]:
    """Returns a call of the accountant of all three papers."""
    return lambda: MOMENTS.epsilon(rounds, delta=delta)


# Abadi et al. (2016). The points of figure 2 whose numbers the text has.
ABADI_RATE, ABADI_NOISE, ABADI_DELTA = 0.01, 4.0, 1e-5
FIGURE_2 = {100: ("1.26", "9.34")}


def abadi_ledger(rounds: int) -> Ledger:
    """Returns the setting of section 1 and figure 2."""
    return ledger(ABADI_RATE, [ABADI_NOISE], rounds)


def first_order(rate: float, epsilon: float) -> float:
    """Amplification that is no bound, unless epsilon is next to 0."""
    return rate * epsilon


def twice_first_order(rate: float, epsilon: float) -> float:
    """Amplification that holds for epsilon <= 1, and it is 1.46 here."""
    return 2 * rate * epsilon


def exact(rate: float, epsilon: float) -> float:
    """Amplification by Poisson sampling."""
    return math.log1p(rate * math.expm1(epsilon))


def strong_composition(
    rounds: int, amplified: Callable[[float, float], float] = first_order
) -> float:
    """Strong composition of rounds at the classical price of a Gaussian.

    A round has `epsilon = sqrt(2 log(1.25 / delta)) / noise multiplier`. The
    share of delta that pays for the deviation from the mean is the best.
    """

    def epsilon(share: float) -> float:
        for_round = (1 - share) * ABADI_DELTA / (rounds * ABADI_RATE)
        price = math.sqrt(2 * math.log(1.25 / for_round)) / ABADI_NOISE
        price = amplified(ABADI_RATE, price)
        spread = 2 * rounds * math.log(1 / (share * ABADI_DELTA))
        return math.sqrt(spread) * price + rounds * price * math.expm1(price)

    best = optimize.minimize_scalar(epsilon, bounds=(1e-6, 1 - 1e-6))
    return float(best.fun)


def abadi() -> list[Row]:
    """Section 1: 1.26 against 9.34."""
    rounds, delta = abadi_ledger(10_000), ABADI_DELTA
    methods: list[tuple[str, str, Callable[[], float]]] = [
        ("moments accountant", "1.26", moments(rounds, delta)),
        (
            "strong composition, e -> q e",
            "9.34",
            lambda: strong_composition(10_000),
        ),
        (
            "the same, e -> 2 q e",
            "",
            lambda: strong_composition(10_000, twice_first_order),
        ),
        (
            "the same, e -> log(1 + q (exp(e) - 1)): valid",
            "",
            lambda: strong_composition(10_000, exact),
        ),
        (
            "the same, at the exact price of a Gaussian",
            "",
            lambda: StrongComposition().epsilon(rounds, delta=delta),
        ),
        (
            "RDP, classic conversion",
            "",
            lambda: RDP("classic").epsilon(rounds, delta=delta),
        ),
        (
            "RDP, improved conversion",
            "",
            lambda: RDP().epsilon(rounds, delta=delta),
        ),
    ]
    return [Row(*each, rounds, delta) for each in methods]


def figure_2(epochs: Sequence[int] = (10, 100, 200, 400)) -> list[Row]:
    """Figure 2: for each number of epochs, both of its curves."""
    rows = []
    for each in epochs:
        count = round(each / ABADI_RATE)
        rounds = abadi_ledger(count)
        methods = [
            ("moments", moments(rounds, ABADI_DELTA)),
            ("strong", lambda count=count: strong_composition(count)),
        ]
        stated = FIGURE_2.get(each, ("", ""))
        for (name, method), text in zip(methods, stated, strict=True):
            setting = f"{each} epochs, {name}"
            rows.append(Row(setting, text, method, rounds, ABADI_DELTA))
    return rows


# Nasr et al.: stated epsilon, noise multiplier, batch size, rounds.
NASR_DELTA = 1e-5
NASR_MNIST = [
    ("7.58", 0.7, 256, 12_000),
    ("2.68", 1.0, 256, 8_000),
    ("2.27", 1.1, 256, 8_000),
    ("1.76", 1.3, 256, 8_000),
]
NASR_CIFAR = [
    ("16.20", 0.8, 1024, 6_000),
    ("7.65", 1.0, 512, 10_000),
    ("3.80", 1.3, 512, 6_000),
]
MNIST_RECORDS, CIFAR_RECORDS = 60_000, 50_000


def nasr_row(
    setting: str, stated: str, noise: float, rate: float, rounds: int
) -> Row:
    """Returns a row of one of both tables."""
    setting = f"{setting}noise {noise:g}, {rounds} rounds"
    drawn = ledger(rate, [noise], rounds)
    return Row(setting, stated, moments(drawn, NASR_DELTA), drawn, NASR_DELTA)


def nasr_with_replacement(
    noise: float, batch: int, rounds: int, records: int
) -> Row:
    """Returns a row for what the text says was done, but not accounted.

    A record is in a batch `Bin(batch, 1/records)` times: the pair of a group
    of as many records as there are draws, sampled at that rate.
    """
    setting = f"drawn with replacement: noise {noise:g}, {rounds} rounds"
    drawn = ledger(1 / records, [noise], rounds)
    return Row(setting, "", None, drawn, NASR_DELTA, units=batch)


def nasr_mnist() -> list[Row]:
    """Table 1."""
    return [
        nasr_row("", stated, noise, batch / MNIST_RECORDS, rounds)
        for stated, noise, batch, rounds in NASR_MNIST
    ] + [
        nasr_with_replacement(noise, batch, rounds, MNIST_RECORDS)
        for _, noise, batch, rounds in NASR_MNIST
    ]


def rounds_that_give(epsilon: float, noise: float, rate: float) -> int:
    """Returns the rounds after which the method is nearest to `epsilon`."""

    def excess(rounds: float) -> float:
        drawn = ledger(rate, [noise], round(rounds))
        return MOMENTS.epsilon(drawn, delta=NASR_DELTA) - epsilon

    return round(optimize.brentq(excess, 100, 1e5, xtol=0.4))


def nasr_cifar() -> list[Row]:
    """Table 2. A microbatch of 4 or 8 examples is clipped as one.

    If microbatches, fixed beforehand, are the records then there are fewer of
    them in the data and in a sample, and the sampling probability is the
    same. An example moves the mean of its microbatch by twice the bound.
    """
    rows = [
        nasr_row("a microbatch: ", stated, noise, batch / CIFAR_RECORDS, rounds)
        for stated, noise, batch, rounds in NASR_CIFAR
    ]
    stated, noise, batch, rounds = NASR_CIFAR[0]
    rate = batch / CIFAR_RECORDS
    fewer = rounds_that_give(float(stated), noise, rate)
    rows.append(nasr_row("fewer rounds: ", "", noise, rate, fewer))
    rate = batch / MNIST_RECORDS
    rows.append(nasr_row("60,000 records: ", "", noise, rate, rounds))
    for _, noise, batch, rounds in NASR_CIFAR:
        rate = batch / CIFAR_RECORDS
        rows.append(nasr_row("an example: ", "", noise / 2, rate, rounds))
    return rows + [
        nasr_with_replacement(noise, batch, rounds, CIFAR_RECORDS)
        for _, noise, batch, rounds in NASR_CIFAR
    ]


# Van der Veen et al.: five layers, each with weights and biases.
TOOLS_RATE, TOOLS_TENSORS = 128 / 50_000, 10
TOOLS_ROUNDS = math.floor(60 / TOOLS_RATE)
TOOLS_DELTA = 50_000**-1.1
TOOLS_NOISE, TOOLS_ADAPTIVE = 0.7225, [0.725, 2.5]


def three_tools() -> list[Row]:
    """Epsilon 20 (section 2.1) and "the same privacy budget" (2.2)."""
    settings = [
        ("10 tensors", "20", [TOOLS_NOISE] * TOOLS_TENSORS),
        ("10 tensors and norms", "20 +- 0.05", TOOLS_ADAPTIVE * TOOLS_TENSORS),
        ("one bound for all tensors", "", [TOOLS_NOISE]),
        ("one bound and its norm", "", TOOLS_ADAPTIVE),
    ]
    rows = []
    for setting, stated, noises in settings:
        # As they did: every sum has a sample of its own.
        alone: Ledger = []
        for noise in noises:
            alone += ledger(TOOLS_RATE, [noise], TOOLS_ROUNDS)
        # As it was: all sums of a round saw one sample.
        joint = ledger(TOOLS_RATE, noises, TOOLS_ROUNDS)
        method = moments(alone, TOOLS_DELTA)
        rows.append(Row(setting, stated, method, joint, TOOLS_DELTA))
    return rows


TABLES: dict[str, Callable[[], list[Row]]] = {
    "Abadi et al. (2016), section 1": abadi,
    "Abadi et al. (2016), figure 2": figure_2,
    "Nasr et al., table 1, MNIST": nasr_mnist,
    "Nasr et al., table 2, CIFAR-10": nasr_cifar,
    "van der Veen et al. (2018), sums as separate samples": three_tools,
}


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def _plot(path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    epochs = range(10, 401, 10)
    rows = figure_2(epochs)
    figure, axes = plt.subplots(figsize=(6.4, 4.0), dpi=90)
    for first, label in enumerate(["moments accountant", "strong composition"]):
        values = [row.by_method() for row in rows[first::2]]
        axes.plot(epochs, values, label=label)
    axes.plot(epochs, [row.true() for row in rows[::2]], label="truth")
    axes.set(xlabel="epochs", ylabel="epsilon", ylim=(0, None))
    axes.set_title("Figure 2 of Abadi et al. (2016)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"{path}: {path.stat().st_size} bytes")


def main() -> None:
    """Prints the tables, and draws the figure if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    for title, table in TABLES.items():
        print(f"{title}\n\n| setting | stated | its method | true |")
        print("| --- | --- | --- | --- |")
        for row in table():
            values = f"{_number(row.by_method())} | {_number(row.true())}"
            print(f"| {row.setting} | {row.stated} | {values} |")
        print()
    if arguments.plot:
        _plot(arguments.plot)


if __name__ == "__main__":
    main()
