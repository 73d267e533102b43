"""Runs of a ledger whose rounds have a given price."""

from keras_dp.ledger import Charge, Limits, PrivacyLedger, RunWriter


class Priced(Limits):
    """The limits of a run whose rounds all cost the same."""

    def __init__(self, account: str, price: Charge) -> None:
        self.account, self.price = account, price

    def charge(self, planned) -> Charge:
        return self.price


def paying(
    ledger: PrivacyLedger, account: str, price: Charge, name: str = "a"
) -> RunWriter:
    """Begins a run that pays this price, right or wrong, for each round."""
    return ledger.start_run(name, limits=Priced(account, price))
