"""The methods by name: the only place where a name becomes a strategy and a client.

A new method is one file in `strategies`, one in `fedkd_flwr/clients` where the client does
something new, and one line here. Strategy and client are named by module and class, and
imported when they are first asked for: knowing the methods loads none of them.
"""

from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedkd_flwr.clients.base import PersonalClient
    from strategies.base import PersonalizedStrategy


FAMILIES = ("soft predictions", "parameters", "class means", "nothing")
"""What can cross the network, in few words."""


@dataclass(frozen=True)
class Method:
    """A method: what runs on the server, what runs on the clients.

    Attributes
    ----------
    strategy_name, client_name : str
        Where the two are, as ``module:class``.
    exchanged : str
        What crosses the network, in a few words.
    paper : str
        Where the method comes from.
    """

    strategy_name: str
    client_name: str
    exchanged: str
    paper: str

    @property
    def family(self) -> str:
        """Which of `FAMILIES` the method belongs to; heads and other parts are parameters."""
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
