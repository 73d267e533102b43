"""Sums of many exponentials, in many digits."""

import mpmath as mp

try:  # Ten times faster; not needed.
    import flint
except ImportError:
    flint = None


class Nodes:
    """`K(a) = sum_j weights_j e^(a logs_j)`."""

    def __init__(self, logs, weights) -> None:
        if flint:
            flint.ctx.prec = mp.mp.prec
            logs = [_to_flint(each) for each in logs]
            weights = [_to_flint(each) for each in weights]
        self.logs, self.weights = logs, weights

    def moment(self, a):
        pairs = zip(self.logs, self.weights, strict=True)
        if not flint:
            return mp.fsum([weight * mp.exp(a * log) for log, weight in pairs])
        flint.ctx.prec = mp.mp.prec
        a, total = _to_flint(a), flint.acb(0)
        for log, weight in pairs:
            total += weight * (a * log).exp()
        parts = (total.real.mid().man_exp(), total.imag.mid().man_exp())
        return mp.mpc(*(mp.ldexp(*map(int, part)) for part in parts))


def _to_flint(x):
    x = mp.mpc(x)
    parts = []
    for part in (x.real, x.imag):
        sign, mantissa, exponent, _ = part._mpf_
        mantissa = -int(mantissa) if sign else int(mantissa)
        parts.append(flint.arb((mantissa, int(exponent))))
    return flint.acb(*parts)
