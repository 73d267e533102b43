"""Faults in the library, planted one at a time: an audit must find each."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp import dp_queries, ledger
from keras_dp.dp_queries import nested_query
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.discrete import encoded_sum_query
from keras_dp.dp_queries.gaussian import gaussian_query
from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
)
from keras_dp.gradients.records.records import MaterializedRecords
from keras_dp.ledger import CoordinateBounds
from keras_dp.ledger.events.noise_families import StudentTNoise
from keras_dp.ledger.rows import reservation
from keras_dp.noise import samplers, seeds
from keras_dp.optimizers import dp_optimizer, private_round
from keras_dp.sampling import (
    FixedMicrobatches,
    FixedSizeBatches,
    PoissonBatches,
    RandomMicrobatches,
    ShuffledBatches,
    UserBatches,
    layouts,
    sampler,
    user_batches,
)
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.spending import recording
from keras_dp.training.metrics import side_queries
from keras_dp.training.step import batch_computation, sample_sums
from tests.audited import X, Y, average, samples, training

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A fault.

    Attributes:
        where: The part of the library.
        plant: Puts it there.
        train: Makes the training that has it.
        source: Makes its samples.
        records: How many records are looked at: more for a fault that shows
            in some of them only.
    """

    where: str
    plant: Plant
    train: Callable[[], Any] = training
    source: Callable[[], Any] = samples
    records: int = 2


MUTANTS: dict[str, Mutant] = {}


def mutant(
    where: str,
    name: str,
    train: Callable[[], Any] = training,
    source: Callable[[], Any] = samples,
    records: int = 2,
) -> Callable[[Plant], Plant]:
    """Adds a fault to the catalogue."""

    def added(plant: Plant) -> Plant:
        assert name not in MUTANTS
        MUTANTS[name] = Mutant(where, plant, train, source, records)
        return plant

    return added


def around(patch: Patch, owner: Any, name: str, changed: Any) -> None:
    """Replaces a function by `changed(it)`."""
    patch.setattr(owner, name, changed(getattr(owner, name)))


# Clipping.


@mutant("clip", "records are not clipped")
def _(patch):
    patch.setattr(records_lib, "clip_factors", lambda n, c: tf.ones_like(n))


@mutant("clip", "the clip is twice that of the ledger")
def _(patch):
    around(
        patch, records_lib, "clip_factors", lambda f: lambda n, c: f(n, 2 * c)
    )


@mutant("clip", "the clip is 1 % above that of the ledger")
def _(patch):
    around(
        patch,
        records_lib,
        "clip_factors",
        lambda f: lambda n, c: f(n, 1.01 * c),
    )


@mutant("clip", "records that are not finite are kept")
def _(patch):
    clip_factors = records_lib.clip_factors

    def factors(norms, clip):
        known = clip_factors(norms, clip)
        return tf.where(tf.math.is_finite(norms), known, tf.ones_like(norms))

    patch.setattr(records_lib, "clip_factors", factors)


@mutant("clip", "padding counts as records")
def _(patch):
    patch.setattr(records_lib, "masked", lambda weights, mask: weights)


@mutant("clip", "the norm is that of the first variable alone")
def _(patch):
    patch.setattr(records_lib, "joint_norms", lambda each: each[0])


@mutant("clip", "the last variable is not clipped")
def _(patch):
    def clipped(records, norms, clip, mask, gamma=None):
        leaves = tf.nest.flatten(records)
        factors = records_lib.masked(
            records_lib.clip_factors(norms, clip), mask
        )
        bare = records_lib.masked(tf.ones_like(factors), mask)
        sums = [records_lib.weighted_sum(leaf, factors) for leaf in leaves[:-1]]
        sums.append(records_lib.weighted_sum(leaves[-1], bare))
        return tf.nest.pack_sequence_as(records, sums)

    patch.setattr(records_lib, "clipped_sum", clipped)


@mutant("clip", "each variable is clipped to the whole clip")
def _(patch):
    def clipped(records, norms, clip, mask, gamma=None):
        def own(leaf):
            factors = records_lib.clip_factors(records_lib.norms([leaf]), clip)
            return records_lib.weighted_sum(
                leaf, records_lib.masked(factors, mask)
            )

        return tf.nest.map_structure(own, records)

    patch.setattr(records_lib, "clipped_sum", clipped)


@mutant("clip", "the sum is clipped instead of the records")
def _(patch):
    def clipped(records, norms, clip, mask, gamma=None):
        ones = records_lib.masked(tf.ones_like(norms), mask)
        sums = tf.nest.map_structure(
            lambda leaf: records_lib.weighted_sum(leaf, ones), records
        )
        size = tf.linalg.global_norm(tf.nest.flatten(sums))
        factor = tf.minimum(1.0, tf.cast(20 * clip, size.dtype) / size)
        return tf.nest.map_structure(lambda leaf: leaf * factor, sums)

    patch.setattr(records_lib, "clipped_sum", clipped)


@mutant("clip", "the sum is divided by the number of records")
def _(patch):
    def counted(clipped):
        def divided(records, norms, clip, mask, gamma=None):
            count = tf.reduce_sum(records_lib.masked(tf.ones_like(norms), mask))
            sums = clipped(records, norms, clip, mask, gamma)
            return tf.nest.map_structure(
                lambda leaf: 20 * leaf / tf.cast(count, leaf.dtype), sums
            )

        return divided

    around(patch, records_lib, "clipped_sum", counted)


@mutant("clip", "norms are rounded to whole numbers")
def _(patch):
    around(
        patch,
        records_lib,
        "clip_factors",
        lambda f: lambda n, c: f(tf.floor(n), c),
    )


@mutant(
    "clip",
    "a joint clip forgets the scales of its groups",
    lambda: training(
        query=dp_queries.JointClipQuery(
            {"hidden": 0.1, "head": 3.0},
            1.0,
            noise_multiplier=1.0,
            denominator=20,
        ),
        groups={"hidden": "*hidden/*", "head": "*head/*"},
    ),
)
def _(patch):
    patch.setattr(records_lib, "joint_norms", lambda each: each[-1])


def encoded():
    """Returns a training with Student's noise on encoded gradients."""
    bounds = CoordinateBounds.from_vectors([[1.0] * 21, [3.0] * 3 + [0.1] * 18])
    query = dp_queries.EncodedSumQuery(bounds, StudentTNoise(1.0, 4.0))
    return training(query=dp_queries.NormalizedQuery(query, 20))


@mutant("clip", "encoded records are not encoded", encoded)
def _(patch):
    patch.setattr(encoded_sum_query, "_encoded", lambda rows, bounds: rows)


@mutant(
    "clip",
    "a microbatch counts as one record of the unit",
    source=lambda: samples(microbatches=RandomMicrobatches(size=2)),
    records=100,  # The pairs are random, and so is what a record changes.
)
def _(patch):
    patch.setattr(layouts.Slots, "bound_factor", 1)


@mutant(
    "clip",
    "records of earlier physical batches count twice",
    source=lambda: samples(physical_batch_size=8),
)
def _(patch):
    around(
        patch,
        sample_sums.SampleSums,
        "read",
        lambda f: (
            lambda self: tf.nest.map_structure(lambda leaf: 2 * leaf, f(self))
        ),
    )


def around_batches(patch, changed):
    """Replaces what is computed on samples and on parts by `changed(it)`."""
    for name in ("of_sample", "of_part"):
        around(patch, batch_computation.BatchComputation, name, changed)


def in_later_batches(patch, change):
    """Applies a change to what later physical batches add to their sample.

    Args:
        patch: Undoes it.
        change: Takes a patch that ends with the batch.
    """

    def changed(of_part):
        def of(self, data, mask, grouping, is_first):
            whole_add = self._add

            def add(*given):
                def faulty():
                    with pytest.MonkeyPatch.context() as own:
                        change(own)
                        return whole_add(*given)[1]

                result, sums = whole_add(*given)
                return result, tf.cond(is_first, lambda: sums, faulty)

            with pytest.MonkeyPatch.context() as whole:
                whole.setattr(self, "_add", add)
                return of_part(self, data, mask, grouping, is_first)

        return of

    around(patch, batch_computation.BatchComputation, "of_part", changed)


@mutant("clip", "sums of earlier physical batches count twice")
def _(patch):
    MUTANTS["records of earlier physical batches count twice"].plant(patch)


@mutant("clip", "later physical batches are not clipped")
def _(patch):
    in_later_batches(patch, MUTANTS["records are not clipped"].plant)


@mutant("clip", "padding of later physical batches counts as records")
def _(patch):
    in_later_batches(patch, MUTANTS["padding counts as records"].plant)


# Gradients.


@mutant("gradients", "norms of kernels are halved")
def _(patch):
    around(
        patch,
        OuterProductRecords,
        "squared_norms",
        lambda f: lambda self: f(self) / 4,
    )


@mutant("gradients", "norms of biases are forgotten")
def _(patch):
    around(
        patch,
        MaterializedRecords,
        "squared_norms",
        lambda f: lambda self: tf.zeros_like(f(self)),
    )


@mutant("gradients", "kernels are summed without their clip")
def _(patch):
    around(
        patch,
        OuterProductRecords,
        "weighted_sum",
        lambda f: lambda self, w: f(self, tf.ones_like(w)),
    )


@mutant("gradients", "losses are scaled by the number of records")
def _(patch):
    def scaled(losses):
        def of(self, *args, **options):
            found = losses(self, *args, **options)
            spread = 1 + tf.math.reduce_std(tf.stop_gradient(found.total))
            return found._replace(total=found.total * spread)

        return of

    around(patch, batch_computation.BatchComputation, "losses", scaled)


class CentredOnBatch(keras.layers.Layer):
    """A layer of a user's own, in which records interact."""

    def call(self, inputs):
        return inputs - keras.ops.mean(inputs, axis=0)


def centred(**options):
    """Returns a training of a model with such a layer."""
    layers = keras.layers
    stack = [keras.Input((3,)), CentredOnBatch(), layers.Dense(1)]
    return training(keras.Sequential(stack), **options)


@mutant("user", "a layer computes over the batch", centred)
def _(patch):
    pass  # The fault is in the model.


@mutant(
    "user",
    "a layer computes over the batch, and the self-check is off",
    lambda: centred(self_check_examples=0),
)
def _(patch):
    pass


class CentredOnLargeBatch(keras.layers.Layer):
    """A layer in which the records of large batches interact."""

    def call(self, inputs):
        """Subtracts the mean where a batch has more than 16 rows."""
        if inputs.shape[0] is None or inputs.shape[0] <= 16:
            return inputs
        return inputs - keras.ops.mean(inputs, axis=0)


class ScaledByOutliers(keras.layers.Layer):
    """A layer in which a record far away moves the others."""

    def call(self, inputs):
        """Counts the entries far away."""
        far = keras.ops.cast(keras.ops.abs(inputs) > 100, inputs.dtype)
        return inputs * (1 + 0.01 * keras.ops.sum(far))


def behind(layer):
    """Returns a training of a model with a layer in front."""
    layers = keras.layers
    stack = [keras.Input((3,)), layer, layers.Dense(1)]
    return training(keras.Sequential(stack))


@mutant(
    "user",
    "a layer computes over batches of more than 16 rows",
    lambda: behind(CentredOnLargeBatch()),
)
def _(patch):
    pass


@mutant(
    "user",
    "a layer scales a batch by how many records are far",
    lambda: behind(ScaledByOutliers()),
)
def _(patch):
    pass


def loss_over_batch(targets, outputs):
    """A loss in which records interact."""
    apart = keras.ops.square(targets - outputs)
    return apart * keras.ops.mean(apart)


@mutant(
    "user",
    "a loss computes over the batch",
    lambda: training(loss=loss_over_batch),
)
def _(patch):
    pass


class RealizedAverage(dp_queries.GaussianAverageQuery):
    """A query of a user's own, which divides by how many records came."""

    def accumulate_records(self, params, sample_state, records, mask=None):
        """Returns the sum, over the number of its records."""
        total = super().accumulate_records(params, sample_state, records, mask)
        count = tf.reduce_sum(tf.cast(mask, tf.float64))
        return tf.nest.map_structure(
            lambda leaf: tf.cast(
                8 * tf.cast(leaf, tf.float64) / count, leaf.dtype
            ),
            total,
        )


@mutant(
    "user",
    "a query divides by the number of its records",
    lambda: training(
        query=RealizedAverage(1.0, noise_multiplier=1.0, denominator=20)
    ),
)
def _(patch):
    pass


class QuietAverage(dp_queries.GaussianAverageQuery):
    """A query of a user's own, with less noise than it says."""

    def get_noised_result(self, sample_state, global_state):
        """Returns the answer, half way to the bare one."""
        result = super().get_noised_result(sample_state, global_state)
        spacing = self.derive_sample_params(global_state).spacing
        factor = tf.cast(spacing / self.denominator, tf.float32)
        value = tf.nest.map_structure(
            lambda noised, bare: (
                (noised + tf.cast(bare, noised.dtype) * factor) / 2
            ),
            result.value,
            sample_state,
        )
        return result._replace(value=value)


@mutant(
    "user",
    "a query takes half of the noise away again",
    lambda: training(
        query=QuietAverage(1.0, noise_multiplier=1.0, denominator=20)
    ),
)
def _(patch):
    pass


# Noise.


def scaled_noise(factor):
    """Returns a plant that multiplies Gaussian noise."""

    def plant(patch):
        around(
            patch,
            seeds,
            "rounded_normals_and_seed",
            lambda f: lambda leaves, seed, s: f(leaves, seed, factor * s),
        )

    return plant


mutant("noise", "noise is halved")(scaled_noise(0.5))
mutant("noise", "noise is 2 % too small")(scaled_noise(0.98))
mutant("noise", "there is no noise")(scaled_noise(0.0))


def changed_noise(change):
    """Returns a plant that changes each leaf of the noise."""
    unit = 2.0**-24

    def whole(noise):
        return tf.cast(tf.round(noise / unit), tf.int32)

    def plant(patch):
        def changed(normals_and_seed):
            def drawn(leaves, seed, stddev):
                noise, following = normals_and_seed(leaves, seed, stddev)
                own = [
                    whole(change(unit * tf.cast(each, s.dtype), unit * s))
                    for each in noise
                    for s in [tf.cast(stddev, tf.float64)]
                ]
                return own, following

            return drawn

        around(patch, seeds, "rounded_normals_and_seed", changed)

    return plant


mutant("noise", "noise is cut off at three standard deviations")(
    changed_noise(lambda noise, s: tf.clip_by_value(noise, -3 * s, 3 * s))
)
mutant("noise", "half of the noise beyond three standard deviations is lost")(
    changed_noise(
        lambda noise, s: tf.where(
            (tf.abs(noise) > 3 * s) & (tf.math.floormod(noise, 0.02) < 0.01),
            tf.math.floormod(noise, s),
            noise,
        )
    )
)
mutant("noise", "noise is Laplacian, of the same variance")(
    changed_noise(
        lambda noise, s: (
            -s
            / np.sqrt(2)
            * tf.sign(noise)
            * tf.math.log(tf.math.erfc(tf.abs(noise) / s / np.sqrt(2)))
        )
    )
)
mutant("noise", "all coordinates of a variable share one draw")(
    changed_noise(
        lambda noise, s: tf.zeros_like(noise) + tf.reshape(noise, [-1])[0]
    )
)
mutant("noise", "half of the noise is the other half with its sign changed")(
    changed_noise(
        lambda noise, s: tf.reshape(
            tf.concat(
                [
                    tf.reshape(noise, [-1])[
                        : tf.size(noise) - tf.size(noise) // 2
                    ],
                    -tf.reshape(noise, [-1])[: tf.size(noise) // 2],
                ],
                0,
            ),
            tf.shape(noise),
        )
    )
)
mutant("noise", "noise is rounded to a coarse grid")(
    changed_noise(lambda noise, s: tf.round(noise / s * 8) / 8 * s)
)

mutant("noise", "the last coordinate of a variable has no noise")(
    changed_noise(
        lambda noise, s: (
            tf.reshape(
                tf.concat(
                    [
                        tf.reshape(noise, [-1])[:-1],
                        0 * tf.reshape(noise, [-1])[-1:],
                    ],
                    0,
                ),
                tf.shape(noise),
            )
            if noise.shape.rank
            else noise
        )
    )
)
mutant("noise", "two coordinates of a variable share one draw")(
    changed_noise(
        lambda noise, s: (
            tf.reshape(
                tf.concat(
                    [
                        tf.reshape(noise, [-1])[:-1],
                        -tf.reshape(noise, [-1])[:1],
                    ],
                    0,
                ),
                tf.shape(noise),
            )
            if noise.shape.rank
            else noise
        )
    )
)


def noise_by(factor):
    """Returns a plant that scales noise by a function of the sum and the seed.

    Args:
        factor: From the norm of the sum, in standard deviations of its noise,
            and the seed.
    """

    def plant(patch):
        def scaled(normals_and_seed):
            def drawn(leaves, seed, stddev):
                in_steps = [tf.cast(leaf, stddev.dtype) for leaf in leaves]
                size = tf.linalg.global_norm(in_steps) / stddev
                by = tf.cast(factor(size, seed), stddev.dtype)
                return normals_and_seed(leaves, seed, stddev * by)

            return drawn

        around(patch, seeds, "rounded_normals_and_seed", scaled)

    return plant


mutant("noise", "noise is scaled by the norm of the sum")(
    noise_by(lambda size, seed: 1 + 0.01 * size)
)
mutant("noise", "noise is scaled by the norm of the sum, up to its own size")(
    noise_by(lambda size, seed: tf.minimum(tf.ones_like(size), size))
)
mutant("noise", "large sums get half of the noise")(
    noise_by(lambda size, seed: tf.where(size > 100, 0.5, 1.0))
)
mutant("noise", "an empty sample gets no noise")(
    noise_by(lambda size, seed: tf.where(size == 0, 0.0, 1.0))
)
mutant("noise", "one seed in a hundred gives no noise")(
    noise_by(
        lambda size, seed: tf.where(
            tf.math.floormod(seed[0], 100) == 0, 0.0, 1.0
        )
    )
)


@mutant("noise", "the loss gets 2 % less noise")
def _(patch):
    around(
        patch,
        seeds,
        "rounded_normals_and_seed",
        lambda f: (
            lambda leaves, seed, s: f(
                leaves, seed, s if len(leaves) > 1 else 0.98 * s
            )
        ),
    )


@mutant("noise", "three seeds take turns")
def _(patch):
    def turning(normals_and_seed):
        def drawn(leaves, seed, stddev):
            noise, _ = normals_and_seed(leaves, seed, stddev)
            place = tf.math.floormod(seed[0], 3)
            known = tf.constant([4, 5, 6, 0], tf.int64)
            return noise, known + tf.stack([1 - place % 2 + place, 0, 0, 0])

        return drawn

    around(patch, seeds, "rounded_normals_and_seed", turning)


@mutant("noise", "a round takes half of the noise away again")
def _(patch):
    def quieter(release):
        def released(self, sample, state, variables, planned):
            found = release(self, sample, state, variables, planned)
            query, of = self.queries["gradients"], state["gradients"]
            factor = query.derive_sample_params(of).spacing / 20
            own = [
                (
                    noised
                    + tf.cast(
                        tf.cast(bare, factor.dtype) * factor, noised.dtype
                    )
                )
                / 2
                for noised, bare in zip(
                    found.gradients,
                    tf.nest.flatten(sample["gradients"]),
                    strict=True,
                )
            ]
            return found._replace(gradients=own)

        return released

    around(patch, private_round.PrivateRound, "release", quieter)


@mutant("noise", "a sample of several physical batches gets half of the noise")
def _(patch):
    def halved(of_sums):
        def of(self, planned):
            with pytest.MonkeyPatch.context() as own:
                scaled_noise(0.5)(own)
                # Both share one trace of the release. This makes its own.
                own.setattr(self, "_release", None)
                return of_sums(self, planned)

        return of

    around(patch, batch_computation.BatchComputation, "of_sums", halved)


@mutant("noise", "a seed is used in every round")
def _(patch):
    around(
        patch,
        seeds,
        "rounded_normals_and_seed",
        lambda f: lambda leaves, seed, s: (f(leaves, seed, s)[0], seed),
    )


@mutant("noise", "the seed is put back after a round")
def _(patch):
    around(
        patch,
        gaussian_query.GaussianQuery,
        "get_noised_result",
        lambda f: (
            lambda self, sample, state: f(self, sample, state)._replace(
                global_state=state
            )
        ),
    )


@mutant("noise", "all seeds are one constant")
def _(patch):
    patch.setattr(
        seeds, "fresh", lambda seed: tf.constant([1, 2, 3, 4], tf.int64)
    )


@mutant("noise", "gradients and metrics have one seed")
def _(patch):
    def states(self, seed):
        own = seeds.fresh(None)
        patch.setattr(seeds, "fresh", lambda seed: own)
        found = {
            name: query.initial_global_state()
            for name, query in self.queries.items()
        }
        patch.undo()
        return found

    patch.setattr(private_round.PrivateRound, "initial_state", states)


@mutant("noise", "Student's noise is halved", encoded)
def _(patch):
    around(
        patch,
        samplers,
        "sample",
        lambda f: lambda *args: f(*args) / 2,
    )


@mutant("noise", "Student's noise is Gaussian", encoded)
def _(patch):
    kept = samplers.sample
    patch.setattr(
        samplers,
        "sample",
        lambda noise, like, seed: kept(ledger.GaussianNoise(1.0), like, seed),
    )


def adaptive():
    """Returns a training whose clip follows a quantile."""
    query = dp_queries.QuantileAdaptiveClipSumQuery(
        1.0, 1.0, 0.5, 0.2, clipped_count_stddev=2.0, expected_num_records=20
    )
    return training(query=dp_queries.NormalizedQuery(query, 20))


@mutant("noise", "an adaptive clip counts without noise", adaptive)
def _(patch):
    around(
        patch,
        seeds,
        "rounded_normals_and_seed",
        lambda f: (
            lambda leaves, seed, s: f(
                leaves,
                seed,
                0.0 * s if leaves[0].dtype == tf.float64 else s,
            )
        ),
    )


@mutant("noise", "the answer is a mean of noised and bare")
def _(patch):
    def mixed(release):
        def get(self, sample_state, global_state):
            result = release(self, sample_state, global_state)
            spacing = self.derive_sample_params(global_state).spacing
            value = tf.nest.map_structure(
                lambda a, b: (
                    0.5
                    * (a + tf.cast(spacing / 20, a.dtype) * tf.cast(b, a.dtype))
                ),
                result.value,
                sample_state,
            )
            return result._replace(value=value)

        return get

    around(patch, gaussian_query.GaussianQuery, "get_noised_result", mixed)


# What the ledger holds.


def changed_event(**factors):
    """Returns a plant that changes the numbers of Gaussian events."""

    def plant(patch):
        def changed(ledger_events):
            def events(self, event, name="records"):
                return tuple(
                    dataclasses.replace(
                        each,
                        **{k: f * getattr(each, k) for k, f in factors.items()},
                    )
                    for each in ledger_events(self, event, name)
                )

            return events

        around(
            patch,
            gaussian_query.GaussianQuery,
            "ledger_events",
            changed,
        )

    return plant


mutant("ledger", "the ledger holds half of the bound")(
    changed_event(l2_norm_bound=0.5)
)
mutant("ledger", "the ledger holds twice the noise")(
    changed_event(noise_stddev=2.0)
)
mutant("ledger", "the ledger holds 2 % more noise")(
    changed_event(noise_stddev=1.02)
)
mutant("ledger", "the ledger holds both in another unit")(
    changed_event(l2_norm_bound=0.1, noise_stddev=0.1)
)


@mutant("ledger", "the ledger holds no event of the metrics")
def _(patch):
    around(
        patch,
        private_round.PrivateRound,
        "ledger_events",
        lambda f: lambda self, *args: f(self, *args)[:1],
    )


@mutant(
    "ledger",
    "the ledger holds one event of two groups",
    lambda: training(
        query=dp_queries.NestedQuery(
            {"hidden": average(0.5), "head": average(2.0)}
        ),
        groups={"hidden": "*hidden/*", "head": "*head/*"},
    ),
)
def _(patch):
    around(
        patch,
        nested_query.NestedQuery,
        "ledger_events",
        lambda f: lambda self, *args: f(self, *args)[:1],
    )


@mutant("ledger", "a round is not reserved")
def _(patch):
    patch.setattr(recording.RoundRecorder, "cover", lambda self: None)


@mutant("ledger", "a round is recorded after it ran")
def _(patch):
    cover = recording.RoundRecorder.cover
    patch.setattr(recording.RoundRecorder, "cover", lambda self: None)
    around(
        patch,
        recording.RoundRecorder,
        "released",
        lambda f: lambda self, event: (cover(self), f(self, event)),
    )


@mutant("ledger", "a round that ran is given back")
def _(patch):
    around(
        patch,
        reservation.Reservation,
        "settle",
        lambda f: lambda self, used: f(self, 0),
    )


@mutant("ledger", "the ledger holds half of the sampling probability")
def _(patch):
    def halved(planned_round):
        def planned(self, event, sampling, **options):
            if isinstance(sampling, ledger.PoissonSampling):
                sampling = dataclasses.replace(
                    sampling, probability=sampling.probability / 2
                )
            return planned_round(self, event, sampling, **options)

        return planned

    around(patch, dp_optimizer.DPOptimizer, "planned_round", halved)


@mutant("ledger", "other noise is planned than is drawn")
def _(patch):
    around(
        patch,
        gaussian_query.GaussianQuery,
        "planned_event",
        lambda f: (
            lambda self, state: f(self, state)._replace(
                noise_stddev=2 * state.stddev
            )
        ),
    )


# What follows the data past the queries.


@mutant("flow", "weights move by the sum itself")
def _(patch):
    def leaking(release):
        def released(self, sample, variables, *planned):
            found = release(self, sample, variables, *planned)
            for variable, total in zip(
                variables, sample["gradients"], strict=True
            ):
                variable.assign_add(1e-9 * tf.cast(total, variable.dtype))
            return found

        return released

    around(patch, dp_optimizer.DPOptimizer, "release", leaking)


@mutant("flow", "momentum follows the sum itself")
def _(patch):
    def leaking(release):
        def released(self, sample, variables, *planned):
            found = release(self, sample, variables, *planned)
            self.inner._momentums[0].assign_add(sample["gradients"][0])
            return found

        return released

    around(patch, dp_optimizer.DPOptimizer, "release", leaking)


@mutant("flow", "the number of iterations counts records")
def _(patch):
    def leaking(computes):
        def of(self, data, mask, *more):
            found = computes(self, data, mask, *more)
            count = tf.reduce_sum(tf.cast(mask, tf.int64))
            self._parts.optimizer.inner.iterations.assign_add(count)
            return found

        return of

    around_batches(patch, leaking)


@mutant("flow", "weights move by the sum of a later physical batch")
def _(patch):
    def leaking(of_part):
        def of(self, data, mask, grouping, is_first):
            found = of_part(self, data, mask, grouping, is_first)
            total = tf.reduce_sum(found.losses.total)
            self.engine.variables[-1].assign_add(
                [tf.where(is_first, 0.0, 1e-3 * total)]
            )
            return found

        return of

    around(patch, batch_computation.BatchComputation, "of_part", leaking)


@mutant("flow", "the number of iterations counts physical batches")
def _(patch):
    def leaking(of_part):
        def of(self, *given):
            self._parts.optimizer.inner.iterations.assign_add(1)
            return of_part(self, *given)

        return of

    around(patch, batch_computation.BatchComputation, "of_part", leaking)


@mutant("flow", "a metric is shown without noise")
def _(patch):
    around(
        patch,
        side_queries.SideQueries,
        "batches",
        lambda f: (
            lambda self, t, o, losses, *rest: (
                self._trackers["loss"].update_state(losses),
                f(self, t, o, losses, *rest),
            )[1]
        ),
    )


class MovingMean(keras.layers.Layer):
    """A layer of a user's own, whose state follows its inputs."""

    def build(self, shape):
        """Makes the state."""
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, inputs, training=None):
        """Moves the state in training."""
        if training:
            mean = keras.ops.mean(inputs, axis=0)
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
        return inputs


def with_moving_mean():
    """Returns a training of a model with such a layer."""
    layers = keras.layers
    stack = [keras.Input((3,)), MovingMean(), layers.Dense(1)]
    return training(keras.Sequential(stack))


@mutant("flow", "the state of a layer follows its inputs", with_moving_mean)
def _(patch):
    from keras_dp.gradients import engine
    from keras_dp.gradients.checks import trial

    @contextlib.contextmanager
    def allowed(*args, **options):
        yield

    for module in (engine, batch_computation, trial):
        patch.setattr(module, "without_variable_writes", allowed)


@mutant("flow", "the seed of the noise follows the data")
def _(patch):
    # The state after a round takes in a sum over the batch.
    def leaking_batch(computes):
        def of(self, data, mask, *more):
            found = computes(self, data, mask, *more)
            bits = tf.cast(
                tf.reduce_sum(tf.cast(data[1], tf.float32)), tf.int64
            )
            optimizer = self._parts.optimizer
            for variable in optimizer._state.variables:
                if variable.dtype == tf.int64 and variable.shape.rank == 1:
                    variable.assign_add(tf.zeros_like(variable) + bits)
            return found

        return of

    around_batches(patch, leaking_batch)


@mutant("flow", "a private metric is of all rows, padding included")
def _(patch):
    def unmasked(batches):
        def of(self, *args):
            *others, _, views = args
            return batches(self, *others, None, views)

        return of

    around(patch, side_queries.SideQueries, "batches", unmasked)


@mutant("flow", "the batch loses its mask")
def _(patch):
    around_batches(
        patch,
        lambda f: (
            lambda self, data, mask, *more: f(
                self, data, tf.ones_like(mask), *more
            )
        ),
    )


@mutant("flow", "logs hold the largest loss")
def _(patch):
    def step_with_largest(computes):
        def of(self, data, mask, *more):
            found = computes(self, data, mask, *more)
            self._parts.optimizer.largest.assign(
                tf.reduce_max(found.losses.total)
            )
            return found

        return of

    def public(public_metrics):
        def of(self):
            return {**public_metrics(self), "largest": self.largest.value()}

        return of

    around_batches(patch, step_with_largest)
    around(patch, dp_optimizer.DPOptimizer, "public_metrics", public)
    patch.setattr(
        dp_optimizer.DPOptimizer,
        "largest",
        tf.Variable(0.0, trainable=False),
        raising=False,
    )


# Samplers.


@mutant("draw", "records are drawn twice as often")
def _(patch):
    around(
        patch,
        BernoulliDraw,
        "indices",
        lambda f: (
            lambda self, words: np.union1d(f(self, words), f(self, words))
        ),
    )


@mutant("draw", "one record is in every sample")
def _(patch):
    around(
        patch,
        BernoulliDraw,
        "indices",
        lambda f: lambda self, words: np.union1d(f(self, words), [0]),
    )


@mutant("draw", "the last record is never drawn")
def _(patch):
    def without_last(indices):
        def of(self, words):
            drawn = indices(self, words)
            return drawn[drawn < 199]

        return of

    around(patch, BernoulliDraw, "indices", without_last)


@mutant("draw", "samples have a fixed size")
def _(patch):
    numbers = np.random.default_rng(0)
    patch.setattr(
        BernoulliDraw,
        "indices",
        lambda self, words: np.sort(numbers.permutation(200)[:20]),
    )


def resized(most, least=0):
    """Returns a plant that changes samples beyond some sizes."""

    def plant(patch):
        def drawn(indices):
            def of(self, words):
                found = indices(self, words)[:most]
                others = np.setdiff1d(np.arange(self.population_size), found)
                missing = max(0, least - len(found))
                return np.sort(np.append(found, others[:missing]))

            return of

        around(patch, BernoulliDraw, "indices", drawn)

    return plant


mutant("draw", "samples are clamped at 1.2 times the expected size")(
    resized(24)
)
mutant("draw", "samples are filled up to 0.8 times the expected size")(
    resized(None, 16)
)


def many():
    """Returns samples of 256 of 6,000 records."""
    return PoissonBatches(
        (np.zeros([6000, 3], "float32"), np.zeros([6000, 1], "float32")),
        sampling_probability=256 / 6000,
    )


mutant("draw", "large samples are clamped at 1.2 times the size", source=many)(
    resized(307)
)
mutant(
    "draw", "large samples are filled up to 0.8 times the size", source=many
)(resized(None, 205))


@mutant("draw", "every tenth sample is drawn again")
def _(patch):
    known = []

    def again(indices):
        def of(self, words):
            known.append(indices(self, words))
            return known[-2 if len(known) % 10 == 0 else -1]

        return of

    around(patch, BernoulliDraw, "indices", again)


@mutant("draw", "two records are always drawn together")
def _(patch):
    def paired(indices):
        def of(self, words):
            found = indices(self, words)
            rest = found[found != 121]
            return np.sort(np.append(rest, [121] if 7 in found else []))

        return of

    around(
        patch,
        BernoulliDraw,
        "indices",
        lambda f: lambda self, words: paired(f)(self, words).astype(np.int64),
    )


@mutant("draw", "a record stands in a sample twice")
def _(patch):
    def twice(indices):
        def of(self, words):
            drawn = indices(self, words)
            return np.concatenate([drawn, drawn[:1]])

        return of

    around(patch, BernoulliDraw, "indices", twice)


@mutant("draw", "every iterator draws the same samples")
def _(patch):
    patch.setattr(
        sampler.random_words,
        "from_operating_system",
        lambda count: np.random.default_rng(0).integers(
            0, 2**64, count, np.uint64
        ),
    )


@mutant("draw", "the event says half of the probability")
def _(patch):
    patch.setattr(
        PoissonBatches,
        "sampling_of",
        lambda self, of: ledger.PoissonSampling(0.05, drawn_by_library=True),
    )


@mutant(
    "draw",
    "a sample of fixed size has one record more",
    source=lambda: FixedSizeBatches((X, Y), sample_size=20),
)
def _(patch):
    from keras_dp.sampling import fixed_size_batches

    around(
        patch,
        fixed_size_batches,
        "random_subset",
        lambda f: (
            lambda size, population, words: f(size + 1, population, words)
        ),
    )


@mutant(
    "draw",
    "batches of a pass overlap",
    source=lambda: ShuffledBatches((X, Y), batch_size=20),
)
def _(patch):
    from keras_dp.sampling import shuffled_batches

    around(
        patch,
        shuffled_batches,
        "random_places",
        lambda f: (
            lambda *args: np.concatenate([f(*args)[:100], f(*args)[:100]])
        ),
    )


@mutant(
    "draw",
    "a truncated sample is not truncated",
    source=lambda: samples(truncate_at=20, physical_batch_size=64),
)
def _(patch):
    patch.setattr(layouts.Truncated, "draw", layouts.Runs.draw)


@mutant(
    "draw",
    "truncated samples are drawn twice as often",
    source=lambda: samples(truncate_at=60),
)
def _(patch):
    MUTANTS["records are drawn twice as often"].plant(patch)


@mutant(
    "draw",
    "one record is in every sample of fixed size",
    source=lambda: FixedSizeBatches((X, Y), sample_size=20),
)
def _(patch):
    from keras_dp.sampling import fixed_size_batches

    def with_first(random_subset):
        def drawn(size, population, words):
            rest = random_subset(size - 1, population - 1, words) + 1
            return np.append(rest, 0)

        return drawn

    around(patch, fixed_size_batches, "random_subset", with_first)


def user_training():
    """Returns a training that protects users."""
    return training(unit="user", private_metrics={})


def of_users():
    """Returns samples of 50 users with 4 records, of which 3 take part."""
    return UserBatches(
        (X, Y),
        user_ids=np.arange(200) % 50,
        sampling_probability=0.2,
        records_per_user=3,
        physical_batch_size=60,
    )


@mutant(
    "draw",
    "a user takes part with one record too many",
    user_training,
    of_users,
)
def _(patch):
    around(
        patch,
        user_batches,
        "Users",
        lambda make: lambda ids, q, records: make(ids, q, records + 1),
    )


@mutant("draw", "a user takes part without a record", user_training, of_users)
def _(patch):
    def without_one(draw):
        def drawn(self, *args):
            rows = draw(self, *args)
            return np.where(rows % 50 == rows, -1, rows)

        return drawn

    around(patch, user_batches.Users, "draw", without_one)


@mutant(
    "draw", "rows of a user hold a record of another", user_training, of_users
)
def _(patch):
    around(
        patch,
        user_batches.Users,
        "draw",
        lambda f: lambda self, *args: np.roll(f(self, *args), 1, axis=1),
    )


@mutant("draw", "a user is drawn twice as often", user_training, of_users)
def _(patch):
    MUTANTS["records are drawn twice as often"].plant(patch)


@mutant(
    "draw",
    "a microbatch is drawn without its last record",
    lambda: training(unit="microbatch", private_metrics={}),
    lambda: samples(microbatches=FixedMicrobatches(size=2)),
)
def _(patch):
    def without_one(draw):
        def drawn(self, *args):
            rows = draw(self, *args)
            return np.where(rows == 199, -1, rows)

        return drawn

    around(patch, layouts.Runs, "draw", without_one)
