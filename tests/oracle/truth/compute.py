"""Truth values of epsilon, without any code of the package.

    python -m tests.oracle.truth.compute [name ...]

writes the missing rows of `table.json`, or those with these names anew.
"""

import json
import pathlib
import sys
import time
from collections import Counter

import mpmath as mp

from tests.oracle.truth import cases, contour

TABLE = pathlib.Path(__file__).parent / "table.json"
DIGITS = 50
AGREE = 1e-14
BENT_BELOW = 1.4


def laws(rounds, neighbours) -> list:
    """Returns pairs of what a round does to one record, and a count."""
    counts, epochs = Counter(), {}
    for each in rounds:
        cost = mp.fsum((mp.mpf(b) / mp.mpf(s)) ** 2 for b, s in each["sums"])
        sampling = each["sampling"]
        if sampling["kind"] == "disjoint":
            # A record is in one batch of an epoch: the most expensive one.
            name = sampling["epoch_id"]
            epochs[name] = max(epochs.get(name, 0), cost)
        else:
            counts[sampling.get("probability", 1.0), cost] += each["count"]
    for cost in epochs.values():
        counts[1.0, cost] += 1
    replaced = neighbours == "replace_one"
    found, unsampled = [], mp.mpf(0)
    for (q, cost), count in counts.items():
        if q == 1:
            unsampled += cost * count * (4 if replaced else 1)
        else:
            kind = contour.Replace if replaced else contour.Poisson
            found.append((kind(q, 1 / mp.sqrt(cost)), count))
    if unsampled:
        found.append((contour.Full(1 / mp.sqrt(unsampled)), 1))
    return found


def epsilon(rounds, delta, neighbours):
    """Returns lower and upper ends, the order of the pair and the method."""
    rounds = laws(rounds, neighbours)
    law, count = rounds[0]
    if len(rounds) == count == 1 and not isinstance(law, contour.Replace):
        values = {
            order: (_solve(_one_round(law, order), delta),) * 2
            for order in contour.ORDERS
        }
        method = "one round, in closed form"
    else:
        values, method = _from_contour(rounds, delta)
    order = max(values, key=lambda each: values[each][0])
    first, second = values[order]
    slack = 10 * abs(first - second) + first * mp.mpf(10) ** -16
    return min(first, second) - slack, max(first, second) + slack, order, method


def _from_contour(rounds, delta):
    composed = contour.Composition(rounds)
    bent = any(
        isinstance(law, contour.Poisson) and law.z < BENT_BELOW
        for law, _ in rounds
    )
    shapes = contour.BENT if bent else contour.STRAIGHT
    values = {"remove": _two(composed, "remove", shapes, delta)}
    name = "bent" if bent else "straight"
    method = f"{name} contour, two parameter sets"
    if any(isinstance(law, contour.Replace) for law, _ in rounds):
        return values, f"{method}; orders are mirror images"
    eps = float(values["remove"][0])
    if composed.log_bound("add", eps) < mp.log(delta) - 1e-6:
        return values, f"{method}; the other order is below by Chernoff's bound"
    values["add"] = _two(composed, "add", shapes, delta)
    return values, method


def _two(composed, order, shapes, delta):
    """Returns what the first two sets of parameters that agree say."""
    found = []
    for shape in shapes:
        try:
            value = composed.epsilon(order, shape, delta)
        except ArithmeticError as error:
            sys.stdout.write(f"  {error}: {shape}\n")
            continue
        for other in found:
            if abs(value - other) < AGREE * abs(value):
                return other, value
        found.append(value)
    raise ArithmeticError(f"no two values agree: {found}")


def _one_round(law, order):
    """Delta as a function of epsilon; loss is monotone in the output."""
    z, q = law.z, getattr(law, "q", mp.mpf(1))

    def remove(eps):
        at = mp.mpf(1) / 2 + z**2 * mp.log((mp.expm1(eps) + q) / q)
        with_record = (1 - q) * mp.ncdf(-at / z) + q * mp.ncdf((1 - at) / z)
        return with_record - mp.exp(eps) * mp.ncdf(-at / z)

    def add(eps):
        if mp.expm1(-eps) + q <= 0:
            return mp.mpf(0)
        at = mp.mpf(1) / 2 + z**2 * mp.log((mp.expm1(-eps) + q) / q)
        mixed = (1 - q) * mp.ncdf(at / z) + q * mp.ncdf((at - 1) / z)
        return mp.ncdf(at / z) - mp.exp(eps) * mixed

    return remove if order == "remove" else add


def _solve(delta_at, delta):
    """Bisection, then as many digits as there are."""
    delta = mp.mpf(delta)
    low, high = mp.mpf(0), mp.mpf(1)
    while delta_at(high) > delta:
        high *= 2
    for _ in range(int(mp.mp.prec * 1.05)):
        middle = (low + high) / 2
        if delta_at(middle) > delta:
            low = middle
        else:
            high = middle
    return high


def row(name, rounds, delta, neighbours) -> dict:
    """Returns a row of the table."""
    # Nothing may be lost where delta is a small difference.
    with mp.workdps(DIGITS + int(-mp.log10(delta))):
        start = time.perf_counter()
        low, high, order, method = epsilon(rounds, delta, neighbours)
        return {
            "name": name,
            "rounds": rounds,
            "neighbours": neighbours,
            "delta": delta,
            "lower": mp.nstr(low, 20),
            "upper": mp.nstr(high, 20),
            "relative_width": float((high - low) / high),
            "order": order,
            "method": method,
            "seconds": round(time.perf_counter() - start, 1),
        }


def main(names) -> None:
    rows = json.loads(TABLE.read_text()) if TABLE.exists() else []
    known = {each["name"]: each for each in rows}
    for case in cases.CASES:
        if case[0] in names or (not names and case[0] not in known):
            try:
                made = row(*case)
            except ArithmeticError as error:
                sys.stdout.write(f"{case[0]}: FAILED {error}\n")
                continue
            known[case[0]] = made
            sys.stdout.write(
                f"{made['name']}: {made['lower']} {made['relative_width']:.1e}"
                f" {made['order']} {made['method']} {made['seconds']} s\n"
            )
            sys.stdout.flush()
            order = [each[0] for each in cases.CASES]
            rows = [known[each] for each in order if each in known]
            TABLE.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
