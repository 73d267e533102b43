"""KerasHub's backbones and tasks against the slow loop."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_hub import models

from keras_dp import make_private
from keras_dp.errors import (
    GradientCheckError,
    PrivateTrainingError,
    UnsupportedLayerError,
)
from keras_dp.gradients import GradientEngine, self_check
from tests.slow_loop import (
    BATCH,
    answers,
    assert_answers,
    compiled,
    loop,
    losses_of,
    normal,
)

_LENGTH, _ROWS = 6, 23
# Only the layers of `_vit` follow on each other: the others are slow to trace.
_SIZES = {"vocabulary_size": _ROWS, "num_layers": 1, "hidden_dim": 8}
_INSIDE = {"intermediate_dim": 12}
_ENCODER = _SIZES | _INSIDE | {"num_heads": 2, "dropout": 0.0}
_LEARNED = _ENCODER | {"max_sequence_length": _LENGTH}
_DECODER = _SIZES | _INSIDE | {"num_query_heads": 2, "num_key_value_heads": 1}
# Weights of layers without a rule: vectors, positions, buckets, patches and
# experts. A table has more: `_ROWS` rows.
_MOST_WITHOUT_RULE = {
    "MixtralTransformerDecoder": 1100,
    "ViTPatchingAndEmbedding": 440,
}
_MOST = 80
# It gathers by indices of each example.
_NOT_PROVEN = {"masked_lm"}
# And the activation of experts has a gradient of its own.
_LOOPS = {"masked_lm", "mixtral"}


class _Case(NamedTuple):
    name: str
    make: Callable[[], keras.Model]
    data: Callable[[], Any]


def _tokens(*others: str, prefix: str = "", count: int = BATCH) -> Any:
    random = np.random.default_rng(2)
    ids = random.integers(1, _ROWS, (count, _LENGTH)).astype("int32")
    mask = np.ones_like(ids)
    mask[0, -2:] = 0
    data = {f"{prefix}token_ids": ids, f"{prefix}padding_mask": mask}
    if "segment_ids" in others:
        data["segment_ids"] = random.integers(0, 2, ids.shape).astype("int32")
    if "mask_positions" in others:
        places = random.integers(0, _LENGTH, (count, 2))
        data["mask_positions"] = places.astype("int32")
    return data


def _sequences() -> Any:
    return _tokens(prefix="encoder_") | _tokens(prefix="decoder_")


def _resnet(*, frozen: bool = True) -> keras.Model:
    model = models.ResNetBackbone(
        input_conv_filters=[4],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[1],
        block_type="bottleneck_block",
        image_shape=(8, 8, 3),
    )
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = not frozen
    return model


def _vit() -> keras.Model:
    return models.ViTBackbone(
        image_shape=(8, 8, 3),
        patch_size=4,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=12,
    )


def _mixtral() -> keras.Model:
    return models.MixtralBackbone(**_DECODER, num_experts=3)


def _mixtral_without_balance() -> keras.Model:
    model = _mixtral()
    for layer in model._flatten_layers():
        layer.add_loss = lambda loss: None
    return model


def _gemma3() -> keras.Model:
    return models.Gemma3Backbone(
        **_DECODER, head_dim=4, image_size=16, vision_encoder=None
    )


def _bert() -> keras.Model:
    return models.BertBackbone(**_LEARNED)


def _masked_lm() -> keras.Model:
    return models.BertMaskedLM(_bert(), preprocessor=None)


def _gpt2_lm() -> keras.Model:
    backbone = models.GPT2Backbone(**_LEARNED)
    return models.GPT2CausalLM(backbone, preprocessor=None)


def _gemma_lm() -> keras.Model:
    backbone = models.GemmaBackbone(**_DECODER, head_dim=4)
    return models.GemmaCausalLM(backbone, preprocessor=None)


def _masked_tokens() -> Any:
    return _tokens("segment_ids", "mask_positions")


_STANDARD = [_Case("vit", _vit, lambda: normal(8, 8, 3))]
_FULL = [
    _Case("masked_lm", _masked_lm, _masked_tokens),
    _Case("mixtral", _mixtral_without_balance, _tokens),
    _Case("resnet", _resnet, lambda: normal(8, 8, 3)),
]
_NIGHTLY = [
    _Case("t5", lambda: models.T5Backbone(**_ENCODER), _sequences),
    _Case("gemma_lm", _gemma_lm, _tokens),
    _Case("gpt2_lm", _gpt2_lm, _tokens),
    _Case("bart", lambda: models.BartBackbone(**_LEARNED), _sequences),
    _Case("gemma3", _gemma3, _tokens),
    _Case("llama", lambda: models.LlamaBackbone(**_DECODER), _tokens),
]
_CASES = [
    *(pytest.param(each, id=each.name) for each in _STANDARD),
    *(
        pytest.param(each, id=each.name, marks=pytest.mark.full)
        for each in _FULL
    ),
    *(
        pytest.param(each, id=each.name, marks=pytest.mark.nightly)
        for each in _NIGHTLY
    ),
]


# T5's attention takes masks as arguments, and drops those of Keras.
@pytest.mark.filterwarnings("ignore:.*unbuilt state:UserWarning")
@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")
@pytest.mark.parametrize("case", _CASES)
def test_backbones_agree_with_the_loop(case: _Case) -> None:
    keras.utils.set_random_seed(7)
    model, data = case.make(), case.data()
    engine = _compared(model, data)
    assert engine.is_proven_apart == (case.name not in _NOT_PROVEN)
    loops = "example by example" in engine.readings.values()
    assert loops == (case.name in _LOOPS)
    for hook in engine.hooks:
        if hook.rule is None:
            built = sum(math.prod(v.shape) for v in hook.variables)
            name = type(hook.layer).__name__
            assert built <= _MOST_WITHOUT_RULE.get(name, _MOST), name


def _compared(
    model: keras.Model, data: Any, dtype: str = "float32", mode: str = "graph"
) -> GradientEngine:
    """Compares gradients with those of the loop, and returns their engine."""
    _moved(model)
    engine = GradientEngine(model, jit_compile=mode == "jit")

    def found(data: Any) -> Any:
        records = engine.gradients(data, _losses_of, BATCH).records
        return [answers(each, "float32") for each in records]

    @tf.function(autograph=False)
    def loss_of(row: Any) -> tf.Tensor:
        return _losses_of(model(row, training=True))

    got = compiled(found, mode)(data)
    want = loop(loss_of, model.trainable_variables, data)
    assert_answers(keras.tree.map_structure(np.asarray, got), want, dtype)
    return engine


def _losses_of(outputs: Any) -> tf.Tensor:
    return losses_of(
        keras.tree.map_structure(lambda x: tf.cast(x, tf.float32), outputs)
    )


def _moved(model: keras.Model) -> None:
    """Takes weights off their initial values, of which many are 0."""
    for index, variable in enumerate(model.trainable_variables):
        noise = tf.random.stateless_normal(variable.shape, [0, index])
        variable.assign_add(0.1 * tf.cast(noise, variable.dtype))


class TestRefusals:
    """The message names the layer and the remedy."""

    def test_losses_that_balance_experts(self) -> None:
        engine = GradientEngine(_mixtral())

        with pytest.raises(UnsupportedLayerError, match=r"moe.*add_loss = "):
            engine.gradients(_tokens(), _losses_of, BATCH)

    @pytest.mark.full
    @pytest.mark.filterwarnings("ignore:.*unbuilt state:UserWarning")
    def test_masks_that_mix_examples(self) -> None:
        """XLNet reshapes its mask where it would have to transpose it."""
        keras.utils.set_random_seed(7)
        model = models.XLNetBackbone(**_ENCODER)
        data = keras.tree.map_structure(tf.constant, _tokens("segment_ids"))

        with pytest.raises(
            GradientCheckError, match=r"that example only.*Mask"
        ):
            self_check(GradientEngine(model), data, _losses_of, BATCH)


def test_tasks_that_preprocess_are_refused() -> None:
    model = models.BertTextClassifier(
        _bert(), num_classes=3, preprocessor=keras.layers.Identity()
    )
    data = (_tokens("segment_ids"), np.zeros(BATCH))

    with pytest.raises(PrivateTrainingError, match="preprocessor = None"):
        make_private(
            model, data, target_epsilon=8.0, epochs=1, loss="mse", batch_size=2
        )
