"""Faults planted in a training with JAX Privacy, and what its tools say.

Its tool is `auditing.CanaryScoreAuditor`, which turns scores of canaries into a
lower bound on epsilon. The attack is the user's to write; here it is one that
suits it: a canary's gradient is a unit vector of its own, in the first or the
last variable, and its score is the sum of the answers in that coordinate. A
fault is found where the lower bound exceeds the epsilon of the accountant.

Where each example's loss is computed alone, by `jax.vmap`, no loss can couple
examples: what is planted there is compared, the sum over a batch with the sums
over its halves, and the fault is said not to arise where they agree.

A state that follows its inputs is planted in a Keras model, which its Keras API
trains or refuses.
"""

import contextlib
import json
import os
from typing import Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dp_accounting
import jax
import jax.numpy as jnp
import keras
import numpy as np
from dp_accounting import pld
from jax_privacy import (
    auditing,
    batch_selection,
    clipping,
    keras_api,
    noise_addition,
)

CANARIES, RECORDS, ROUNDS = 2000, 100, 5
NOISE, CLIP, PROBABILITY, DELTA = 1.0, 1.0, 0.5, 1e-5
NUMBERS = np.random.default_rng(0)


def loss(weights: Any, record: Any) -> Any:
    """The loss of a batch of records; canaries pull at coordinates."""
    x, y, place = record["x"], record["y"], record["place"]
    apart = x @ weights["first"][:3] - y
    flat = jnp.concatenate([weights["first"][3:], weights["last"]])
    pulled = 10 * jnp.where(place >= 0, flat[jnp.maximum(place, 0)], 0.0)
    return jnp.mean(apart**2 + pulled)


def coupled(layer: bool) -> Any:
    """Returns a loss that is meant to couple the examples of a batch."""

    def of(weights: Any, record: Any) -> Any:
        if layer:
            x = record["x"] - record["x"].mean(axis=0) + 1e-3
            return loss(weights, {**record, "x": x})
        found = loss(weights, record)
        return found * jax.lax.stop_gradient(found)

    return of


def gradients(of: Any = loss) -> Any:
    """Returns JAX Privacy's sum of clipped gradients."""
    return clipping.clipped_grad(of, l2_clip_norm=CLIP, batch_argnums=1)


def records(inside: Any) -> dict[str, Any]:
    """Returns the data set with those canaries that are in."""
    place = np.concatenate([np.full(RECORDS, -1), np.flatnonzero(inside)])
    x = np.zeros([len(place), 3], np.float32)
    x[:RECORDS] = NUMBERS.normal(size=[RECORDS, 3])
    return {"x": x, "y": x.sum(axis=1), "place": place}


def audit(
    *, fixed: bool = False, told: float = NOISE, counted: bool = False
) -> str:
    """Trains with canaries, and returns whether the bounds contradict."""
    inside = NUMBERS.random(CANARIES) < 0.5
    data = records(inside)
    size = len(data["place"])
    half = CANARIES // 2
    weights = {"first": jnp.zeros(3 + half), "last": jnp.zeros(half)}
    privatizer = noise_addition.gaussian_privatizer(
        stddev=NOISE * CLIP, prng_key=jax.random.key(0)
    )
    state = privatizer.init(weights)
    expected = round(PROBABILITY * size)
    strategy = (
        batch_selection.FixedBatchSampling(expected, ROUNDS)
        if fixed
        else batch_selection.CyclicPoissonSampling(PROBABILITY, ROUNDS)
    )
    scores = np.zeros(CANARIES)
    compute = gradients()
    for rows in strategy.batch_iterator(size, NUMBERS):
        sample = {name: leaf[rows] for name, leaf in data.items()}
        total = compute(weights, sample)
        if counted:
            share = expected / len(rows)
            total = {name: share * leaf for name, leaf in total.items()}
        answer, state = privatizer.update(total, state)
        scores += np.concatenate([answer["first"][3:], answer["last"]])
    accountant = pld.PLDAccountant()
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(
            PROBABILITY, dp_accounting.GaussianDpEvent(told)
        ),
        ROUNDS,
    )
    auditor = auditing.CanaryScoreAuditor(scores[inside], scores[~inside])
    lower = auditor.epsilon_from_gdp(0.05, DELTA)
    upper = accountant.get_epsilon(DELTA)
    verdict = f"{lower:.1f} against {upper:.1f}"
    return f"canaries ({verdict})" if lower > upper else f"no ({verdict})"


def couples(of: Any) -> str:
    """Returns whether examples are coupled at all."""
    data = records(np.zeros(CANARIES, bool))
    half = CANARIES // 2
    weights = {"first": jnp.ones(3 + half), "last": jnp.zeros(half)}
    whole, *parts = (
        gradients(of)(weights, jax.tree.map(lambda leaf, r=rows: leaf[r], data))
        for rows in (slice(None), slice(0, 50), slice(50, None))
    )
    together = jax.tree.map(jnp.add, *parts)
    same = jax.tree.map(
        lambda a, b: jnp.allclose(a, b, 1e-3, 1e-3), whole, together
    )
    return "does not arise" if all(jax.tree.leaves(same)) else "no"


class MovingMean(keras.layers.Layer):
    """A layer whose state follows its inputs."""

    def build(self, shape: Any) -> None:
        """Makes the state."""
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Moves the state in training."""
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * inputs.mean(axis=0))
        return inputs


def trains_with_state() -> str:
    """Returns whether the Keras API refuses a state that follows inputs."""
    state = MovingMean()
    model = keras.Sequential([keras.Input((3,)), state, keras.layers.Dense(1)])
    parameters = keras_api.DPKerasConfig(
        epsilon=3.0,
        delta=DELTA,
        clipping_norm=CLIP,
        batch_size=20,
        gradient_accumulation_steps=1,
        train_steps=10,
        train_size=RECORDS * 2,
        noise_multiplier=NOISE,
    )
    x = NUMBERS.normal(size=[RECORDS * 2, 3]).astype("float32") + 1
    try:
        model = keras_api.make_private(model, parameters)
        model.compile("sgd", "mse")
        model.fit(x, x[:, :1], batch_size=20, epochs=1, verbose=0)
    except Exception as error:  # noqa: BLE001 - a refusal of any kind counts.
        return f"training ({type(error).__name__})"
    moved = bool(np.any(np.asarray(state.mean)))
    return "no" if moved else "does not arise"


def last_unclipped(clip: Any) -> Any:
    """Returns a clip that leaves out the last variable."""

    def clipped(tree: Any, *args: Any, **options: Any) -> Any:
        found, norm = clip(tree, *args, **options)
        return {**found, "last": tree["last"]}, norm

    return clipped


def patched(owner: Any, name: str, changed: Any) -> Any:
    """Returns a patch of a function by `changed(it)`."""
    return mock.patch.object(owner, name, changed(getattr(owner, name)))


def main() -> None:
    """Prints what is found of each fault."""
    noise = "_iid_normal_noise"
    halved = patched(
        noise_addition,
        noise,
        lambda f: lambda key, tree, s, *rest: f(key, tree, s / 2, *rest),
    )
    again = patched(
        noise_addition,
        noise,
        lambda f: lambda key, *rest: f(jax.random.key(0), *rest),
    )
    unclipped = patched(clipping, "clip_pytree", last_unclipped)
    plain: Any = contextlib.nullcontext()
    plants = {
        "none": (plain, {}),
        "noise is halved": (halved, {}),
        "a seed is used in every round": (again, {}),
        "the last variable is not clipped": (unclipped, {}),
        "the sum is divided by the number of records": (
            plain,
            {"counted": True},
        ),
        "samples have a fixed size": (plain, {"fixed": True}),
        "the ledger holds twice the noise": (plain, {"told": 2 * NOISE}),
    }
    found = {}
    for name, (plant, options) in plants.items():
        with plant:
            found[name] = audit(**options)
    found["a layer computes over the batch"] = couples(coupled(layer=True))
    found["a loss computes over the batch"] = couples(coupled(layer=False))
    found["the state of a layer follows its inputs"] = trains_with_state()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
