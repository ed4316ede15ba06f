"""The record of a method: where it comes from, what it exchanges, and what it needs."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

from strategies.core.declarations import Sent
from strategies.core.metrics import MODELS, MOVED_PRIVATE, TRAIN_LOSS, EvaluatedModel
from strategies.core.plan import Settings
from strategies.core.replies import Metric

FAMILIES = ("soft predictions", "parameters", "class means", "nothing")
"""Kinds of information that methods exchange."""


class Need(StrEnum):
    """What a run has to have; a run without it is refused."""

    ONE_ARCHITECTURE = "one architecture"
    """The same model for all clients."""

    PUBLIC_DATA = "public data"
    """Public samples on which clients predict."""

    PUBLIC_DATA_ON_SERVER = "public data on the server"
    """Public samples on which the server predicts."""

    VALIDATION_DATA = "validation data"
    """A validation split of each client."""

    COUNTS = "counts"
    """What a client measures on its validation data: the server computes with it."""

    PLAIN_DESCENT = "plain gradient descent"
    """``optimizer = "sgd"``, for which the method is derived."""


@dataclass(frozen=True)
class Paper:
    """The paper of a method."""

    authors: str
    """All authors, separated by commas."""
    title: str
    """Its title."""
    venue: str = ""
    """Where it appeared; empty for a preprint."""
    year: int = 0
    """When it appeared; 0 if its text does not say."""
    arxiv: str = ""
    """Its arXiv id; empty for none."""
    part: str = ""
    """The part that has the method, if it is not the paper's main one."""

    @property
    def short(self) -> str:
        """Surnames of the authors, year and part, as in a text."""
        names = [author.split()[-1] for author in self.authors.split(", ")]
        who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
        when = f"{who} {self.year}" if self.year else who
        return f"{when}, {self.part}" if self.part else when

    @property
    def citation(self) -> str:
        """Short names, title, venue and arXiv id in Markdown."""
        arxiv = f"arXiv:{self.arxiv}" if self.arxiv else ""
        return ", ".join(filter(None, (f"{self.short}: *{self.title}*", self.venue, arxiv)))


@dataclass(frozen=True, kw_only=True)
class MethodRecord:
    """What a method declares about itself."""

    paper: Paper | None = None
    """Where it comes from; None for a baseline or a method of one's own."""
    exchanged: str = ""
    """What clients and server exchange, in a few words, or ``nothing``. A node's operator allows
    kinds of information. What is not said counts as parameters."""
    only_by_name: bool = False
    """Whether a node takes part only if its operator allows the method by its name, since it sends
    more than the kinds that it exchanges say."""
    needs: tuple[Need, ...] = ()
    """What a run has to have."""
    settings_type: type[Settings] = Settings
    """Type of its settings."""
    dp_sgd: bool = False
    """Whether DP-SGD covers all that leaves its clients besides the results of evaluations. That is
    so if clients see their training samples in local training by the plain loop alone."""
    takes_estimators: bool = False
    """Whether its clients may have models that are no networks, with ``fit`` and ``predict_proba``.
    That is so if its client trains by `train_locally`, `distill` and `co_distill` alone."""
    averages_parameters: bool = False
    """Whether the server averages or mixes the clients' parameters, so that `mixing` applies."""
    trains_new_clients: bool = True
    """Whether new clients train before they are evaluated. False for methods whose clients keep no
    model and are evaluated with the one they receive."""
    keeps_global_models: bool = False
    """Whether the run directory has the global model of each round. A finished run then receives
    newcomers without further rounds."""
    evaluates_trained_model: bool = True
    """Whether a client is evaluated with the model that it has just trained. In this case train
    replies carry the counts, and a client that is not sampled keeps its last counts."""
    evaluates: tuple[EvaluatedModel, ...] = ()
    """Models that are evaluated besides a client's own, see `strategies.core.metrics`: ``trained``,
    after local training, for methods that evaluate the one that the server sends afterwards;
    ``received``, before it, for methods that evaluate the trained one; ``distilled``, for methods
    whose clients distill at the start of a round; ``global``, for methods whose clients keep
    another. Empty where clients are not sent a model that replaces theirs."""
    sends: tuple[Sent, ...] = ()
    """Arrays of a train reply. What is not declared does not leave a client."""
    train_metrics: tuple[Metric, ...] = (TRAIN_LOSS, MOVED_PRIVATE)
    """Metrics of a train reply."""
    evaluation_metrics: tuple[Metric, ...] = ()
    """Metrics of an evaluation besides its counts."""

    def __post_init__(self) -> None:
        """Refuse a need that no run is checked for, and a model that no run evaluates."""
        _require_known("needs", self.needs, Need)
        _require_known("evaluates", self.evaluates, MODELS)

    def derived(self, **changes: Any) -> Self:
        """Return the record of a derived method.

        It has the facts of this one except those given. `dp_sgd` and `takes_estimators` are
        promises about a client, which each method makes anew, and it has a paper of its own.
        """
        return replace(
            self, **{"paper": None, "dp_sgd": False, "takes_estimators": False, **changes}
        )

    @property
    def family(self) -> str:
        """The member of `FAMILIES`; heads and other parts of models count as parameters."""
        if self.exchanged in FAMILIES:
            return self.exchanged
        return "class means" if self.exchanged.startswith("class-mean") else "parameters"

    @property
    def uses_public_data(self) -> bool:
        """Whether clients or the server predict on public data."""
        return Need.PUBLIC_DATA in self.needs or Need.PUBLIC_DATA_ON_SERVER in self.needs


def _require_known(fact: str, values: Iterable[str], known: Iterable[str]) -> None:
    unknown = [value for value in values if value not in [*known]]
    if unknown:
        raise ValueError(f"{fact}: {unknown[0]!r} is not one of {', '.join(known)}")


NEEDS_BEFORE = {
    "needs_one_model": Need.ONE_ARCHITECTURE,
    "needs_public_data": Need.PUBLIC_DATA,
    "distills_on_server": Need.PUBLIC_DATA_ON_SERVER,
    "needs_validation_data": Need.VALIDATION_DATA,
    "needs_plain_descent": Need.PLAIN_DESCENT,
}
"""The needs by the attributes that classes had for them in earlier versions."""

HOOKS_BEFORE = {
    "matrices": "write `results`, which returns Results(matrices=…)",
    "tables": "write `results`, which returns Results(tables=…)",
    "round_metrics": "write `results`, which returns Results(columns=…)",
    "new_client_payload": "write `train_payload`; n in self.round.new tells new clients",
    "new_client_rounds": "write trains_new_clients=False in the record if they do not train",
    "state_for_new_clients": "new clients are served from a copy of the state",
}
"""What to write for hooks of earlier versions."""


def refuse_old_names(strategy: str, base: str, names: Iterable[str]) -> None:
    """Refuse a class with facts outside of its record, or hooks that are not called."""
    facts = {field.name: f"{field.name}=…" for field in fields(MethodRecord)}
    facts |= {name: f"needs=({str(need)!r},)" for name, need in NEEDS_BEFORE.items()}
    for name in names:
        if name in facts:
            raise TypeError(
                f"{strategy}.{name} belongs in the record of the method: write "
                f"record = {base}.record.derived({facts[name]})"
            )
        if name in HOOKS_BEFORE:
            raise TypeError(f"{strategy}.{name} is no hook any more: {HOOKS_BEFORE[name]}")


def refuse_near_names(kind: type) -> None:
    """Refuse a class with a name that overrides nothing, and is nearly that of a hook or fact."""
    inherited = {name for base in kind.__mro__[1:] for name in vars(base) if name[0] != "_"}
    for name in vars(kind):
        if name in inherited or name.startswith("_"):
            continue
        if near := difflib.get_close_matches(name, inherited, n=1, cutoff=0.9):
            raise TypeError(
                f"{kind.__name__}.{name} is not read: write {near[0]} to override that name, or "
                "choose another one"
            )
