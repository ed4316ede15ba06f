"""Models that are adjacent in memory: lent in order, and trained in place."""

import pytest
import torch
from helpers import assert_same_weights

from fedkd_flwr.models.model_pool import (
    Architecture,
    adjacent_parameters,
    borrow,
    give_back,
    prepare_adjacent,
)
from fedkd_flwr.models.settings import ModelSettings
from fedkd_flwr.training.cohort import predict_together, train_together
from fedkd_flwr.training.jobs import PredictJob, TrainJob
from fedkd_flwr.training.loop import build_optimizer
from fedkd_flwr.training.losses import cross_entropy

MLP = Architecture("mlp", (1, 4, 4), 3, ModelSettings().search_space, "cpu")


pytestmark = pytest.mark.usefixtures("empty_pool")


def filled(models):
    for number, model in enumerate(models):
        torch.manual_seed(number)
        model.load_state_dict(MLP.build().state_dict())
    return models


def jobs_of(models):
    for number, model in enumerate(models):
        generator = torch.Generator().manual_seed(number)
        images = torch.randn(6, 1, 4, 4, generator=generator)
        labels = torch.randint(0, 3, (6,), generator=generator)
        optimizer = build_optimizer("sgd", model.parameters(), 0.1, 0.9)
        batches = [(images[:4], labels[:4]), (images[4:], labels[4:])]
        # One client has fewer batches than the others.
        yield TrainJob(model, cross_entropy, optimizer, batches[: 1 + (number > 0)])


def test_models_are_lent_in_memory_order():
    prepare_adjacent(MLP, 3)
    models = filled([borrow(MLP) for _ in range(3)])
    for name, together in adjacent_parameters(models).items():
        for row, model in enumerate(models):
            assert together[row].data_ptr() == model.get_parameter(name).data_ptr()
            assert torch.equal(together[row], model.get_parameter(name))
    for model in (models[2], models[0], models[1]):
        give_back(model)
    again = [borrow(MLP) for _ in range(4)]
    assert again[:3] == models and adjacent_parameters(again) is None
    assert adjacent_parameters(again[1:3])["1.weight"].shape[0] == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (0, 2, 1)])
def test_the_memory_order_of_models_does_not_change_results(order):
    prepare_adjacent(MLP, 3)
    rows = [borrow(MLP) for _ in range(3)]
    laid_out = filled([rows[place] for place in order])
    apart = filled([MLP.build() for _ in order])
    losses, expected = (train_together(list(jobs_of(models))) for models in (laid_out, apart))
    assert losses == pytest.approx(expected)
    images = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(9))
    found = list(predict_together([PredictJob(model, images) for model in laid_out]))
    assert_same_weights(laid_out, apart)
    torch.testing.assert_close(found, [other(images).detach() for other in apart])


def test_a_larger_cohort_gets_new_adjacent_models():
    prepare_adjacent(MLP, 2)
    few = filled([borrow(MLP) for _ in range(2)])
    prepare_adjacent(MLP, 3)
    more = filled([borrow(MLP) for _ in range(3)])
    assert adjacent_parameters(more) is not None
    assert not {id(model) for model in few} & {id(model) for model in more}
    give_back(few[0])  # from before: another client may still have it
    assert borrow(MLP) is few[0]
