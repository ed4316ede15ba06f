"""Which values of a setting are worth trying, declared beside the setting."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchRange:
    """The range in which ``fedkd tune`` looks for a setting: ``Annotated[float, SearchRange(…)]``.

    Attributes
    ----------
    low, high : float
        The first and the last value to try. The search widens the range where the best value
        lies at its edge, within the limits of the setting.
    log : bool
        Whether values are spread over orders of magnitude.
    """

    low: float
    high: float
    log: bool = False
