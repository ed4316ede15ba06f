"""All methods by name, with their strategies and clients.

A new built-in method is one file in `strategies`, one in `fedkd_flwr/clients` unless an existing
client fits, and one line here. Strategies and clients are named by module and class, and imported
on first use. The strategy's record says where the method comes from and what it exchanges.

A custom method needs no entry: `fedkd_flwr.register` creates it from its classes.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from fedkd_flwr.custom_objects.importing import CustomObjectError, find_custom, is_custom

if TYPE_CHECKING:
    from strategies.base import PersonalizedStrategy
    from strategies.core.method_record import MethodRecord


@dataclass(frozen=True)
class Method:
    """A method: its strategy on the server and its client."""

    strategy_name: str
    client_name: str

    @property
    def record(self) -> "MethodRecord":
        """Where the method comes from, what it exchanges, and what it needs."""
        return self.strategy.record

    @cached_property
    def strategy(self) -> "type[PersonalizedStrategy]":
        """The Flower strategy."""
        return resolve_name(self.strategy_name)

    @cached_property
    def client(self) -> type[Any]:
        """The NumPyClient, a `fedkd_flwr.clients.base.PersonalClient`, which imports this."""
        return resolve_name(self.client_name)

    @cached_property
    def estimator_client(self) -> type[Any]:
        """The same client for a model that is an estimator."""
        return resolve_name("fedkd_flwr.clients.estimators:estimator_client")(self.client)


def _built_in(strategy: str, client: str) -> Method:
    return Method(f"strategies.{strategy}", f"fedkd_flwr.clients.{client}")


class MethodTable(dict[str, Method]):
    """Methods by name, which says what an unknown name may mean."""

    def __missing__(self, name: str) -> Method:
        """Refuse an unknown name."""
        close = get_close_matches(str(name), self, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "`fedkd list methods` shows all"
        raise KeyError(f"there is no method {name!r}; {hint}")


METHODS: dict[str, Method] = {
    "kt-pfl": _built_in("kt_pfl:KTpFL", "kt_pfl:KTpFLClient"),
    "sim-pfl": _built_in("sim_pfl:SimPFL", "kt_pfl:KTpFLClient"),
    "topk-pfl": _built_in("sim_pfl:TopKPFL", "kt_pfl:KTpFLClient"),
    "fedmd": _built_in("fedmd:FedMD", "kt_pfl:KTpFLClient"),
    "perfed-ckt": _built_in("perfed_ckt:PerFedCKT", "perfed_ckt:PerFedCKTClient"),
    "persfl": _built_in("persfl:PersFL", "persfl:PersFLClient"),
    "persfl-gd": _built_in("persfl:PersFLGD", "persfl:PersFLGDClient"),
    "fedkma": _built_in("fedkma:FedKMA", "fedkma:FedKMAClient"),
    "fedkma-uniform": _built_in("fedkma:FedKMAUniform", "supernets:SupernetClient"),
    "fednas": _built_in("fednas:FedNAS", "fednas:FedNASClient"),
    "local": _built_in("local:Local", "base:PersonalClient"),
    "fedavg": _built_in("fedavg:FedAvg", "parameters:FedAvgClient"),
    "fedavg-ft": _built_in("fedavg:FedAvgFineTuned", "parameters:FineTuningClient"),
    "fedprox": _built_in("fedprox:FedProx", "fedprox:FedProxClient"),
    "hypcluster": _built_in("hypcluster:HypCluster", "hypcluster:HypClusterClient"),
    "fesem": _built_in("fesem:FeSEM", "parameters:FedAvgClient"),
    "feddf": _built_in("feddf:FedDF", "parameters:FedAvgClient"),
    "pfeddf": _built_in("feddf:PFedDF", "parameters:FineTuningClient"),
    "pfedhn": _built_in("pfedhn:PFedHN", "parameters:FedAvgClient"),
    "spider": _built_in("spider:Spider", "spider:SpiderClient"),
    "ds-fl": _built_in("ds_fl:DSFL", "kt_pfl:KTpFLClient"),
    "selective-fd": _built_in("selective_fd:SelectiveFD", "selective_fd:SelectiveFDClient"),
    "privatekt": _built_in("privatekt:PrivateKT", "privatekt:PrivateKTClient"),
    "fd": _built_in("fd:FD", "fd:FDClient"),
    "fedproto": _built_in("fedproto:FedProto", "fedproto:FedProtoClient"),
    "fedgh": _built_in("fedgh:FedGH", "prototypes:FedGHClient"),
    "lg-fedavg": _built_in("lg_fedavg:LGFedAvg", "prototypes:LGFedAvgClient"),
    "fml": _built_in("fml:FML", "fml:FMLClient"),
    "fedkd": _built_in("fedkd:FedKD", "fedkd:FedKDClient"),
    "fedmrl": _built_in("fedmrl:FedMRL", "fedmrl:FedMRLClient"),
    "fedapen": _built_in("fedapen:FedAPEN", "fedapen:FedAPENClient"),
    "fedtgp": _built_in("fedtgp:FedTGP", "fedproto:FedProtoClient"),
    "scaffold": _built_in("scaffold:Scaffold", "scaffold:ScaffoldClient"),
    "feddyn": _built_in("feddyn:FedDyn", "feddyn:FedDynClient"),
    "fedgen": _built_in("fedgen:FedGen", "fedgen:FedGenClient"),
    "fedntd": _built_in("fedntd:FedNTD", "fedntd:FedNTDClient"),
    "moon": _built_in("moon:MOON", "moon:MOONClient"),
    "per-fedavg": _built_in("per_fedavg:PerFedAvg", "per_fedavg:PerFedAvgClient"),
    "pfedme": _built_in("pfedme:PFedMe", "pfedme:PFedMeClient"),
    "ditto": _built_in("ditto:Ditto", "ditto:DittoClient"),
    "apfl": _built_in("apfl:APFL", "apfl:APFLClient"),
    "fedrod": _built_in("fedrod:FedRoD", "fedrod:FedRoDClient"),
    "fedala": _built_in("fedala:FedALA", "fedala:FedALAClient"),
    "fedper": _built_in("fedper:FedPer", "parameters:ParameterClient"),
    "fedbn": _built_in("fedbn:FedBN", "parameters:ParameterClient"),
    "fedrep": _built_in("fedrep:FedRep", "fedrep:FedRepClient"),
    "fedbabu": _built_in("fedbabu:FedBABU", "fedbabu:FedBABUClient"),
    "kt-pfl-params": _built_in("kt_pfl_params:KTpFLParams", "parameters:KTpFLParamsClient"),
    "fedamp": _built_in("fedamp:FedAMP", "parameters:FedAMPClient"),
    "pfedgraph": _built_in("pfedgraph:PFedGraph", "pfedgraph:PFedGraphClient"),
    "fedfomo": _built_in("fedfomo:FedFomo", "fedfomo:FedFomoClient"),
}
METHODS = MethodTable(METHODS)
"""The built-in methods. Variants of a method stand after it."""


REGISTERED: dict[str, Method] = {}
"""Custom methods, by the names under which this process has registered them."""

NAME = re.compile(r"[a-z][a-z0-9-]*")  # names that a custom method may have


def find_method(name: str) -> Method:
    """Return a method by name."""
    if name in METHODS:
        return METHODS[name]
    if name in REGISTERED:
        return REGISTERED[name]
    if not is_custom(name):
        from strategies.core.settings_groups import NoneOfTheAllowedError

        raise NoneOfTheAllowedError([*METHODS, *REGISTERED, "or your own as module:object"], name)
    method = find_custom(name)
    if not isinstance(method, Method):
        raise CustomObjectError(
            f"{name} is a {type(method).__name__}; it should be what fedkd_flwr.register returns"
        )
    return method
