"""DARTS: search for a network's cells by gradient descent.

H. Liu, K. Simonyan, Y. Yang, *DARTS: Differentiable Architecture Search*, ICLR 2019,
arXiv:1806.09055.

A network is a stack of two kinds of cells, normal and reduction. A cell is a small graph: each
inner node is the sum of operations on the states before it. In the `Supernet` every edge
computes all candidate operations, mixed by the softmax of architecture weights alpha, which
are trained beside the network weights omega. The strongest operations make a `Genotype`, and a
genotype makes a `FixedNetwork`. How alpha and omega are trained is the caller's affair.

Averaging supernets
-------------------
`alpha_normal`, `alpha_reduce`, the network weights, and the running means and variances of batch
normalization are floating point; with shares that sum to one all of them can be averaged
alike. An averaged variance stays positive but leaves out how far the means of the networks lie
apart, and no network has produced the averaged statistics: they are a start, which each
training batch moves by a tenth towards its own. torch's integer count of batches plays no part
in that and need not be sent.

Differences from the paper
--------------------------
- Running statistics of batch normalization are kept and used in evaluation, so that the
  logits of an image do not depend on its neighbors. The paper's search always uses the
  statistics of the batch.
- No batch normalization of the supernet has learnable scale and shift, as the paper says. The
  authors' code has them in the stem: 1,930,618 network weights there, 1,930,522 here.
- Poolings in the supernet are followed by batch normalization, as in the authors' code; the
  paper is silent.
- "none" is never computed: it adds zero, and only takes its share of the softmax.
- Images of any size: where a halved side is odd, it is rounded up, and zeros are added to it.
- The stem may have a stride (`stem_stride`), for training without a GPU.
- At least three cells, or there would be no normal cell and its alpha would not be trained.
- Genotypes may also keep more or fewer than two edges a node (rule "every-edge", of FedKMA).
- Fixed networks have no auxiliary head and no drop-path.
"""

from fedkd_flwr.models.darts.fixed import FixedNetwork
from fedkd_flwr.models.darts.genotype import Choice, Genotype, Rule, derive_genotype
from fedkd_flwr.models.darts.operations import NONE, OPERATIONS
from fedkd_flwr.models.darts.search_space import PUBLISHED_GENOTYPE, SearchSpace
from fedkd_flwr.models.darts.supernet import Supernet, SupernetSettings, build_supernet

__all__ = [
    "NONE",
    "OPERATIONS",
    "PUBLISHED_GENOTYPE",
    "Choice",
    "FixedNetwork",
    "Genotype",
    "Rule",
    "SearchSpace",
    "Supernet",
    "SupernetSettings",
    "build_supernet",
    "derive_genotype",
]
