"""The methods by name: the only place where a name becomes a strategy and a client.

A new method is one file in `strategies`, one in `fedkd_flwr/clients` where the client does
something new, and one line here.
"""

from dataclasses import dataclass

from fedkd_flwr.clients.base import PersonalClient
from fedkd_flwr.clients.fedavg import FedAvgClient, FineTuningClient
from fedkd_flwr.clients.fedkma import FedKMAClient
from fedkd_flwr.clients.kt_pfl import KTpFLClient
from fedkd_flwr.clients.perfed_ckt import PerFedCKTClient
from fedkd_flwr.clients.persfl import PersFLClient, PersFLGDClient
from strategies.base import PersonalizedStrategy
from strategies.fedavg import FedAvg, FedAvgFineTuned
from strategies.fedkma import FedKMA, FedNAS
from strategies.kt_pfl import FedMD, KTpFL, SimPFL, TopKPFL
from strategies.local import Local
from strategies.perfed_ckt import PerFedCKT
from strategies.persfl import PersFL, PersFLGD


@dataclass(frozen=True)
class Method:
    """A method: what runs on the server, what runs on the clients.

    Attributes
    ----------
    strategy : type
        The Flower strategy.
    client : type
        The NumPyClient.
    exchanged : str
        What crosses the network, in a few words.
    paper : str
        Where the method comes from.
    """

    strategy: type[PersonalizedStrategy]
    client: type[PersonalClient]
    exchanged: str
    paper: str


METHODS: dict[str, Method] = {
    "kt-pfl": Method(KTpFL, KTpFLClient, "soft predictions", "Zhang et al. 2021"),
    "sim-pfl": Method(SimPFL, KTpFLClient, "soft predictions", "Zhang et al. 2021, §5.1"),
    "topk-pfl": Method(TopKPFL, KTpFLClient, "soft predictions", "Zhang et al. 2021, §5.1"),
    "fedmd": Method(FedMD, KTpFLClient, "soft predictions", "Li and Wang 2019"),
    "perfed-ckt": Method(PerFedCKT, PerFedCKTClient, "soft predictions", "Cho et al. 2021"),
    "persfl": Method(PersFL, PersFLClient, "parameters", "Divi et al. 2021"),
    "persfl-gd": Method(PersFLGD, PersFLGDClient, "parameters", "Divi et al. 2021, §5.5"),
    "fedkma": Method(FedKMA, FedKMAClient, "parameters and mean logits", "FedKMA"),
    "fednas": Method(FedNAS, FedKMAClient, "parameters and mean logits", "FedKMA, manner 3"),
    "local": Method(Local, PersonalClient, "nothing", "baseline"),
    "fedavg": Method(FedAvg, FedAvgClient, "parameters", "McMahan et al. 2017"),
    "fedavg-ft": Method(FedAvgFineTuned, FineTuningClient, "parameters", "baseline"),
}
