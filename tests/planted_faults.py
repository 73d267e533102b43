"""Faults in what a user may write or wrap: an audit must find each.

They are planted in a query, an optimizer, a sampler, a layer, a rule or a loss
of the user's own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import keras_dp
from keras_dp import dp_queries, ledger
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.summing_query import on_grid
from keras_dp.gradients import registry
from keras_dp.gradients.rules.dense import dense as rule_of_dense
from keras_dp.ledger import CoordinateBounds
from keras_dp.ledger.events.noise_families import StudentTNoise
from keras_dp.noise import samplers, seeds
from keras_dp.sampling import (
    FixedSizeBatches,
    PoissonBatches,
    RandomMicrobatches,
    ShuffledBatches,
    UserBatches,
)
from keras_dp.sampling.random_words import Randomness
from tests.audited import X, Y, average, samples, training

Sum, Optimizer = dp_queries.GaussianSumQuery, keras_dp.DPOptimizer


class Fault(NamedTuple):
    """A fault.

    Attributes:
        where: What was written wrongly.
        found_by: The questions that find it; the first one always does.
        train: Makes the training.
        source: Makes its samples.
        early: Whether it is planted before the night.
        records: How many records are looked at.
    """

    where: str
    found_by: str
    train: Callable[[], Any] = training
    source: Callable[[], Any] = samples
    early: bool = False
    records: int = 2


def own(kind: type, **methods: Any) -> type:
    """Returns a subclass with other methods."""
    return type(f"Own{kind.__name__}", (kind,), methods)


def sum_query(clip: float = 1.0, **methods: Any) -> Any:
    """Returns an average by a Gaussian sum of the user's own."""
    query = own(Sum, **methods)(clip, noise_multiplier=1.0)
    return dp_queries.NormalizedQuery(query, 20)


def asking(query: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    """Returns what makes a training that asks a query."""
    return lambda: training(query=query(), **{"private_metrics": {}, **options})


# Clipping.


def clip(found_by: str, total: Any, *, early: bool = False) -> Fault:
    """Returns a fault in the sum: of records, by norms, the clip and a mask."""

    def bounded_sum(self, params, like, records, mask):
        norms = records_lib.norms(tf.nest.flatten(records))
        sums = total(records, norms, params.l2_norm_clip, mask)
        return on_grid(like, sums, params.spacing)

    query = asking(lambda: sum_query(bounded_sum=bounded_sum))
    return Fault("clip", found_by, query, early=early)


def weighed(records, factors, mask):
    return records_lib.weighted_sums(records, records_lib.masked(factors, mask))


def not_finite_kept(records, norms, clip, mask):
    known = records_lib.clip_factors(norms, clip)
    known = tf.where(tf.math.is_finite(norms), known, tf.ones_like(norms))
    return weighed(records, known, mask)


def last_unclipped(records, norms, clip, mask):
    *sums, _ = records_lib.clipped_sum(records, norms, clip, mask)
    return [*sums, *weighed(records[-1:], tf.ones_like(norms), mask)]


def each_to_the_clip(records, norms, clip, mask):
    return [
        records_lib.clipped_sum([x], records_lib.norms([x]), clip, mask)[0]
        for x in records
    ]


def sum_clipped(records, norms, clip, mask):
    sums = weighed(records, tf.ones_like(norms), mask)
    factor = tf.minimum(
        1.0, 20 * tf.cast(clip, tf.float32) / tf.linalg.global_norm(sums)
    )
    return [factor * leaf for leaf in sums]


def sum_divided(records, norms, clip, mask):
    count = tf.reduce_sum(tf.cast(mask, tf.float32))
    sums = records_lib.clipped_sum(records, norms, clip, mask)
    return [20 * leaf / count for leaf in sums]


def across_batches(found_by: str, accumulated: Any) -> Fault:
    """Returns a fault in how later physical batches are added.

    Args:
        found_by: The questions.
        accumulated: Takes a function that adds correctly, and its arguments.
    """

    def accumulate_records(self, params, sample, records, mask=None):
        def added(params=params, sample=sample, mask=mask):
            return Sum.accumulate_records(self, params, sample, records, mask)

        leaves = tf.nest.flatten(sample)
        is_first = tf.reduce_all([tf.reduce_all(x == 0) for x in leaves])
        return tf.nest.map_structure(
            lambda honest, faulty: tf.where(is_first, honest, faulty),
            added(),
            accumulated(added, params, sample),
        )

    make = asking(lambda: sum_query(accumulate_records=accumulate_records))
    return Fault("clip", found_by, make)


def bounds() -> CoordinateBounds:
    return CoordinateBounds.from_vectors([[1.0] * 21, [3.0] * 3 + [0.1] * 18])


def encoding(**methods: Any) -> Callable[[], Any]:
    """Returns what trains with Student's noise on encoded gradients."""

    def query():
        kind = own(dp_queries.EncodedSumQuery, **methods)
        return dp_queries.NormalizedQuery(
            kind(bounds(), StudentTNoise(1.0, 4.0)), 20
        )

    return asking(query)


def in_microbatches(factor: int) -> Any:
    """Returns samples whose layout says by how much an example moves them."""
    source = samples(microbatches=RandomMicrobatches(size=2))
    # By force: a draw is frozen.
    changed = source.rows_of_record._replace(bound_factor=factor)
    object.__setattr__(source.draw, "rows_of_record", changed)
    return source


FAULTS: dict[str, Fault] = {
    "records are not clipped": clip(
        "sensitivity, independence",
        lambda r, n, c, m: records_lib.clipped_sum(r, n, 1e30, m),
        early=True,
    ),
    "the clip is 1 % above that of the ledger": clip(
        "sensitivity",
        lambda r, n, c, m: records_lib.clipped_sum(r, n, 1.01 * c, m),
        early=True,
    ),
    "records that are not finite are kept": clip(
        "sensitivity, independence", not_finite_kept, early=True
    ),
    "padding counts as records": clip(
        "sensitivity, independence",
        lambda r, n, c, m: records_lib.clipped_sum(r, n, c, None),
        early=True,
    ),
    "the last variable is not clipped": clip(
        "sensitivity, independence", last_unclipped
    ),
    "each variable is clipped to the whole clip": clip(
        "sensitivity", each_to_the_clip
    ),
    "the sum is clipped instead of the records": clip(
        "sensitivity, independence", sum_clipped, early=True
    ),
    "the sum is divided by the number of records": clip(
        "sensitivity, independence", sum_divided, early=True
    ),
    "norms are rounded to whole numbers": clip(
        "sensitivity",
        lambda r, n, c, m: records_lib.clipped_sum(r, tf.floor(n), c, m),
    ),
    "encoded records are not encoded": Fault(
        "clip",
        "sensitivity",
        encoding(
            bounded_sum=lambda self, params, like, r, m: weighed(
                r, records_lib.ones(r[0]), m
            )
        ),
    ),
    "a microbatch counts as one record of the unit": Fault(
        "clip",
        "sensitivity",
        source=lambda: in_microbatches(1),
        records=100,  # The pairs are random.
    ),
    "records of earlier physical batches count twice": across_batches(
        "sensitivity, independence",
        lambda added, params, sample: added(
            sample=tf.nest.map_structure(lambda leaf: 2 * leaf, sample)
        ),
    )._replace(early=True),
    "later physical batches are not clipped": across_batches(
        "sensitivity, independence",
        lambda added, params, sample: added(
            params._replace(l2_norm_clip=tf.constant(1e30, tf.float64))
        ),
    ),
}

# Gradients, by rules for layers of the user's own.


class HalvedNorms(keras.layers.Dense):
    """Its rule halves the norms of the kernel."""


class UnclippedKernel(keras.layers.Dense):
    """Its rule sums the kernel whatever the weights are."""


class Wrong:
    """Records with some methods replaced."""

    def __init__(self, records, **methods):
        self._records = records
        self.__dict__.update(methods)

    def __getattr__(self, name):
        return getattr(self._records, name)


@registry.register(HalvedNorms)
def _(call):
    (kernel, found), *bias = rule_of_dense(call)
    halved = Wrong(found, squared_norms=lambda: found.squared_norms() / 4)
    return [(kernel, halved), *bias]


@registry.register(UnclippedKernel)
def _(call):
    (kernel, found), *bias = rule_of_dense(call)
    bare = Wrong(
        found, weighted_sum=lambda w: found.weighted_sum(tf.ones_like(w))
    )
    return [(kernel, bare), *bias]


# Layers and losses.


def stacked(*layers: Any, **options: Any) -> Callable[[], Any]:
    """Returns what trains a stack of layers; each is made anew."""
    return lambda: training(
        keras.Sequential([keras.Input((3,)), *(make() for make in layers)]),
        private_metrics={},
        **options,
    )


def last() -> keras.layers.Layer:
    return keras.layers.Dense(1)


def layer(call: Callable[..., Any]) -> Callable[[], keras.layers.Layer]:
    """Returns what makes a layer that computes a function of a batch."""
    return own(keras.layers.Layer, call=lambda self, inputs: call(inputs))


def less_mean_if_large(inputs):
    if inputs.shape[0] is None or inputs.shape[0] <= 16:
        return inputs
    return inputs - keras.ops.mean(inputs, axis=0)


def scaled_by_outliers(inputs):
    far = keras.ops.cast(keras.ops.abs(inputs) > 100, inputs.dtype)
    return inputs * (1 + 0.01 * keras.ops.sum(far))


def scaled_by_statistic(inputs):
    mean = keras.ops.stop_gradient(keras.ops.mean(inputs))
    return inputs * (1 + keras.ops.tanh(mean))


def with_row_before(inputs):
    before = keras.ops.zeros_like(inputs[:1])
    return inputs + 0.001 * keras.ops.concatenate([before, inputs[:-1]])


def zeroed_by_nan(inputs):
    found = keras.ops.any(keras.ops.isnan(inputs))
    return keras.ops.where(found, keras.ops.zeros_like(inputs), inputs)


class MovingMean(keras.layers.Layer):
    """A layer whose state follows its inputs."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, inputs, training=None):
        if training:
            mean = keras.ops.mean(inputs, axis=0)
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
        return inputs


class PythonMemory(keras.layers.Layer):
    """Remembers the last batch in a list."""

    def call(self, inputs):
        def add(values):
            self._seen = [*getattr(self, "_seen", []), values.sum()]
            return np.float32(np.tanh(sum(self._seen[-2:-1])))

        memory = tf.numpy_function(add, [inputs], tf.float32)
        memory.set_shape([])
        return inputs + tf.stop_gradient(memory)


class BatchPenalty(keras.layers.Layer):
    """Adds a loss of the whole batch."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs) ** 2)
        return inputs


def loss_over_batch(targets, outputs):
    apart = keras.ops.square(targets - outputs)
    return apart * keras.ops.mean(apart)


CENTRED = layer(lambda inputs: inputs - keras.ops.mean(inputs, axis=0))


def user(found_by: str, *layers: Any, early: bool = False, **options: Any):
    """Returns a fault in layers, in front of a last one."""
    return Fault("user", found_by, stacked(*layers, last, **options),
                 early=early, records=3)  # fmt: skip


FAULTS |= {
    "norms of kernels are halved": Fault(
        "gradients", "refusal", stacked(lambda: HalvedNorms(1)), early=True
    ),
    "kernels are summed without their clip": Fault(
        "gradients", "refusal", stacked(lambda: UnclippedKernel(1)), early=True
    ),
    "a layer computes over the batch": user("refusal", CENTRED, early=True),
    "a layer computes over the batch, and the self-check is off": user(
        "refusal", CENTRED, self_check_examples=0
    ),
    "a layer computes over batches of more than 16 rows": user(
        "refusal", layer(less_mean_if_large)
    ),
    "a layer scales a batch by how many records are far": user(
        "independence, sensitivity", layer(scaled_by_outliers), early=True
    ),
    "a layer scales a batch by a statistic without gradient": user(
        "refusal", layer(scaled_by_statistic)
    ),
    "a layer adds a thousandth of the row before": user(
        "refusal", layer(with_row_before)
    ),
    "a layer replaces a batch with NaN in it": user(
        "sensitivity, independence, flow", layer(zeroed_by_nan), early=True
    ),
    "a layer adds a loss of the whole batch": user("refusal", BatchPenalty),
    "the state of a layer follows its inputs": user(
        "refusal", MovingMean, early=True
    ),
    "a layer remembers a batch in a list": user("refusal", PythonMemory),
    "a loss computes over the batch": user(
        "refusal", loss=loss_over_batch, early=True
    ),
}

# Noise.


class Noised(NamedTuple):
    """What a release knows: two numbers and the key, for `noise`."""

    stddev: tf.Tensor
    size: tf.Tensor  # Of the sum, in stddevs.
    seed: tf.Tensor


def released(change: Any) -> Callable[..., Any]:
    """Returns a release whose noise is changed.

    Args:
        change: Takes the noise on a leaf, and a `Noised`.
    """

    def get_noised_result(self, sample, state):
        empty = tf.nest.map_structure(tf.zeros_like, sample)
        result = Sum.get_noised_result(self, empty, state)
        spacing = self.derive_sample_params(state).spacing
        bare = tf.nest.map_structure(
            lambda leaf: tf.cast(leaf, tf.float64) * spacing, sample
        )
        size = tf.linalg.global_norm(tf.nest.flatten(bare)) / state.stddev
        known = Noised(state.stddev, size, state.seed)
        value = tf.nest.map_structure(
            lambda drawn, total: tf.cast(
                total + change(tf.cast(drawn, tf.float64), known), drawn.dtype
            ),
            result.value,
            bare,
        )
        return result._replace(value=value)

    return get_noised_result


def noise_by(*, early: bool = False, **methods: Any) -> Fault:
    """Returns a fault in how a Gaussian sum draws."""
    make = asking(lambda: sum_query(**methods))
    return Fault("noise", "noise", make, early=early)


def noise(change: Any, *, early: bool = False) -> Fault:
    """Returns a fault in the noise of a Gaussian sum; see `released`."""
    return noise_by(get_noised_result=released(change), early=early)


def measuring(**methods: Any) -> Callable[[], Any]:
    """Returns what trains with a private loss by a query of the user's own."""
    metrics = {"loss": keras_dp.PrivateLoss(sum_query(9.0, **methods))}
    return lambda: training(private_metrics=metrics)


def flat(change: Any) -> Any:
    """Returns a change of noise as a vector."""
    return lambda drawn, known: tf.reshape(
        change(tf.reshape(drawn, [-1])), tf.shape(drawn)
    )


def half_mirrored(drawn):
    half = tf.size(drawn) // 2
    return tf.concat([drawn[: tf.size(drawn) - half], -drawn[:half]], 0)


def with_last(factor: float) -> Any:
    """Returns a change of the last coordinate, if there are several."""
    return flat(
        lambda drawn: (
            tf.concat([drawn[:-1], factor * drawn[:1]], 0)
            if drawn.shape[0] != 1
            else drawn
        )
    )


def laplacian(drawn, known):
    scale = known.stddev / np.sqrt(2)
    tail = tf.math.erfc(tf.abs(drawn) / known.stddev / np.sqrt(2))
    return -scale * tf.sign(drawn) * tf.math.log(tail)


def seed_after(change: Any) -> Callable[..., Any]:
    """Returns a release with another next seed."""

    def get_noised_result(self, sample, state):
        result = Sum.get_noised_result(self, sample, state)
        after = result.global_state._replace(seed=change(state.seed))
        return result._replace(global_state=after)

    return get_noised_result


def one_of_three(seed):
    place = tf.math.floormod(seed[0], 3)
    known = tf.constant([4, 5, 6, 0], tf.int64)
    return known + tf.stack([1 - place % 2 + place, 0, 0, 0])


def beginning_with(seed: Any) -> Callable[..., Any]:
    """Returns an `initial_global_state` with a given seed."""
    return lambda self, _=None: Sum.initial_global_state(self)._replace(
        seed=seed
    )


def with_one_seed():
    begin = beginning_with(seeds.fresh(None))
    of_losses = sum_query(9.0, initial_global_state=begin)
    return training(
        query=sum_query(initial_global_state=begin),
        private_metrics={"loss": keras_dp.PrivateLoss(of_losses)},
    )


def encoded_noise(change: Any) -> Callable[..., Any]:
    """Returns a release of encoded sums, with noise by a seed."""

    def get_noised_result(self, sample, state):
        kind = dp_queries.EncodedSumQuery
        result = kind.get_noised_result(self, sample, state)
        value = tf.nest.map_structure(
            lambda noised, bare: bare + change(noised - bare, state.seed),
            result.value,
            sample,
        )
        return result._replace(value=value)

    return get_noised_result


FAULTS |= {
    "noise is halved": noise(lambda n, of: n / 2),
    "noise is 2 % too small": noise(lambda n, of: 0.98 * n, early=True),
    "there is no noise": noise(lambda n, of: 0 * n),
    "noise is cut off at three standard deviations": noise(
        lambda n, of: tf.clip_by_value(n, -3 * of.stddev, 3 * of.stddev),
        early=True,
    ),
    "noise is Laplacian, of the same variance": noise(laplacian),
    "all coordinates of a variable share one draw": noise(
        flat(lambda n: 0 * n + n[0])
    ),
    "half of the noise is the other half with its sign changed": noise(
        flat(half_mirrored), early=True
    ),
    "noise is rounded to a coarse grid": noise(
        lambda n, of: tf.round(n / of.stddev * 8) / 8 * of.stddev
    ),
    "the last coordinate of a variable has no noise": noise(with_last(0.0)),
    "two coordinates of a variable share one draw": noise(with_last(-1.0)),
    "noise is scaled by the norm of the sum": noise(
        lambda n, of: n * (1 + 0.01 * of.size)
    ),
    "large sums get half of the noise": noise(
        lambda n, of: tf.where(of.size > 100, n / 2, n), early=True
    ),
    "an empty sample gets no noise": noise(
        lambda n, of: tf.where(of.size == 0, 0 * n, n)
    ),
    "one seed in a hundred gives no noise": noise(
        lambda n, of: tf.where(
            tf.math.floormod(of.seed[0], 100) == 0, 0 * n, n
        ),
        early=True,
    ),
    "the loss gets 2 % less noise": Fault(
        "noise",
        "noise",
        measuring(get_noised_result=released(lambda n, _: 0.98 * n)),
    ),
    "three seeds take turns": noise_by(
        get_noised_result=seed_after(one_of_three)
    ),
    "a seed is used in every round": noise_by(
        get_noised_result=seed_after(lambda s: s), early=True
    ),
    "all seeds are one constant": noise_by(
        initial_global_state=beginning_with(tf.constant([1, 2, 3, 4], tf.int64))
    ),
    "gradients and metrics have one seed": Fault(
        "noise", "noise", with_one_seed
    ),
    "Student's noise is Gaussian": Fault(
        "noise",
        "noise",
        encoding(
            get_noised_result=encoded_noise(
                lambda n, seed: samplers.sample(
                    ledger.GaussianNoise(1.0), n, seed
                )
            )
        ),
    ),
}

# What the ledger holds, and what follows the data past the queries.


def events(found_by: str, *, early: bool = False, **factors: float) -> Fault:
    """Returns a fault in the numbers of an event."""

    def ledger_events(self, event, name="records"):
        return tuple(
            dataclasses.replace(
                each, **{k: f * getattr(each, k) for k, f in factors.items()}
            )
            for each in Sum.ledger_events(self, event, name)
        )

    make = asking(lambda: sum_query(ledger_events=ledger_events))
    return Fault("ledger", found_by, make, early=early)


def optimizing(**methods: Any) -> Callable[[], Any]:
    """Returns what trains with an optimizer of the user's own."""
    return lambda: training(private_optimizer=own(Optimizer, **methods))


def first_event_only(self, *args, **options):
    found = Optimizer.planned_round(self, *args, **options)
    return dataclasses.replace(found, queries=found.queries[:1])


def half_probability(self, *args, **options):
    found = Optimizer.planned_round(self, *args, **options)
    sampling = dataclasses.replace(
        found.sampling, probability=found.sampling.probability / 2
    )
    return dataclasses.replace(found, sampling=sampling)


def of_two_groups():
    kind = own(
        dp_queries.NestedQuery,
        ledger_events=lambda self, *args: dp_queries.NestedQuery.ledger_events(
            self, *args
        )[:1],
    )
    return kind({"hidden": average(0.5), "head": average(2.0)})


def planning_more_noise():
    def planned_event(self, state):
        event = Sum.planned_event(self, state)
        return event._replace(noise_stddev=2 * event.noise_stddev)

    def get_noised_result(self, sample, state):
        result = Sum.get_noised_result(self, sample, state)
        return result._replace(event=Sum.planned_event(self, state))

    return sum_query(
        planned_event=planned_event, get_noised_result=get_noised_result
    )


def leaking(leak: Any) -> Callable[[], Any]:
    """Returns what trains with an optimizer that looks at the sums."""

    def release(self, sample, variables, *others):
        found = Optimizer.release(self, sample, variables, *others)
        leak(self, sample["gradients"], variables)
        return found

    return optimizing(release=release)


def showing_the_largest():
    largest = tf.Variable(0.0, trainable=False)

    def release(self, sample, *others):
        first = tf.cast(sample["gradients"][0], tf.float32)
        largest.assign(tf.reduce_max(first))
        return Optimizer.release(self, sample, *others)

    def public_metrics(self):
        return {**Optimizer.public_metrics(self), "largest": largest.value()}

    return optimizing(release=release, public_metrics=public_metrics)()


def of_all_rows(self, params, like, records, mask):
    return Sum.bounded_sum(self, params, like, records, None)


FAULTS |= {
    "the ledger holds half of the bound": events(
        "sensitivity", l2_norm_bound=0.5
    ),
    "the ledger holds twice the noise": events(
        "noise", noise_stddev=2.0, early=True
    ),
    "the ledger holds both in another unit": events(
        "sensitivity, noise", l2_norm_bound=0.1, noise_stddev=0.1
    ),
    "the ledger holds no event of the metrics": Fault(
        "ledger", "record", optimizing(planned_round=first_event_only)
    ),
    "the ledger holds one event of two groups": Fault(
        "ledger",
        "record",
        asking(
            of_two_groups, groups={"hidden": "*hidden/*", "head": "*head/*"}
        ),
    ),
    "the ledger holds half of the sampling probability": Fault(
        "ledger",
        "record",
        optimizing(planned_round=half_probability),
        early=True,
    ),
    "other noise is planned than is drawn": Fault(
        "ledger", "record, noise", asking(planning_more_noise), early=True
    ),
    "weights move by the sum itself": Fault(
        "flow",
        "flow",
        leaking(
            lambda self, sums, variables: variables[0].assign_add(
                1e-9 * tf.cast(sums[0], tf.float32)
            )
        ),
        early=True,
    ),
    "momentum follows the sum itself": Fault(
        "flow",
        "flow",
        leaking(
            lambda self, sums, variables: self.inner.variables[2].assign_add(
                1e-9 * tf.cast(sums[0], tf.float32)
            )
        ),
    ),
    "logs hold the largest sum": Fault("flow", "flow", showing_the_largest),
    "a private metric is of all rows, padding included": Fault(
        "flow", "sensitivity, independence", measuring(bounded_sum=of_all_rows)
    ),
}

# Samplers, of which a sample is drawn in another way.


def drawing(make: Any, change: Any, *, early: bool = False) -> Fault:
    """Returns a fault in who takes part.

    Args:
        make: Makes the sampler.
        change: Takes the records of a sample in order, and a function that
            returns those of another sample. Returns the records.
        early: See `Fault`.
    """

    def source():
        sampler = make()
        honest = sampler.draws

        def drawn(randomness=None):
            others = honest(randomness)

            def another():
                return taken(next(others))

            for draw in honest(randomness):
                found = change(taken(draw), another)
                size = sampler.physical_batch_size
                rows = np.full([-(-max(1, len(found)) // size), size], -1)
                rows.ravel()[: len(found)] = found
                yield draw._replace(rows=rows)

        sampler.draws = drawn
        return sampler

    return Fault("draw", "draw", source=source, early=early)


def taken(draw):
    return np.sort(draw.rows[draw.rows >= 0])


def with_rows(make: Any, change: Any) -> Fault:
    """Returns a fault in the rows of samples, where units have several."""

    def source():
        sampler = make()
        honest = sampler.draws
        sampler.draws = lambda *given: (
            draw._replace(rows=change(draw.rows)) for draw in honest(*given)
        )
        return sampler

    return Fault("draw", "draw", source=source)


def saying(make: Any, other: Any, *names: str) -> Fault:
    """Returns a fault of a sampler that says what another one does."""

    def source():
        sampler, known = make(), other()
        for name in names:
            setattr(sampler, name, getattr(known, name))
        return sampler

    return Fault("draw", "draw", source=source)


def resized(most, least=0):
    """Returns a change of samples beyond some sizes, of 200 or 6,000."""

    def change(found, another):
        total = 200 if (most or 0) + least < 200 else 6000
        others = np.setdiff1d(np.arange(total), found)
        return np.append(found[:most], others[: max(0, least - len(found))])

    return change


def paired(found, another):
    return np.append(found[found != 121], [121] * (7 in found)).astype(int)


def every_tenth_again():
    known: list[Any] = []

    def change(found, another):
        known.append(found)
        return known[-2 if len(known) % 10 == 0 else -1]

    return change


def same_words(make: Any) -> Any:
    """Returns a sampler that draws by words that never change."""
    sampler = make()
    honest = sampler.draws

    def words(count):
        return np.random.default_rng(0).integers(0, 2**64, count, np.uint64)

    sampler.draws = lambda *given: honest(Randomness(words, words, words))
    return sampler


def twice(found, another):
    return np.union1d(found, another())


def with_first(found, another):
    return np.union1d(found, [0])


def one_more(found, another):
    return np.append(found, np.setdiff1d(np.arange(200), found)[:1])


def first_and_others(found, another):
    return found if 0 in found else np.append(found[1:], 0)


def many(**options: Any) -> PoissonBatches:
    """Returns samples of 256 of 6,000 records."""
    data = np.zeros([6000, 3], "float32"), np.zeros([6000, 1], "float32")
    return PoissonBatches(data, sampling_probability=256 / 6000)


def of_users(probability: float = 0.2, records: int = 3) -> UserBatches:
    """Returns samples of 50 users with 4 records each."""
    return UserBatches(
        (X, Y),
        user_ids=np.arange(200) % 50,
        sampling_probability=probability,
        records_per_user=records,
        physical_batch_size=60,
    )


def fixed_size():
    return FixedSizeBatches((X, Y), sample_size=20)


def truncated(**options: Any) -> PoissonBatches:
    return samples(physical_batch_size=64, **options)


FAULTS |= {
    "records are drawn twice as often": drawing(samples, twice),
    "one record is in every sample": drawing(samples, with_first, early=True),
    "the last record is never drawn": drawing(samples, lambda f, _: f[f < 199]),
    "samples have a fixed size": drawing(
        samples,
        lambda f, _: np.random.default_rng().permutation(200)[:20],
        early=True,
    ),
    "samples are clamped at 1.2 times the expected size": drawing(
        samples, resized(24), early=True
    ),
    "samples are filled up to 0.8 times the expected size": drawing(
        samples, resized(None, 16)
    ),
    "large samples are clamped at 1.2 times the size": drawing(
        many, resized(307)
    ),
    "every tenth sample is drawn again": drawing(samples, every_tenth_again()),
    "two records are always drawn together": drawing(
        samples, paired, early=True
    ),
    "a record stands in a sample twice": drawing(
        samples, lambda f, _: np.append(f, f[:1])
    ),
    "every iterator draws the same samples": Fault(
        "draw", "draw", source=lambda: same_words(samples)
    ),
    "the event says half of the probability": saying(
        samples,
        lambda: PoissonBatches((X, Y), sampling_probability=0.05),
        "sampling_of",
    ),
    "a sample of fixed size has one record more": drawing(fixed_size, one_more),
    "batches of a pass overlap": drawing(
        lambda: ShuffledBatches((X, Y), batch_size=20), first_and_others
    ),
    "a truncated sample is not truncated": saying(
        lambda: truncated(truncate_at=20), truncated, "draws"
    ),
    "a user takes part with one record too many": saying(
        lambda: of_users(records=4), of_users, "records_per_user"
    ),
    "a user takes part without a record": with_rows(
        of_users, lambda rows: np.where(rows < 50, -1, rows)
    ),
    "rows of a user hold a record of another": with_rows(
        of_users, lambda rows: np.roll(rows, 1, axis=1)
    )._replace(early=True),
    "a user is drawn twice as often": saying(
        lambda: of_users(0.4), of_users, "sampling_of"
    ),
}
