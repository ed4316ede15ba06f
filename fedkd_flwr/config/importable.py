"""What a run config names, and only this process has."""

from fedkd_flwr.config.errors import ConfigError
from fedkd_flwr.config.reading import Configuration
from fedkd_flwr.custom_objects.importing import is_of_this_process
from fedkd_flwr.methods import REGISTERED


def require_importable(configuration: Configuration, place: str) -> None:
    """Refuse a method, model, data set or partition that exists in this process alone.

    Parameters
    ----------
    configuration : Configuration
        The run config.
    place : str
        What has other processes, for the message.

    Raises
    ------
    ConfigError
        If the config names one.
    """
    if (strategy := configuration.run.strategy) in REGISTERED:
        raise ConfigError(
            f"{strategy} is registered in this process, and {place} other ones: keep what "
            "register returns in a module, and set strategy to module:object."
        )
    for key, value in configuration.flat().items():
        for name in str(value).split(","):
            if is_of_this_process(name):
                raise ConfigError(
                    f"{key} = {name} is an object of this process, and {place} other ones: put "
                    f"it in a module, and set {key} to module:object."
                )
