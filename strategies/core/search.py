"""Which values of a setting are worth trying, declared beside the setting."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchRange:
    """The range in which ``fedkd tune`` looks for a setting: ``Annotated[float, SearchRange(…)]``.

    With `log`, values are spread over orders of magnitude. Where the best value lies at an edge,
    the search widens the range within the limits of the setting.
    """

    low: float
    high: float
    log: bool = False
