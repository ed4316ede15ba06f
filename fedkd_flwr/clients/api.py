"""Everything that a method of one's own imports on a client: bases, replies, jobs and layers.

``docs/how-to/custom-methods.md`` says which base to choose.
"""

from fedkd_flwr.clients.base import Arrays, Evaluated, PersonalClient, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient, PersonalModelClient
from fedkd_flwr.clients.prototypes import ClassMeanClient, CommonWidthClient
from fedkd_flwr.clients.shared_models import EnsembleClient, SharedModelClient
from fedkd_flwr.clients.soft_predictions import SoftPredictionClient
from fedkd_flwr.models.features import features
from fedkd_flwr.models.layers import head_of
from fedkd_flwr.training.jobs import PredictJob, TrainJob
from fedkd_flwr.training.losses import Distillation
from fedkd_flwr.training.regularizers import Proximal, parameters_of

__all__ = [
    "Arrays",
    "ClassMeanClient",
    "CommonWidthClient",
    "Distillation",
    "EnsembleClient",
    "Evaluated",
    "ParameterClient",
    "PersonalClient",
    "PersonalModelClient",
    "PredictJob",
    "Proximal",
    "SharedModelClient",
    "SoftPredictionClient",
    "TrainJob",
    "TrainReply",
    "features",
    "head_of",
    "parameters_of",
]
