"""DARTS: search of a network's cells by gradient descent.

H. Liu, K. Simonyan, Y. Yang, *DARTS: Differentiable Architecture Search*, ICLR 2019,
arXiv:1806.09055.

A network is a stack of two kinds of cells, normal and reduction. A cell is a small graph: each
inner node is the sum of operations on the states before it. In the `Supernet` every edge
computes all candidate operations, mixed by the softmax of architecture weights alpha, which
are trained together with the network weights omega. The strongest operations form a `Genotype`,
and a genotype defines a `FixedNetwork`. The caller decides how alpha and omega are trained.

Differences from the paper
--------------------------
- Running statistics of batch normalization are kept and used in evaluation, so that the
  logits of an image do not depend on its neighbors. The paper's search always uses the
  statistics of the batch.
- Batch normalization in the supernet has no learnable scale and shift, as in the paper. The
  authors' code has them in the stem: 1,930,618 network weights there, 1,930,522 here.
- Poolings in the supernet are followed by batch normalization, as in the authors' code. The
  paper does not mention it.
- "none" is never computed. It adds zero, and only has a weight in the softmax.
- Images may have any size. An odd side is padded with zeros before it is halved.
- The stem may have a stride (`stem_stride`), for training without a GPU.
- At least three cells, or there would be no normal cell and its alpha would not be trained.
- Genotypes may also have more or fewer than two edges per node (FedKMA's rule "every-edge").
- Fixed networks have no auxiliary head and no drop-path.
"""
