"""Combinations of settings that are impossible, though each setting is valid."""

from fedkd_flwr.config.run_config import ConfigError, RunConfig
from fedkd_flwr.data.registry import NO_PUBLIC_SET
from fedkd_flwr.data.splits import read_split
from fedkd_flwr.methods import METHODS
from fedkd_flwr.models.registry import DARTS, model_name
from strategies.core.method_record import Need
from strategies.core.plan import Settings
from strategies.parameters import SharedModelSettings
from strategies.spider import SpiderSettings
from strategies.supernets import SearchSettings


def check_combinations(run: RunConfig, settings: Settings) -> None:
    """Refuse impossible combinations of settings."""
    _check_models(run, settings)
    _check_data(run)
    _check_training(run)
    plan = run.plan
    if run.resume and not run.output_dir:
        raise ConfigError("resume = true needs output-dir, the run directory to continue.")
    try:
        run.models.check()
        plan.safeguard.check(run.dp_sgd.noise_multiplier)
        # The search space refuses settings that it cannot have, for any method.
        edges = run.models.search_space.edges
        if isinstance(settings, SpiderSettings) and DARTS in run.models.models:
            of_new_clients = plan.new_client_rounds if plan.new_clients else 0
            settings.check_rounds(edges, plan.num_server_rounds, of_new_clients)
        # What depends on the number of clients is checked when it is known.
        if plan.num_clients:
            plan.check()
            run.method.strategy.check_plan(run.server_plan(), settings)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_models(run: RunConfig, settings: Settings) -> None:
    record, models, plan = run.method.record, run.models.models, run.plan
    if Need.ONE_ARCHITECTURE in record.needs and len(set(models)) > 1:
        searches = isinstance(settings, SearchSettings | SpiderSettings)
        one = DARTS if searches else models[0]
        raise ConfigError(
            f"{run.strategy} averages parameters and needs one architecture for all clients, and "
            f"models = {','.join(models)} names {len(set(models))}; set models to one, such as "
            f"-c models={one}."
        )
    if plan.mixing != "mean" and not record.averages_parameters:
        own = next((key for key in settings.flat_keys() if key.endswith(".mixing")), "")
        remedy = f"{own} = {plan.mixing}" if own else "mixing = mean"
        raise ConfigError(
            f"mixing = {plan.mixing} is for averages of parameters, and the server of "
            f"{run.strategy} takes none; set {remedy}."
        )
    if isinstance(settings, SharedModelSettings):
        try:
            model_name(settings.shared_model)
        except ValueError as error:
            name = f"{settings.table}.shared-model = {settings.shared_model!r}"
            raise ConfigError(f"{name}: {error}.") from None


def _check_data(run: RunConfig) -> None:
    record = run.method.record
    if record.uses_public_data and (
        run.data.public_dataset == NO_PUBLIC_SET or run.plan.public_size < 1
    ):
        on_server = Need.PUBLIC_DATA_ON_SERVER in record.needs
        does = "distills on the server" if on_server else "exchanges predictions"
        raise ConfigError(
            f"{run.strategy} {does} on public samples; set public-dataset to "
            "held-out or a data set, and public-size to at least 1."
        )
    if min(read_split(run.data.split)[1]):
        return
    on = {
        run.strategy: Need.VALIDATION_DATA in record.needs,
        "patience": run.plan.patience,
        "keep-best": run.keep_best,
        "fine-tune-early-stopping": run.training.fine_tune_early_stopping,
        "evaluated-split = validation": run.data.evaluated_split == "validation",
        "safeguard": run.plan.safeguard.is_on,
    }
    for key, is_set in on.items():
        if is_set:
            raise ConfigError(
                f"{key} needs validation data; set client-split to something like 70/10/20."
            )


def _check_training(run: RunConfig) -> None:
    record = run.method.record
    if Need.PLAIN_DESCENT in record.needs and run.training.optimizer != "sgd":
        raise ConfigError(
            f"{run.strategy} is derived for stochastic gradient descent, and optimizer = "
            f"{run.training.optimizer}; set optimizer to sgd."
        )
    if run.dp_sgd.noise_multiplier and not record.dp_sgd:
        raise ConfigError(
            f"{run.strategy} uses training samples outside of plain local training, which "
            "dp-sgd-noise-multiplier does not cover; set it to 0, or strategy to one of "
            f"{', '.join(methods_with('dp_sgd'))}."
        )
    if run.dp_sgd.noise_multiplier and run.training.fine_tune_epochs:
        raise ConfigError(
            "fine-tune-epochs trains before an evaluation without noise, which "
            "dp-sgd-noise-multiplier does not cover; set one of the two to 0."
        )


def methods_with(name: str) -> list[str]:
    """Return the names of the built-in methods whose records say that something is true."""
    return [method for method, of in METHODS.items() if getattr(of.record, name)]
