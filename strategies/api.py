"""Everything that a method of one's own imports on the server: bases, their states, and the record.

``docs/how-to/custom-methods.md`` says which base to choose.
"""

from strategies.base import PersonalizedStrategy as PersonalizedStrategy
from strategies.clusters import ClusteredStrategy as ClusteredStrategy
from strategies.clusters import ClusterSettings as ClusterSettings
from strategies.clusters import ClusterState as ClusterState
from strategies.core.declarations import Sent as Sent
from strategies.core.method_record import MethodRecord as MethodRecord
from strategies.core.method_record import Need as Need
from strategies.core.metrics import TRAIN_LOSS as TRAIN_LOSS
from strategies.core.plan import ImpossiblePlanError as ImpossiblePlanError
from strategies.core.plan import Settings as Settings
from strategies.core.randomness import random_generator as random_generator
from strategies.core.replies import Arrays as Arrays
from strategies.core.replies import ExpectedArray as ExpectedArray
from strategies.core.replies import InvalidReplyError as InvalidReplyError
from strategies.core.replies import Metric as Metric
from strategies.core.replies import Reply as Reply
from strategies.core.settings_groups import SearchRange as SearchRange
from strategies.core.state import State as State
from strategies.method import Results as Results
from strategies.parameters import LibraryState as LibraryState
from strategies.parameters import LibraryStrategy as LibraryStrategy
from strategies.parameters import MixtureStrategy as MixtureStrategy
from strategies.parameters import Model as Model
from strategies.parameters import ParameterState as ParameterState
from strategies.parameters import ParameterStrategy as ParameterStrategy
from strategies.parameters import SharedModelSettings as SharedModelSettings
from strategies.parameters import SharedModelStrategy as SharedModelStrategy
from strategies.prototypes import ClassMeanStrategy as ClassMeanStrategy
from strategies.soft_predictions import SoftPredictionSettings as SoftPredictionSettings
from strategies.soft_predictions import SoftPredictionState as SoftPredictionState
from strategies.soft_predictions import SoftPredictionStrategy as SoftPredictionStrategy
