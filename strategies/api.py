"""Everything that a method of one's own imports on the server: bases, their states, and the record.

``docs/how-to/custom-methods.md`` says which base to choose.
"""

from strategies.base import PersonalizedStrategy
from strategies.clusters import ClusteredStrategy, ClusterSettings, ClusterState
from strategies.core.declarations import Sent
from strategies.core.method_record import MethodRecord, Need
from strategies.core.metrics import TRAIN_LOSS
from strategies.core.plan import ImpossiblePlanError, Settings
from strategies.core.randomness import random_generator
from strategies.core.replies import Arrays, ExpectedArray, InvalidReplyError, Metric, Reply
from strategies.core.search import SearchRange
from strategies.core.state import State
from strategies.library_mixtures import MixtureStrategy
from strategies.method import Results
from strategies.parameters import (
    LibraryState,
    LibraryStrategy,
    Model,
    ParameterState,
    ParameterStrategy,
    SharedModelSettings,
    SharedModelStrategy,
)
from strategies.prototypes import ClassMeanStrategy
from strategies.soft_predictions import (
    SoftPredictionSettings,
    SoftPredictionState,
    SoftPredictionStrategy,
)

__all__ = [
    "TRAIN_LOSS",
    "Arrays",
    "ClassMeanStrategy",
    "ClusterSettings",
    "ClusterState",
    "ClusteredStrategy",
    "ExpectedArray",
    "ImpossiblePlanError",
    "InvalidReplyError",
    "LibraryState",
    "LibraryStrategy",
    "MethodRecord",
    "Metric",
    "MixtureStrategy",
    "Model",
    "Need",
    "ParameterState",
    "ParameterStrategy",
    "PersonalizedStrategy",
    "Reply",
    "Results",
    "SearchRange",
    "Sent",
    "Settings",
    "SharedModelSettings",
    "SharedModelStrategy",
    "SoftPredictionSettings",
    "SoftPredictionState",
    "SoftPredictionStrategy",
    "State",
    "random_generator",
]
