"""What PersFL's clients tried: pairs of lambda and T."""

import pandas as pd


def mean_by_pair(pairs: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the mean of a column over clients and seeds, by lambda (rows) and T (columns).

    At lambda = 0 T has no effect, and only one T is tried. Its value fills the whole row.
    """
    means = pairs.groupby(["lambda", "temperature"])[column].mean().unstack()
    if 0.0 in means.index:
        means.loc[0.0] = means.loc[0.0].max()
    return means
