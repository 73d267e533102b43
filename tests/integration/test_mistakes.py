"""Mistakes of users get one sentence that names the argument and the remedy."""

import re

import keras
import ml_dtypes
import numpy as np
import pytest

import keras_dp
from keras_dp import (
    DPSGD,
    DPOptimizer,
    GaussianAverageQuery,
    PoissonBatches,
    PrivacyLedger,
    PrivateModel,
)
from keras_dp.errors import PrivateTrainingError, UnsupportedLayerError
from tests import programs

X = np.random.default_rng(0).normal(size=[40, 3]).astype("float32")
Y = np.ones([40, 1], "float32")


def net(*layers):
    return keras.Sequential(
        [keras.Input((3,)), *(layers or [keras.layers.Dense(1)])]
    )


def ledger(**changes):
    return PrivacyLedger.in_memory(**({"dataset": "d"} | changes))


def query(**changes):
    given = {"l2_norm_clip": 1.0, "sum_stddev": 1.1, "denominator": 8}
    return GaussianAverageQuery(**(given | changes))


def optimizer(**changes):
    return DPSGD(0.1, **({"query": query(), "ledger": ledger()} | changes))


def private(model=None, own=None, **changes):
    found = PrivateModel(model or net(), self_check_examples=0)
    found.compile(own or optimizer(), **({"loss": "mse"} | changes))
    return found


def checked(model):
    found = PrivateModel(model)  # The self-check runs eagerly.
    found.compile(optimizer(), loss="mse")
    return found


def samples(data=(X, Y), **changes):
    return PoissonBatches(data, **({"sampling_probability": 0.2} | changes))


def fit(model, *data, **changes):
    options = {"verbose": 0, "steps_per_epoch": 1} | changes
    return model.fit(*(data or (samples(),)), **options)


def made(model=None, data=(X, Y), **changes):
    given = {
        "ledger": None,
        "target_epsilon": 2.0,
        "epochs": 1,
        "batch_size": 8,
        "loss": "mse",
        "verbose": False,
    } | changes
    if "ledger" not in changes:
        given["ledger"] = ledger()
    return keras_dp.make_private(model or net(), data, **given)


def trained_by_keras():
    model = net()
    model.compile(optimizer(), loss="mse")
    model.fit(X, Y, verbose=0)


class Calls(keras.callbacks.Callback):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_epoch_begin(self, epoch, logs=None):
        self.function(self.model)


class OwnNoise(keras.layers.Layer):
    """Its numbers depend on its weights."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:])
        self.seeds = keras.random.SeedGenerator()

    def call(self, inputs):
        mean = inputs * self.scale
        shape = keras.ops.shape(mean)
        return keras.random.normal(shape, mean, seed=self.seeds)


def misspelt(y_true, y_pred):
    raise ValueError("`misspelt` fails.")


# What the error must say, and what is done.
OPTIMIZERS = {
    "TypeError: `ledger` must .*=None.*open": lambda: optimizer(ledger=None),
    "TypeError: `ledger` must .*'a'.*open": lambda: optimizer(ledger="a"),
    "TypeError: `query` must .*=None": lambda: optimizer(query=None),
    "TypeError: `query` must .*GaussianAverage": lambda: optimizer(query=1.1),
    "TypeError: `seed` must be an integer": lambda: optimizer(seed="a"),
    "ValueError: `seed` must be an integer >= 0": lambda: optimizer(seed=-1),
    "TypeError: `groups` must be a dict": lambda: optimizer(groups=["a"]),
    "TypeError: `inner` must be a keras.optimizers.Optimizer": lambda: (
        DPOptimizer("adam", query=query(), ledger=ledger())
    ),
    "TypeError: `inner` must not be private already.*DPSGD": lambda: (
        DPOptimizer(optimizer(), query=query(), ledger=ledger())
    ),
    "TypeError: `inner` must not scale the loss": lambda: DPOptimizer(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
        query=query(),
        ledger=ledger(),
    ),
    "ValueError: `gradient_accumulation_steps` .*physical_batch_size": lambda: (
        DPSGD(
            0.1, query=query(), ledger=ledger(), gradient_accumulation_steps=2
        )
    ),
    "PrivateTrainingError: .*Wrap the model": trained_by_keras,
}
# `test_arguments.py` of queries and of samplers has the others.
QUERIES = {
    "TypeError: `denominator` must be given": lambda: query(denominator=None),
    "TypeError: `physical_batch` must be an argument.*h_size`": lambda: samples(
        physical_batch=4
    ),
    "TypeError: `options` must be an argument of PoissonBatches": lambda: (
        samples(options=4)
    ),
}
MODELS = {
    "TypeError: `model` must be a Model.*=None": lambda: PrivateModel(None),
    "TypeError: `model` must be a Model.*net": lambda: PrivateModel(net),
    "TypeError: `model` must not be private already": lambda: PrivateModel(
        PrivateModel(net())
    ),
    "ValueError: `self_check_examples` must be 0 or >= 2": lambda: PrivateModel(
        net(), self_check_examples=1
    ),
    "TypeError: `self_check_examples` must be an integer": lambda: PrivateModel(
        net(), self_check_examples="a"
    ),
    "TypeError: `optimizer` must be .*such as DPAdam.*'adam'": lambda: (
        PrivateModel(net()).compile("adam", loss="mse")
    ),
    "TypeError: `optimizer` must be .*such as DPAdam": lambda: PrivateModel(
        net()
    ).compile(keras.optimizers.Adam(), "mse"),
    "ValueError: `loss` must be given": lambda: private(loss=None),
    "TypeError: `metric` must be an argument of compile.*`metrics`": lambda: (
        private(metric=["mse"])
    ),
    "TypeError: `batch_statistics` m": lambda: private(batch_statistics=True),
    "ValueError: `batch_statistics` must be None": lambda: fit(
        private(batch_statistics=query())
    ),
    "PrivateTrainingError: .*Use fit": lambda: private().train_step((X, Y)),
    r"AttributeError: `target` must not be set.*fit\(target_epsilon=": lambda: (
        setattr(private(), "target", 3.0)
    ),
    "AttributeError: `epochs` .*name of a setting.*another name": lambda: (
        setattr(private(), "epochs", 3)
    ),
    "AttributeError: `noise` must not be set.*make_private": lambda: setattr(
        made(), "noise", "proven"
    ),
    r"ValueError: .*call `compile\(\)`": lambda: PrivateModel(net()).fit(
        samples()
    ),
    "ValueError: `y` must": lambda: private().evaluate(samples(), Y),
    "ValueError: `batch_size` must": lambda: private().predict(
        samples(), batch_size=4
    ),
    r"ValueError: .*`compile\(\)`": lambda: PrivateModel(net()).evaluate(X, Y),
    "UnsupportedLayerError: (?!in user code).*own_noise": lambda: fit(
        checked(net(OwnNoise(), keras.layers.Dense(1)))
    ),
    "ValueError: `misspelt` fails": lambda: fit(private(loss=misspelt)),
}
FITS = {
    "ValueError: `x` must be given.*make_private ag": lambda: private().fit(),
    r"ValueError: `y` must be given.*PoissonBatches\(\(x, x\)": lambda: fit(
        private(), samples(X)
    ),
    "ValueError: `y` must be given": lambda: fit(private(), X),
    "ValueError: `y` must hold numbers.*text.*np.unique": lambda: fit(
        private(), samples((X, Y.astype(str)))
    ),
    "ValueError: `x` must hold numbers.*text.*StringLookup": lambda: fit(
        private(), samples((X.astype(str), Y))
    ),
    r"ValueError: `x` must hold .*objects.*dtype.*tf.constant\(x\)": lambda: (
        private().fit(X.astype(object), Y)
    ),
    "ValueError: `y` must hold .*objects.*dtype.*np.unique": lambda: (
        private().fit(X, Y.astype(object))
    ),
    r"ValueError: `validation_data` .*text.*tf.constant\(x\)": lambda: fit(
        private(), validation_data=(X.astype(str), Y)
    ),
    "ValueError: `validation_data` .*text.*Number the classes": lambda: fit(
        private(), validation_data=(X, Y.astype(str))
    ),
    "ValueError: .* numbers or.*float8_e5m2 at /0.*float32": lambda: samples(
        (X.astype(ml_dtypes.float8_e5m2), Y)
    ),
    r"ValueError: .* numbers or.*datetime64\[D\] at /0.*timedelta64": lambda: (
        samples((X.astype("datetime64[D]"), Y))
    ),
    r"ValueError: `y` must .* one-hot rows .*\(40, 2\)\. Change": lambda: (
        private(
            net(keras.layers.Dense(2)), loss="sparse_categorical_crossentropy"
        ).train_on_batch(X, X[:, :2])
    ),
    r"ValueError: `y` must .* shape of the outputs .*\(40, 3\)\.": lambda: (
        private(net(keras.layers.Dense(2))).train_on_batch(X, X)
    ),
    r"ValueError: `y` must hold integer labels in \[0, 1\)(?!.*4)": lambda: (
        private(
            loss="sparse_categorical_crossentropy", run_eagerly=True
        ).train_on_batch(X[:2], 4 * Y[:2])
    ),
    r"ValueError: `x` must hold ids in \[0, 2\)(?!.*4)": lambda: private(
        net(keras.layers.Embedding(2, 1)), run_eagerly=True
    ).train_on_batch(4 * Y[:2].repeat(3, axis=1), Y[:2]),
    r"ValueError: .*expected axis -1 .*value 3, .*\(24, 2\)": lambda: fit(
        private(), samples((X[:, :2], Y))
    ),
    "ValueError: `y` must not be given": lambda: fit(private(), samples(), Y),
    "ValueError: `sample_weight` must not be given": lambda: fit(
        private(), sample_weight=Y
    ),
    "ValueError: `batch_size` must not be given with a sampler": lambda: fit(
        private(), batch_size=8
    ),
    "ValueError: `validation_split` must not be .* validation_data": lambda: (
        fit(private(), validation_split=0.1)
    ),
    r"ValueError: `x` must come with targets.*evaluate\(x, y\)": lambda: (
        private().evaluate(X, verbose=0)
    ),
    "ValueError: `epochs` must.*=0": lambda: fit(private(), epochs=0),
    "ValueError: `epochs` must.*=-1": lambda: fit(private(), epochs=-1),
    r"ValueError: `epochs \* steps_per_epoch` must.*fits 64 bits": lambda: fit(
        private(), epochs=2**62, steps_per_epoch=4
    ),
    "TypeError: `epochs` must be an int.*'a'": lambda: fit(
        private(), epochs="a"
    ),
    "TypeError: `epochs` must be an int.*1.5": lambda: fit(
        private(), epochs=1.5
    ),
    **{
        f"ValueError: `{name}` must .*>= 1.*={value}.* Leave it out": (
            lambda name=name, value=value: fit(private(), **{name: value})
        )
        for name, value in (
            ("batch_size", 0),
            ("steps_per_epoch", 0),
            ("steps_per_epoch", -1),
            ("validation_steps", 0),
            ("validation_batch_size", -1),
            ("validation_freq", 0),
        )
    },
    "TypeError: .*an integer.*'3'": lambda: fit(private(), steps_per_epoch="3"),
    "ValueError: `initial_epoch` m": lambda: fit(private(), initial_epoch=-1),
    "ValueError: .*in .0, 1": lambda: fit(
        private(), X, Y, validation_split=1.5
    ),
    "TypeError: `epoch` must be an argument of fit.*mean `epochs`": lambda: fit(
        private(), epoch=3
    ),
    "ValueError: `target_epsilon` must": lambda: fit(
        private(), target_epsilon=0
    ),
    "ValueError: `delta` must.*=2": lambda: fit(private(), delta=2.0),
    "ValueError: `delta` must.*=0": lambda: fit(private(), delta=0.0),
    "TypeError: `delta` must": lambda: fit(private(), delta="1e-5"),
    "ValueError: `x` must hold at least one record": lambda: fit(
        private(), X[:0], Y[:0]
    ),
    "ValueError: `validation_data` must hold at least one record": lambda: fit(
        private(), validation_data=(X[:0], Y[:0])
    ),
    "ValueError: `validation_data` must be data.*No round ran.*: 40.*: 39": (
        lambda: fit(private(), validation_data=(X, Y[1:]))
    ),
    "TypeError: .*Pass the sampler to fit": lambda: private().train_on_batch(
        samples()
    ),
    "ValueError: `y` must be given.*alone": lambda: private().train_on_batch(X),
    "ValueError: `x` must be given": lambda: private().train_on_batch(None),
    "ValueError: .*the same number of them": lambda: private().train_on_batch(
        X, Y[:3]
    ),
    "PrivateTrainingError: .*must not be started inside another": lambda: fit(
        private(), callbacks=[Calls(fit)]
    ),
    "PrivateTrainingError: .*must not be compiled while it trains": lambda: fit(
        private(), callbacks=[Calls(lambda m: m.compile(optimizer(), "mse"))]
    ),
    "TypeError: `callbacks` must be a list": lambda: fit(
        private(), callbacks=keras.callbacks.CallbackList()
    ),
    "TypeError: `callbacks` must hold .*no classes.*EarlyStopping'": lambda: (
        fit(private(), callbacks=[keras.callbacks.EarlyStopping])
    ),
    "TypeError: `callbacks` must hold .*no classes.*print": lambda: fit(
        private(), callbacks=[print]
    ),
    "ValueError: `verbose` must be .*: verbose='yes'": lambda: fit(
        private(), verbose="yes"
    ),
    "ValueError: `verbose` must be .*: verbose=3": lambda: fit(
        private(), verbose=3
    ),
    "ValueError: `x` must have arrays without a mask.*filled": lambda: fit(
        private(), np.ma.array(X), Y
    ),
    "ValueError: `y` must have arrays without a mask.*filled": lambda: fit(
        private(), X, np.ma.array(Y)
    ),
    "ValueError: `data` must have arrays without a mask.*at /0": lambda: (
        samples((np.ma.array(X), Y))
    ),
}
RECIPES = {
    "TypeError: `data` must be .x, y.": lambda: made(data=None),
    "ValueError: `data` must have": lambda: made(data=(X, Y[:-1])),
    "TypeError: `ledger` must be": lambda: made(ledger=None),
    "ValueError: .*less than 1/N for N = 40 .*0.025": lambda: made(
        delta=1 / 40
    ),
    "TypeError: `lossweights` must be an argument.*`loss_weights`": lambda: (
        made(lossweights=1)
    ),
    "TypeError: .*not be private already": lambda: made(PrivateModel(net())),
    "TypeError: `noise_multiplier` .* of make_private.*PrivateM": lambda: made(
        noise_multiplier=1.0
    ),
    "TypeError: .*Did you mean `learning_rate`": lambda: made(lr=0.1),
    "TypeError: .*Did you mean `target_epsilon`": lambda: made(eps=3.0),
    r"TypeError: .*Did you mean `validation_data`\? Pass it to fit": lambda: (
        made(val_data=(X, Y))
    ),
    "TypeError: `physical_batch_size` .*Pass a sampler with it": lambda: made(
        physical_batch_size=8
    ),
    "TypeError: `data` must hold the targets.*1 more.*Pass .x, y": lambda: (
        keras_dp.make_private(net(), X, Y, target_epsilon=2.0)
    ),
    "TypeError: `optimizer` must not be private already.*DPSGD": lambda: made(
        optimizer=optimizer()
    ),
    "ValueError: `loss_scale_factor` of `optimizer` .*loss_scale=": lambda: (
        made(optimizer=keras.optimizers.SGD(loss_scale_factor=8.0))
    ),
    "TypeError: .*Pass it to fit": lambda: made(class_weight={0: 1.0}),
    "TypeError: .*Pass Records": lambda: made(unit_ids=Y),
    "TypeError: `y` must .*Pass .x, y., or .x, y, sample_weight.": lambda: made(
        y=Y
    ),
    "TypeError: `sample_weight` must .*Pass .x, y., or .x, y, sam": lambda: (
        made(sample_weight=Y)
    ),
    r"ValueError: .*shapes( \(3,\),?){4} and 37 more\. .* np.stack": lambda: (
        made(data=(list(X), Y))
    ),
    "TypeError: `data` must be .*generator.*from_generator": lambda: made(
        data=(record for record in zip(X, Y, strict=True))
    ),
    "TypeError: .*`steps_per_execution`": lambda: made(steps_per_excecution=2),
    "TypeError: `learning_rate` must .*LearningRateSchedule": lambda: made(
        learning_rate=lambda step: 0.1
    ),
    "PrivateTrainingError: `augment` .*weights.*Dense, with 2.*=Fa": lambda: (
        made(data=keras_dp.Records((X, Y), augment=keras.layers.Dense(3))).fit(
            verbose=0
        )
    ),
}
ERRORS = (
    AttributeError,
    PrivateTrainingError,
    TypeError,
    UnsupportedLayerError,
    ValueError,
)


def assert_explained(mistake, words):
    with pytest.raises(ERRORS) as caught:
        mistake()

    assert re.match(words, f"{caught.typename}: {caught.value}", re.DOTALL)


@pytest.mark.parametrize(
    ("words", "mistake"),
    (OPTIMIZERS | QUERIES | MODELS | FITS | RECIPES).items(),
)
@pytest.mark.filterwarnings("ignore")
def test_a_mistake_is_explained(words, mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # No ledger is left behind.

    assert_explained(mistake, words)


@pytest.mark.parametrize(
    "data", [X, (X,), samples(X)], ids=["x", "tuple", "sampler"]
)
def test_validation_data_without_targets_are_explained(data) -> None:
    words = "ValueError: `validation_data` must come with targets.*alone"
    assert_explained(lambda: fit(private(), validation_data=data), words)


@pytest.mark.filterwarnings("ignore")
def test_nothing_runs_where_all_epochs_are_over() -> None:
    own = ledger()

    history = fit(private(own=optimizer(ledger=own)), initial_epoch=1)

    assert (history.history, history.epoch) == ({}, [])
    assert own.runs == ()


@pytest.mark.full
def test_another_backend_is_refused_in_one_sentence() -> None:
    code = (
        "import keras; keras.backend.backend = lambda: 'jax'; "
        "import keras_dp; keras_dp.PrivateModel"
    )
    ran = programs.python("-c", code)

    assert "ImportError: Keras must run on TensorFlow" in ran.stderr
    assert "KERAS_BACKEND=tensorflow" in ran.stderr
