"""The DARTS supernet, its genotypes and its fixed network."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedkd_flwr.clients.supernets import split_parameters
from fedkd_flwr.models.darts import (
    FixedNetwork,
    HalvedResolution,
    MixedOperation,
    Supernet,
    build_operation,
    derive_genotype,
)
from fedkd_flwr.models.genotype import OPERATIONS, SupernetSettings

DIGITS = (1, 28, 28)
COLORS = (3, 32, 32)
TINY = SupernetSettings(
    channels=4,
    cells=3,
    nodes=2,
    operations=("none", "skip_connect", "max_pool_3x3", "sep_conv_3x3"),
    stem_stride=2,
)


@pytest.fixture(autouse=True)
def one_seed() -> None:
    torch.manual_seed(0)


def batch(shape: tuple[int, int, int], samples: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, *shape), torch.arange(samples) % 4


def set_alpha(supernet: Supernet, normal: Tensor, reduce: Tensor) -> None:
    with torch.no_grad():
        supernet.alpha_normal.copy_(normal)
        supernet.alpha_reduce.copy_(reduce)


# The supernet


def test_the_papers_supernet_has_the_published_size() -> None:
    supernet = Supernet(COLORS, 10, SupernetSettings())
    # The authors' log says 1.930618 million, with scale and shift of the stem's 48 channels.
    weights = sum(parameter.numel() for parameter in split_parameters(supernet)[1])
    assert weights == 1_930_618 - 2 * 48
    assert [alpha.shape for alpha in split_parameters(supernet)[0]] == [(14, 8), (14, 8)]
    assert all(len(cell.edges) == 14 for cell in supernet.cells)
    # "none" has nothing to compute.
    assert list(supernet.cells[0].edges[0].candidates) == list(OPERATIONS[1:])
    assert [plan.reduces for plan in supernet._plans] == [
        position in (2, 5) for position in range(8)
    ]


@pytest.mark.parametrize("shape", [DIGITS, COLORS, (2, 9, 13)])
@pytest.mark.parametrize("classes", [2, 7])
def test_any_image_and_number_of_classes(shape: tuple[int, int, int], classes: int) -> None:
    supernet = Supernet(shape, classes, TINY)
    assert supernet(torch.randn(3, *shape)).shape == (3, classes)


def test_a_reduction_cell_halves_the_resolution_and_doubles_the_channels() -> None:
    supernet = Supernet(DIGITS, 10, SupernetSettings(4, 5, 2, ("skip_connect",)))
    sizes: list[tuple[int, ...]] = []
    for cell in supernet.cells:
        cell.register_forward_hook(lambda *call: sizes.append(tuple(call[2].shape[1:])))
    supernet(torch.randn(2, *DIGITS))
    # Cells 1 and 3 of five reduce; a cell's output is its two nodes.
    assert sizes == [(8, 28, 28), (16, 14, 14), (16, 14, 14), (32, 7, 7), (32, 7, 7)]


@pytest.mark.parametrize("name", OPERATIONS[1:])
@pytest.mark.parametrize("affine", [True, False])
def test_every_operation_keeps_or_halves_the_resolution(name: str, affine: bool) -> None:
    x = torch.randn(2, 4, 8, 7)
    assert build_operation(name, 4, 1, affine)(x).shape == (2, 4, 8, 7)
    assert build_operation(name, 4, 2, affine)(x).shape == (2, 4, 4, 4)


@torch.no_grad()
@pytest.mark.parametrize(("side", "last"), [(4, 1), (5, 0)])
def test_halving_the_resolution_sees_every_pixel(side: int, last: float) -> None:
    halved = HalvedResolution(1, 2, affine=False).eval()
    for convolution in (halved.even, halved.odd):
        torch.nn.init.ones_(convolution.weight)
    x = torch.zeros(1, 1, side, side)
    x[0, 0, 1, 3] = 1
    even, odd = halved(x)[0]
    assert even.sum() == 0
    assert odd.nonzero().tolist() == [[0, 1]]
    x = torch.ones(1, 1, side, side)
    assert halved(x)[0, 1, -1, -1] == pytest.approx(last, abs=1e-4)


@pytest.mark.parametrize("channels", [1, 2, 4, 8, 16])
def test_halving_has_right_gradients_in_its_memory_format(channels: int) -> None:
    """oneDNN's gradient of a strided 1x1 convolution of few channels is wrong, or kills."""
    torch.manual_seed(0)
    halved = HalvedResolution(channels, 8, affine=False)
    exact = copy.deepcopy(halved).double()
    x = torch.randn(8, channels, 28, 28).contiguous(memory_format=torch.channels_last)
    weights = torch.randn(8, 8, 14, 14)
    for _ in range(20):  # a write past the memory is felt sooner or later
        gradients = torch.autograd.grad(
            (halved(x) * weights).sum(), [halved.even.weight, halved.odd.weight]
        )
    expected = torch.autograd.grad(
        (exact(x.double().contiguous()) * weights.double()).sum(),
        [exact.even.weight, exact.odd.weight],
    )
    for found, right in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-3, atol=1e-3)


def test_an_edge_is_the_softmax_weighted_sum_of_its_operations() -> None:
    edge = MixedOperation(4, 1, ("skip_connect", "none", "avg_pool_3x3")).eval()
    x = torch.randn(2, 4, 6, 6)
    # Logarithms of 3, 5 and 2 have the softmax 0.3, 0.5 and 0.2.
    weights = torch.tensor([3.0, 5.0, 2.0]).log().softmax(0).unbind()
    pooled = functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    # A fresh batch normalization divides by the root of one plus epsilon.
    expected = 0.3 * x + 0.2 * pooled / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(edge(x, weights), expected)


def test_alpha_enters_through_its_softmax() -> None:
    supernet = Supernet(DIGITS, 4, TINY)
    images, _ = batch(DIGITS)
    before = supernet(images)
    with torch.no_grad():
        supernet.alpha_normal += 5
        supernet.alpha_reduce -= 5
    torch.testing.assert_close(supernet(images), before)
    for alpha in split_parameters(supernet)[0]:
        with torch.no_grad():
            alpha[0, 3] += 1
        after = supernet(images)
        assert not torch.allclose(after, before, atol=1e-4)
        before = after


def test_an_edge_with_all_weight_on_none_passes_nothing() -> None:
    supernet = Supernet(DIGITS, 4, TINY)
    closed = torch.full((5, 4), -200.0)
    closed[:, 0] = 0
    set_alpha(supernet, closed, closed)
    images, _ = batch(DIGITS)
    logits = supernet(images)
    torch.testing.assert_close(logits, supernet.classifier.bias.expand(8, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 0}, "channels must be from 1 to"),
        ({"cells": 2}, "cells must be from 3 to"),
        ({"nodes": 0}, "nodes must be from 1 to"),
        ({"stem_multiplier": 0}, "stem_multiplier must be from 1 to"),
        ({"stem_stride": 0}, "stem_stride must be from 1 to"),
        ({"operations": ("conv_7x7",)}, "unknown operation 'conv_7x7'; choose from none, max_pool"),
        ({"operations": ("none", "none", "skip_connect")}, "must be distinct"),
        ({"operations": ("none",)}, "at least one operation besides 'none'"),
        ({"operations": ()}, "at least one operation besides 'none'"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SupernetSettings(**change)  # type: ignore[arg-type]


# Genotypes


def hand_set_supernet() -> Supernet:
    """Build three nodes; edges are rows 0-1, 2-4 and 5-8, columns the operations of TINY."""
    supernet = Supernet(DIGITS, 4, SupernetSettings(4, 3, 3, TINY.operations))
    normal = torch.zeros(9, 4)
    normal[0, 1] = 1
    normal[1, 2] = 1
    # Node 1: "none" wins edges 2 and 4.
    normal[2, 0] = 5
    normal[3, 3] = 1
    normal[4, 0], normal[4, 1] = 3, 2
    # Node 2: large alphas that are equal say nothing.
    normal[5] = 9
    normal[6, 2] = 2
    normal[7, 1] = 1
    normal[8, 3] = 3
    reduce = torch.zeros(9, 4)
    reduce[:, 0] = 1
    reduce[1, 3] = 0.5
    set_alpha(supernet, normal, reduce)
    return supernet


def test_every_edge_keeps_its_strongest_operation() -> None:
    genotype = derive_genotype(hand_set_supernet())
    # Of the equal alphas on the first edge of node 2, "none" comes first.
    assert genotype.normal == (
        (("skip_connect", 0), ("max_pool_3x3", 1)),
        (("sep_conv_3x3", 1),),
        (("max_pool_3x3", 1), ("skip_connect", 2), ("sep_conv_3x3", 3)),
    )
    # "none" wins every edge: each node keeps one, the strongest or the first.
    assert genotype.reduce == (
        (("sep_conv_3x3", 1),),
        (("skip_connect", 0),),
        (("skip_connect", 0),),
    )


def test_a_fixed_network_of_the_published_cells_has_the_published_size() -> None:
    """The paper's second-order cells, 36 channels and 20 cells: 3.3 million weights."""
    with torch.device("meta"):
        network = FixedNetwork(COLORS, 10, SupernetSettings(channels=36, cells=20))
    weights = sum(parameter.numel() for parameter in network.parameters())
    assert round(weights / 1e6, 1) == 3.3
