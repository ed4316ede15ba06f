"""Everything that a method of one's own imports on a client: bases, replies, jobs and layers.

``docs/how-to/custom-methods.md`` says which base to choose.
"""

from fedkd_flwr.clients.base import Arrays as Arrays
from fedkd_flwr.clients.base import Evaluated as Evaluated
from fedkd_flwr.clients.base import PersonalClient as PersonalClient
from fedkd_flwr.clients.base import TrainReply as TrainReply
from fedkd_flwr.clients.parameters import ParameterClient as ParameterClient
from fedkd_flwr.clients.parameters import PersonalModelClient as PersonalModelClient
from fedkd_flwr.clients.prototypes import ClassMeanClient as ClassMeanClient
from fedkd_flwr.clients.prototypes import CommonWidthClient as CommonWidthClient
from fedkd_flwr.clients.shared_models import EnsembleClient as EnsembleClient
from fedkd_flwr.clients.shared_models import SharedModelClient as SharedModelClient
from fedkd_flwr.clients.soft_predictions import SoftPredictionClient as SoftPredictionClient
from fedkd_flwr.models.features import features as features
from fedkd_flwr.models.layers import head_of as head_of
from fedkd_flwr.training.jobs import PredictJob as PredictJob
from fedkd_flwr.training.jobs import TrainJob as TrainJob
from fedkd_flwr.training.losses import Distillation as Distillation
from fedkd_flwr.training.losses import Proximal as Proximal
from fedkd_flwr.training.losses import parameters_of as parameters_of
