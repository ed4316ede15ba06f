"""Results of an architecture search: the genotypes of the clients."""

from dataclasses import replace

from fedkd_flwr.models.darts import Supernet, derive_genotype
from fedkd_flwr.models.genotype import Genotype
from fedkd_flwr.models.vectors import fill_from_vectors
from fedkd_flwr.runs import Run, RunDirectoryError, recorded_config
from strategies.core.declarations import ALPHAS


def client_genotypes(run: Run) -> list[Genotype]:
    """Read every client's genotype from its architecture weights after the last round.

    By partition-id. FedKMA keeps every edge with its strongest operation. Raises
    `RunDirectoryError` if the run has no architecture weights.
    """
    if ALPHAS not in run.matrices:
        raise RunDirectoryError(
            f"{run.path} has no architecture weights. Only runs of fedkma, fedkma-uniform and "
            "fednas with models = darts have them."
        )
    settings = recorded_config(run).run.models.search_space
    # Only the architecture weights are read, so the smallest network suffices.
    supernet = Supernet(replace(settings, channels=1, cells=3), (1, 8, 8), 2)
    genotypes = []
    for alphas in run.matrices[ALPHAS][-1]:
        fill_from_vectors(supernet, {ALPHAS: alphas})
        genotypes.append(derive_genotype(supernet))
    return genotypes
