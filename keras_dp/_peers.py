"""Arguments that are missing, or have the names of another library."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from keras_dp import _check

_Callable = TypeVar("_Callable", bound=Callable[..., Any])

# Name in TF Privacy, Opacus or JAX Privacy: what to say instead.
QUERY = {
    "max_grad_norm": "`l2_norm_clip`",
    "clip": "`l2_norm_clip`",
    "clip_norm": "`l2_norm_clip`",
    "clipping_norm": "`l2_norm_clip`",
    "sigma": "`noise_multiplier`, the stddev of the noise over the clip",
    "std_dev": "`noise_multiplier`, the stddev of the noise over the clip",
    "batch_size": "`denominator`, the expected number of records in a sample",
    "expected_batch_size": "`denominator`, the same number",
    "num_microbatches": (
        "`PoissonBatches(..., microbatches=)`: every example is clipped alone"
    ),
}
SAMPLER = {
    "batch_size": (
        "`sampling_probability`, batch_size / N: the size of a sample is random"
    ),
    "sample_rate": "`sampling_probability`",
    "q": "`sampling_probability`",
    "epochs": "`epochs` of fit",
    "shuffle": "nothing: every sample is drawn anew",
    "num_microbatches": "`microbatches=RandomMicrobatches(...)`",
}
_NO_MICROBATCHES = (
    "`PoissonBatches(..., microbatches=)`: other samples have single records"
)
FIXED_SIZE = {
    "batch_size": "`sample_size`",
    "sampling_probability": "`sample_size`, the number of records of a sample",
    "epochs": "`epochs` of fit",
    "shuffle": "nothing: every sample is drawn anew",
    "microbatches": _NO_MICROBATCHES,
    "num_microbatches": _NO_MICROBATCHES,
}
SHUFFLED = {
    "sample_size": "`batch_size`",
    "sampling_probability": "`batch_size`: nothing is amplified here",
    "epochs": "`epochs` of fit",
    "shuffle": "nothing: every pass is shuffled anew",
    "rounds_per_epoch": "nothing: an epoch is a pass over the data",
    "drop_remainder": "nothing: the last batch is padded",
    "microbatches": _NO_MICROBATCHES,
    "num_microbatches": _NO_MICROBATCHES,
}
ALLOCATED = {
    "batch_size": "`batches`, N / batch_size: sizes of samples are random",
    "sample_size": "`batches`, N / sample_size: sizes of samples are random",
    "sampling_probability": "`batches`, 1 / sampling_probability",
    "epochs": "`epochs` of fit",
    "shuffle": "nothing: every pass is drawn anew",
    "rounds_per_epoch": "nothing: an epoch is a pass over the data",
    "microbatches": _NO_MICROBATCHES,
    "num_microbatches": _NO_MICROBATCHES,
}
USERS = {
    "batch_size": "`sampling_probability`, users of a round / users",
    "clients_per_round": "`sampling_probability`, clients_per_round / users",
    "unit_ids": "`user_ids`",
    "client_ids": "`user_ids`",
    "rows_per_unit": "`records_per_user`",
    "max_examples_per_user": "`records_per_user`",
    "microbatches": "nothing: the records of a user make one microbatch",
    "epochs": "`epochs` of fit",
    "shuffle": "nothing: every sample is drawn anew",
}
OPTIMIZER = {
    "l2_norm_clip": "`query=GaussianAverageQuery(l2_norm_clip, ...)`",
    "max_grad_norm": "`query=GaussianAverageQuery(l2_norm_clip=...)`",
    "noise_multiplier": "`query=GaussianAverageQuery(noise_multiplier=...)`",
    "num_microbatches": "`PoissonBatches(..., microbatches=)`",
    "unroll_microbatches": "`PoissonBatches(..., microbatches=)`",
    "expected_batch_size": "`query=GaussianAverageQuery(denominator=...)`",
    "batch_size": "`query=GaussianAverageQuery(denominator=...)`",
    "epochs": "`epochs` of fit",
}
RECIPE = {
    "max_grad_norm": "`l2_norm_clip`",
    "clipping_norm": "`l2_norm_clip`",
    "epsilon": "`target_epsilon`",
    "target_delta": "`delta`",
    "num_microbatches": "nothing: every example is clipped alone",
    "noise_multiplier": "`target_epsilon`, from which the noise follows",
    "sampling_probability": "`batch_size`, sampling_probability * N",
    "poisson_sampling": "nothing: samples are always Poisson samples",
}


def explains(names: Mapping[str, str]) -> Callable[[_Callable], _Callable]:
    """Returns a decorator that says which arguments to give instead.

    Its messages name the class that the caller made, where Python names the
    function that was decorated, perhaps that of a class above.

    Args:
        names: From a name that is not ours to what to say instead.

    >>> @explains({"max_grad_norm": "`l2_norm_clip`"})
    ... def clipped(l2_norm_clip):
    ...     return l2_norm_clip
    >>> clipped(max_grad_norm=1.0)
    Traceback (most recent call last):
    ...
    TypeError: `max_grad_norm` must be given as `l2_norm_clip`...
    >>> clipped()
    Traceback (most recent call last):
    ...
    TypeError: `l2_norm_clip` must be given to clipped. Received: nothing...
    """

    def decorate(function: _Callable) -> _Callable:
        signature = inspect.signature(function)
        own = signature.parameters
        required = [n for n, p in own.items() if _is_required(p)]

        @functools.wraps(function)
        def explained(*args: Any, **named: Any) -> Any:
            for name in named:
                if name in names and name not in own:
                    raise TypeError(
                        f"`{name}` must be given as {names[name]}. "
                        f"Received: {name}={_check.shown(named[name])}."
                    )
            is_method = function.__name__ == "__init__"
            caller = type(args[0]).__name__ if is_method else function.__name__
            try:
                given = signature.bind_partial(*args, **named).arguments
            except TypeError as error:
                raise TypeError(f"{caller}: {error}.") from None
            for name in required:
                if name not in given:
                    raise TypeError(
                        f"`{name}` must be given to {caller}. Received: "
                        f"nothing. Pass {name}=..."
                    )
            return function(*args, **named)

        return explained  # type: ignore[return-value]

    return decorate


def _is_required(parameter: inspect.Parameter) -> bool:
    any_number = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return (
        parameter.default is parameter.empty
        and parameter.kind not in any_number
    )
