"""All methods by name, with their strategies and clients.

A new built-in method is one file in `strategies`, one in `fedkd_flwr/clients` unless an existing
client fits, and one entry here. Strategies and clients are named by module and class, and imported
on first use.

A custom method needs no entry: `register` creates it from its classes.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from fedkd_flwr.own import OwnError, find_own, is_own

if TYPE_CHECKING:
    from fedkd_flwr.clients.base import PersonalClient
    from strategies.base import PersonalizedStrategy
    from strategies.core.plan import Settings


FAMILIES = ("soft predictions", "parameters", "class means", "nothing")
"""Kinds of information that methods exchange."""


@dataclass(frozen=True)
class Method:
    """A method: its strategy on the server and its client.

    Attributes
    ----------
    strategy_name, client_name : str
        Names of the classes, as ``module:class``.
    exchanged : str
        What is exchanged, in a few words.
    paper : str
        Source of the method.
    """

    strategy_name: str
    client_name: str
    exchanged: str
    paper: str

    @property
    def family(self) -> str:
        """The member of `FAMILIES`; heads and other parts of models count as parameters."""
        if self.exchanged in FAMILIES:
            return self.exchanged
        return "class means" if self.exchanged.startswith("class-mean") else "parameters"

    @cached_property
    def strategy(self) -> "type[PersonalizedStrategy]":
        """The Flower strategy."""
        strategy: type[PersonalizedStrategy] = resolve_name(self.strategy_name)
        return strategy

    @cached_property
    def client(self) -> "type[PersonalClient]":
        """The NumPyClient."""
        client: type[PersonalClient] = resolve_name(self.client_name)
        return client


METHODS: dict[str, Method] = {
    "kt-pfl": Method(
        "strategies.kt_pfl:KTpFL",
        "fedkd_flwr.clients.kt_pfl:KTpFLClient",
        "soft predictions",
        "Zhang et al. 2021",
    ),
    "sim-pfl": Method(
        "strategies.sim_pfl:SimPFL",
        "fedkd_flwr.clients.kt_pfl:KTpFLClient",
        "soft predictions",
        "Zhang et al. 2021, §5.1",
    ),
    "topk-pfl": Method(
        "strategies.sim_pfl:TopKPFL",
        "fedkd_flwr.clients.kt_pfl:KTpFLClient",
        "soft predictions",
        "Zhang et al. 2021, §5.1",
    ),
    "fedmd": Method(
        "strategies.fedmd:FedMD",
        "fedkd_flwr.clients.kt_pfl:KTpFLClient",
        "soft predictions",
        "Li and Wang 2019",
    ),
    "perfed-ckt": Method(
        "strategies.perfed_ckt:PerFedCKT",
        "fedkd_flwr.clients.perfed_ckt:PerFedCKTClient",
        "soft predictions",
        "Cho et al. 2021",
    ),
    "persfl": Method(
        "strategies.persfl:PersFL",
        "fedkd_flwr.clients.persfl:PersFLClient",
        "parameters",
        "Divi et al. 2021",
    ),
    "persfl-gd": Method(
        "strategies.persfl:PersFLGD",
        "fedkd_flwr.clients.persfl:PersFLGDClient",
        "parameters",
        "Divi et al. 2021, §5.5",
    ),
    "fedkma": Method(
        "strategies.fedkma:FedKMA",
        "fedkd_flwr.clients.fedkma:FedKMAClient",
        "parameters and mean logits",
        "Wang and Wang (FedKMA)",
    ),
    "fednas": Method(
        "strategies.fedkma:FedNAS",
        "fedkd_flwr.clients.fedkma:FedKMAClient",
        "parameters and mean logits",
        "Wang and Wang (FedKMA), manner 3",
    ),
    "local": Method(
        "strategies.local:Local",
        "fedkd_flwr.clients.base:PersonalClient",
        "nothing",
        "baseline",
    ),
    "fedavg": Method(
        "strategies.fedavg:FedAvg",
        "fedkd_flwr.clients.fedavg:FedAvgClient",
        "parameters",
        "McMahan et al. 2017",
    ),
    "fedavg-ft": Method(
        "strategies.fedavg:FedAvgFineTuned",
        "fedkd_flwr.clients.fedavg:FineTuningClient",
        "parameters",
        "baseline",
    ),
    "fedprox": Method(
        "strategies.fedprox:FedProx",
        "fedkd_flwr.clients.fedprox:FedProxClient",
        "parameters",
        "Li et al. 2020",
    ),
    "hypcluster": Method(
        "strategies.hypcluster:HypCluster",
        "fedkd_flwr.clients.hypcluster:HypClusterClient",
        "parameters",
        "Mansour et al. 2020",
    ),
    "fesem": Method(
        "strategies.fesem:FeSEM",
        "fedkd_flwr.clients.fedavg:FedAvgClient",
        "parameters",
        "Xie et al. 2020",
    ),
    "feddf": Method(
        "strategies.feddf:FedDF",
        "fedkd_flwr.clients.fedavg:FedAvgClient",
        "parameters",
        "Lin et al. 2020",
    ),
    "pfeddf": Method(
        "strategies.feddf:PFedDF",
        "fedkd_flwr.clients.fedavg:FineTuningClient",
        "parameters",
        "Zhang et al. 2021, §5.1",
    ),
    "pfedhn": Method(
        "strategies.pfedhn:PFedHN",
        "fedkd_flwr.clients.fedavg:FedAvgClient",
        "parameters",
        "Shamsian et al. 2021",
    ),
    "spider": Method(
        "strategies.spider:Spider",
        "fedkd_flwr.clients.spider:SpiderClient",
        "parameters",
        "Mushtaq et al. 2021",
    ),
    "ds-fl": Method(
        "strategies.ds_fl:DSFL",
        "fedkd_flwr.clients.kt_pfl:KTpFLClient",
        "soft predictions",
        "Itahara et al. 2021",
    ),
    "fd": Method(
        "strategies.fd:FD",
        "fedkd_flwr.clients.fd:FDClient",
        "class-mean predictions",
        "Jeong et al. 2018",
    ),
    "fedproto": Method(
        "strategies.fedproto:FedProto",
        "fedkd_flwr.clients.fedproto:FedProtoClient",
        "class-mean features",
        "Tan et al. 2022",
    ),
    "fedgh": Method(
        "strategies.fedgh:FedGH",
        "fedkd_flwr.clients.fedgh:FedGHClient",
        "class-mean features and a head",
        "Yi et al. 2023",
    ),
    "lg-fedavg": Method(
        "strategies.lg_fedavg:LGFedAvg",
        "fedkd_flwr.clients.lg_fedavg:LGFedAvgClient",
        "heads",
        "Liang et al. 2020",
    ),
    "fml": Method(
        "strategies.fml:FML",
        "fedkd_flwr.clients.fml:FMLClient",
        "parameters of a shared model",
        "Shen et al. 2020",
    ),
    "fedkd": Method(
        "strategies.fedkd:FedKD",
        "fedkd_flwr.clients.fedkd:FedKDClient",
        "compressed parameters of a shared model",
        "Wu et al. 2022",
    ),
    "fedtgp": Method(
        "strategies.fedtgp:FedTGP",
        "fedkd_flwr.clients.fedproto:FedProtoClient",
        "class-mean features",
        "Zhang et al. 2024",
    ),
    "scaffold": Method(
        "strategies.scaffold:Scaffold",
        "fedkd_flwr.clients.scaffold:ScaffoldClient",
        "parameters and control variates",
        "Karimireddy et al. 2020",
    ),
    "per-fedavg": Method(
        "strategies.per_fedavg:PerFedAvg",
        "fedkd_flwr.clients.per_fedavg:PerFedAvgClient",
        "parameters",
        "Fallah et al. 2020",
    ),
    "pfedme": Method(
        "strategies.pfedme:PFedMe",
        "fedkd_flwr.clients.pfedme:PFedMeClient",
        "parameters",
        "Dinh et al. 2020",
    ),
    "ditto": Method(
        "strategies.ditto:Ditto",
        "fedkd_flwr.clients.ditto:DittoClient",
        "parameters",
        "Li et al. 2021",
    ),
    "fedper": Method(
        "strategies.fedper:FedPer",
        "fedkd_flwr.clients.parameters:ParameterClient",
        "parameters of the body",
        "Arivazhagan et al. 2019",
    ),
    "kt-pfl-params": Method(
        "strategies.kt_pfl_params:KTpFLParams",
        "fedkd_flwr.clients.kt_pfl_params:KTpFLParamsClient",
        "parameters",
        "Zhang et al. 2021, appendix C",
    ),
    "fedamp": Method(
        "strategies.fedamp:FedAMP",
        "fedkd_flwr.clients.fedamp:FedAMPClient",
        "parameters",
        "Huang et al. 2021",
    ),
    "fedfomo": Method(
        "strategies.fedfomo:FedFomo",
        "fedkd_flwr.clients.fedfomo:FedFomoClient",
        "parameters and weights of others",
        "Zhang et al. 2021 (FedFomo)",
    ),
}


REGISTERED: dict[str, Method] = {}
"""Custom methods, by the names that `register` was given in this process."""

NAME = re.compile(r"[a-z][a-z0-9-]*")
"""Names that a custom method may have."""


def find_method(name: str) -> Method:
    """Return a method by name.

    Parameters
    ----------
    name : str
        A key of `METHODS`, a name registered in this process, or ``module:object`` for a result of
        `register` in a module.

    Raises
    ------
    ValueError
        If there is none.
    """
    if name in METHODS:
        return METHODS[name]
    if name in REGISTERED:
        return REGISTERED[name]
    if not is_own(name):
        from strategies.core.slices import NoneOfTheAllowedError

        raise NoneOfTheAllowedError([*METHODS, *REGISTERED, "or your own as module:object"], name)
    method = find_own(name)
    if not isinstance(method, Method):
        raise OwnError(
            f"{name} is a {type(method).__name__}; it should be what fedkd_flwr.register returns"
        )
    return method


def register(
    name: str,
    strategy: "type[PersonalizedStrategy]",
    client: "type[PersonalClient]",
    settings: "type[Settings] | None" = None,
    exchanged: str = "parameters",
    paper: str = "own",
) -> Method:
    """Register a custom method under a name in this process.

    Assign the result to a variable of a module to use it in every engine, as
    ``strategy = "module:object"``.

    Parameters
    ----------
    name : str
        Lowercase letters, digits and dashes; not in `METHODS`. A second call replaces the first.
    strategy, client : type
        The classes for the server and the clients.
    settings : type, optional
        Settings with their own table; by default those of the strategy.
    exchanged, paper : str
        As in `Method`.

    Raises
    ------
    OwnError
        With one sentence, if an argument is invalid.
    """
    from fedkd_flwr.clients.base import PersonalClient
    from strategies.base import PersonalizedStrategy

    if not NAME.fullmatch(name) or name in METHODS:
        raise OwnError(
            f"{name!r} cannot be registered: use lowercase letters, digits and dashes, and not the "
            "name of a built-in method"
        )
    _require_subclass(name, "strategy", strategy, PersonalizedStrategy)
    _require_subclass(name, "client", client, PersonalClient)
    if settings is not None:
        _require_own_table(name, settings)
        strategy = type(strategy.__name__, (strategy,), {"settings_type": settings})
    elif strategy.settings_type.table:
        _require_own_table(name, strategy.settings_type)
    method = Method(_place_of(strategy), _place_of(client), exchanged, paper)
    # Classes defined in a notebook cannot be imported by name.
    vars(method).update(strategy=strategy, client=client)
    REGISTERED[name] = method
    return method


def _place_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _require_subclass(name: str, role: str, given: object, base: type) -> None:
    if not (isinstance(given, type) and issubclass(given, base)):
        raise OwnError(f"{name}: {role} is {given!r}; it should be a subclass of {base.__name__}")


def _require_own_table(name: str, settings: "type[Settings]") -> None:
    """Refuse settings without a table, or with the table of unrelated settings."""
    from strategies.core.plan import Settings

    _require_subclass(name, "settings", settings, Settings)
    if not NAME.fullmatch(settings.table):
        raise OwnError(f"{name}: {settings.__name__} needs a table, such as table = {name!r}")
    for method in METHODS.values():
        built_in = method.strategy.settings_type
        if built_in.table == settings.table and not issubclass(settings, built_in):
            raise OwnError(
                f"{name}: the table {settings.table} belongs to {built_in.__name__}; choose another"
            )
