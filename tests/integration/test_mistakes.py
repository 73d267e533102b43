"""Mistakes of users get one sentence that names the argument and the remedy."""

import keras
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


# What is done, the type of the error, and the words that its message must have.
OPTIMIZERS = [
    (lambda: optimizer(ledger=None), TypeError, "`ledger` must .*=None.*open"),
    (lambda: optimizer(ledger="a"), TypeError, "`ledger` must .*'a'.*open"),
    (lambda: optimizer(query=None), TypeError, "`query` must .*=None"),
    (lambda: optimizer(query=1.1), TypeError, "`query` must .*GaussianAverage"),
    (lambda: optimizer(seed="a"), TypeError, "`seed` must be an integer"),
    (lambda: optimizer(seed=-1), ValueError, "`seed` must be an integer >= 0"),
    (lambda: optimizer(groups=["a"]), TypeError, "`groups` must be a dict"),
    (
        lambda: DPOptimizer("adam", query=query(), ledger=ledger()),
        TypeError,
        "`inner` must be a keras.optimizers.Optimizer",
    ),
    (
        lambda: DPOptimizer(optimizer(), query=query(), ledger=ledger()),
        TypeError,
        "`inner` must not be private already.*DPSGD",
    ),
    (
        lambda: DPOptimizer(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
            query=query(),
            ledger=ledger(),
        ),
        (TypeError, PrivateTrainingError),
        "scale",
    ),
    (
        lambda: DPSGD(
            0.1, query=query(), ledger=ledger(), gradient_accumulation_steps=2
        ),
        ValueError,
        "`gradient_accumulation_steps` of .*must .*physical_batch_size",
    ),
    (trained_by_keras, PrivateTrainingError, "Wrap the model"),
]
# `test_arguments.py` of queries and of samplers has the others.
QUERIES = [
    (lambda: query(denominator=None), TypeError, "`denominator` must be given"),
    (
        lambda: samples(physical_batch=4),
        TypeError,
        "`physical_batch` must be an argument of PoissonBatches.*"
        "`physical_batch_size`",
    ),
    (
        lambda: samples(options=4),
        TypeError,
        "`options` must be an argument of PoissonBatches",
    ),
]
MODELS = [
    (lambda: PrivateModel(None), TypeError, "`model` must be a Model"),
    (lambda: PrivateModel(net), TypeError, "`model` must be a Model"),
    (
        lambda: PrivateModel(PrivateModel(net())),
        TypeError,
        "`model` must not be private already",
    ),
    (
        lambda: PrivateModel(net(), self_check_examples=1),
        ValueError,
        "`self_check_examples` must be 0 or >= 2",
    ),
    (
        lambda: PrivateModel(net(), self_check_examples="a"),
        TypeError,
        "`self_check_examples` must be an integer",
    ),
    (
        lambda: PrivateModel(net()).compile("adam", loss="mse"),
        TypeError,
        "`optimizer` must be .*such as DPAdam.*'adam'",
    ),
    (
        lambda: PrivateModel(net()).compile(keras.optimizers.Adam(), "mse"),
        TypeError,
        "`optimizer` must be .*such as DPAdam",
    ),
    (lambda: private(loss=None), ValueError, "`loss` must be given"),
    (
        lambda: private(metric=["mse"]),
        TypeError,
        "`metric` must be an argument of compile.*`metrics`",
    ),
    (lambda: private(batch_statistics=True), TypeError, "`batch_statistics` m"),
    (
        lambda: fit(private(batch_statistics=query())),
        ValueError,
        "`batch_statistics` must be None",
    ),
    (lambda: private().train_step((X, Y)), PrivateTrainingError, "Use fit"),
    (
        lambda: setattr(private(), "target", 3.0),
        AttributeError,
        r"`target` must not be set.*fit\(target_epsilon=",
    ),
    (
        lambda: setattr(private(), "epochs", 3),
        AttributeError,
        "`epochs` .*name of a setting.*class of your own another name",
    ),
    (
        lambda: setattr(made(), "noise", "proven"),
        AttributeError,
        "`noise` must not be set.*make_private",
    ),
    (
        lambda: PrivateModel(net()).fit(samples()),
        ValueError,
        r"call `compile\(\)`",
    ),
    (
        lambda: private().evaluate(samples(), Y),
        ValueError,
        "`y` must",
    ),
    (
        lambda: private().predict(samples(), batch_size=4),
        ValueError,
        "`batch_size` must",
    ),
    (lambda: PrivateModel(net()).evaluate(X, Y), ValueError, r"`compile\(\)`"),
    (
        lambda: fit(checked(net(OwnNoise(), keras.layers.Dense(1)))),
        UnsupportedLayerError,
        "^(?!in user code).*own_noise",
    ),
    (lambda: fit(private(loss=misspelt)), ValueError, "^`misspelt` fails"),
]
FITS = [
    (lambda: private().fit(), ValueError, "`x` must be given.*make_private ag"),
    (
        lambda: fit(private(), samples(X)),
        ValueError,
        r"`y` must be given.*PoissonBatches\(\(x, x\)",
    ),
    (lambda: fit(private(), X), ValueError, "`y` must be given"),
    (
        lambda: fit(private(), samples((X, Y.astype(str)))),
        ValueError,
        "`y` must hold numbers.*text.*np.unique",
    ),
    (
        lambda: fit(private(), samples((X.astype(str), Y))),
        ValueError,
        "`x` must hold numbers.*text.*StringLookup",
    ),
    (
        lambda: samples((X.astype("datetime64[D]"), Y)),
        ValueError,
        r"arrays of numbers or of text.*datetime64\[D\] at /0.*timedelta64",
    ),
    (
        lambda: private(
            net(keras.layers.Dense(2)), loss="sparse_categorical_crossentropy"
        ).train_on_batch(X, X[:, :2]),
        ValueError,
        r"^`y` must .* one-hot rows .*\(40, 2\)\. Change the loss",
    ),
    (
        lambda: private(net(keras.layers.Dense(2))).train_on_batch(X, X),
        ValueError,
        r"^`y` must .* the shape of the outputs .*\(40, 3\)\. Change",
    ),
    (
        lambda: private(
            loss="sparse_categorical_crossentropy", run_eagerly=True
        ).train_on_batch(X[:2], 4 * Y[:2]),
        ValueError,
        r"^`y` must hold integer labels in \[0, 1\)(?!.*4)",
    ),
    (
        lambda: private(
            net(keras.layers.Embedding(2, 1)), run_eagerly=True
        ).train_on_batch(4 * Y[:2].repeat(3, axis=1), Y[:2]),
        ValueError,
        r"^`x` must hold ids in \[0, 2\)(?!.*4)",
    ),
    (
        lambda: fit(private(), samples((X[:, :2], Y))),
        ValueError,
        r"expected axis -1 .*value 3, .*\(24, 2\)",
    ),
    (lambda: fit(private(), samples(), Y), ValueError, "`y` must not be given"),
    (
        lambda: fit(private(), sample_weight=Y),
        ValueError,
        "`sample_weight` must not be given",
    ),
    (
        lambda: fit(private(), batch_size=8),
        ValueError,
        "`batch_size` must not be given with a sampler",
    ),
    (
        lambda: fit(private(), validation_split=0.1),
        ValueError,
        "`validation_split` must not be given .* validation_data",
    ),
    *(
        (
            lambda data=data: fit(private(), validation_data=data),
            ValueError,
            "`validation_data` must come with targets.*alone",
        )
        for data in (X, (X,), samples(X))
    ),
    (
        lambda: private().evaluate(X, verbose=0),
        ValueError,
        r"`x` must come with targets.*evaluate\(x, y\)",
    ),
    (lambda: fit(private(), epochs=0), ValueError, "`epochs` must"),
    (lambda: fit(private(), epochs=-1), ValueError, "`epochs` must"),
    (lambda: fit(private(), epochs="a"), TypeError, "`epochs` must be an int"),
    (lambda: fit(private(), epochs=1.5), TypeError, "`epochs` must be an int"),
    *(
        (
            lambda name=name, value=value: fit(private(), **{name: value}),
            ValueError,
            f"`{name}` must .*>= 1.*={value}.* Leave it out",
        )
        for name, value in (
            ("batch_size", 0),
            ("steps_per_epoch", 0),
            ("steps_per_epoch", -1),
            ("validation_steps", 0),
            ("validation_batch_size", -1),
            ("validation_freq", 0),
        )
    ),
    (lambda: fit(private(), steps_per_epoch="3"), TypeError, "an integer.*'3'"),
    (lambda: fit(private(), initial_epoch=-1), ValueError, "`initial_epoch` m"),
    (
        lambda: fit(private(), X, Y, validation_split=1.5),
        ValueError,
        "in .0, 1",
    ),
    (
        lambda: fit(private(), epoch=3),
        TypeError,
        "`epoch` must be an argument of fit.*Did you mean `epochs`",
    ),
    (
        lambda: fit(private(), target_epsilon=0),
        ValueError,
        "`target_epsilon` must",
    ),
    (lambda: fit(private(), delta=2.0), ValueError, "`delta` must"),
    (lambda: fit(private(), delta=0.0), ValueError, "`delta` must"),
    (lambda: fit(private(), delta="1e-5"), TypeError, "`delta` must"),
    (
        lambda: fit(private(), X[:0], Y[:0]),
        ValueError,
        "`x` must hold at least one record",
    ),
    (
        lambda: private().train_on_batch(samples()),
        TypeError,
        "Pass the sampler to fit",
    ),
    (lambda: private().train_on_batch(X), ValueError, "`y` must be given"),
    (lambda: private().train_on_batch(None), ValueError, "`x` must be given"),
    (
        lambda: private().train_on_batch(X, Y[:3]),
        ValueError,
        "the same number of them",
    ),
    (
        lambda: fit(private(), callbacks=[Calls(fit)]),
        PrivateTrainingError,
        "must not be started inside another",
    ),
    (
        lambda: fit(
            private(),
            callbacks=[Calls(lambda m: m.compile(optimizer(), "mse"))],
        ),
        PrivateTrainingError,
        "must not be compiled while it trains",
    ),
    (
        lambda: fit(private(), callbacks=keras.callbacks.CallbackList()),
        TypeError,
        "`callbacks` must be a list",
    ),
    *(
        (
            lambda callback=callback: fit(private(), callbacks=[callback]),
            TypeError,
            "`callbacks` must hold .*no classes",
        )
        for callback in (keras.callbacks.EarlyStopping, print)
    ),
    *(
        (
            lambda verbose=verbose: fit(private(), verbose=verbose),
            ValueError,
            f"`verbose` must be .*Received: verbose={verbose!r}",
        )
        for verbose in ("yes", 3)
    ),
    *(
        (
            lambda data=data: fit(private(), *data),
            ValueError,
            "`[xy]` must have arrays without a mask.*filled",
        )
        for data in ((np.ma.array(X), Y), (X, np.ma.array(Y)))
    ),
    (
        lambda: samples((np.ma.array(X), Y)),
        ValueError,
        "`data` must have arrays without a mask.*at /0",
    ),
]
RECIPES = [
    (lambda: made(data=None), TypeError, "`data` must be .x, y."),
    (lambda: made(data=(X, Y[:-1])), ValueError, "`data` must have"),
    (lambda: made(ledger=None), TypeError, "`ledger` must be"),
    (
        lambda: made(delta=1 / 40),
        ValueError,
        "less than 1/N for N = 40 .*0.025",
    ),
    (
        lambda: made(lossweights=1),
        TypeError,
        "`lossweights` must be an argument of .*`loss_weights`",
    ),
    (lambda: made(PrivateModel(net())), TypeError, "not be private already"),
    (
        lambda: made(noise_multiplier=1.0),
        TypeError,
        "`noise_multiplier` must be an argument of make_private.*PrivateModel",
    ),
    (lambda: made(lr=0.1), TypeError, "Did you mean `learning_rate`"),
    (lambda: made(eps=3.0), TypeError, "Did you mean `target_epsilon`"),
    (
        lambda: made(val_data=(X, Y)),
        TypeError,
        r"Did you mean `validation_data`\? Pass it to fit",
    ),
    (
        lambda: made(physical_batch_size=8),
        TypeError,
        "`physical_batch_size` .*Pass a sampler with it",
    ),
    (
        lambda: keras_dp.make_private(net(), X, Y, target_epsilon=2.0),
        TypeError,
        "`data` must hold the targets.*1 more.*Pass .x, y., or",
    ),
    (
        lambda: made(optimizer=optimizer()),
        TypeError,
        "`optimizer` must not be private already.*DPSGD",
    ),
    (
        lambda: made(optimizer=keras.optimizers.SGD(loss_scale_factor=8.0)),
        ValueError,
        "`loss_scale_factor` of `optimizer` must .*loss_scale=",
    ),
    (lambda: made(class_weight={0: 1.0}), TypeError, "Pass it to fit"),
    (lambda: made(unit_ids=Y), TypeError, "Pass Records"),
    *(
        (
            lambda name=name: made(**{name: Y}),
            TypeError,
            f"`{name}` must .*Pass .x, y., or .x, y, sample_weight.",
        )
        for name in ("y", "sample_weight")
    ),
    (
        lambda: made(data=(list(X), Y)),
        ValueError,
        r"shapes( \(3,\),?){4} and 37 more\. .* np.stack",
    ),
    (
        lambda: made(data=(record for record in zip(X, Y, strict=True))),
        TypeError,
        "`data` must be .*generator.*from_generator",
    ),
    (lambda: made(steps_per_excecution=2), TypeError, "`steps_per_execution`"),
    (
        lambda: made(learning_rate=lambda step: 0.1),
        TypeError,
        "`learning_rate` must .*LearningRateSchedule",
    ),
    (
        lambda: made(
            data=keras_dp.Records((X, Y), augment=keras.layers.Dense(3))
        ).fit(verbose=0),
        PrivateTrainingError,
        "`augment` must have no weights.*Dense, with 2.*trainable=False",
    ),
]
ALL = OPTIMIZERS + QUERIES + MODELS + FITS + RECIPES


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [pytest.param(*case, id=f"{case[2]} {i}") for i, case in enumerate(ALL)],
)
@pytest.mark.filterwarnings("ignore")
def test_a_mistake_is_explained(mistake, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # No ledger is left behind.

    with pytest.raises(error, match=f"(?s){words}"):
        mistake()


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
