"""How much noise for differential privacy a run adds to what leaves a client."""

from fedkd_flwr.config.run_config import RunConfig
from strategies.core.plan import Settings
from strategies.soft_predictions import SoftPredictionSettings


def noise_of(run: RunConfig, settings: Settings) -> float:
    """Return the multiplier of the noise on predictions or in training, whichever is larger."""
    of_predictions = isinstance(settings, SoftPredictionSettings) and settings.noise_multiplier
    return max(float(of_predictions), run.dp_sgd.noise_multiplier)


def has_noise(run: RunConfig, settings: Settings) -> bool:
    """Return whether what leaves a client has noise, that of `noise_of` or a method's own."""
    is_private = isinstance(settings, SoftPredictionSettings) and settings.is_private
    return is_private or bool(noise_of(run, settings))
