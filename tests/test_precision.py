"""Networks that multiply in bfloat16: nearly equal results; weights and losses stay float32."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fedkd_flwr
from fedkd_flwr.clients.prototypes import class_means
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.darts.genotype import SearchSpace
from fedkd_flwr.models.features import fold_into, with_common_width
from fedkd_flwr.training.loop import computing_in


@pytest.mark.parametrize("changes", [{"models": "mlp", "cohort": "on"}, {"models": "lenet,mlp"}])
def test_bf16_is_close_to_float32_but_not_equal(changes, small, tmp_path):
    runs = {
        precision: fedkd_flwr.run(
            {
                **small,
                **changes,
                "precision": precision,
                "models-dir": str(tmp_path / precision / "models"),
            },
            output_dir=tmp_path / precision / "run",
        )
        for precision in ("float32", "bf16")
    }
    losses = [runs[precision].rounds["train_loss_mean"] for precision in ("float32", "bf16")]
    assert not np.array_equal(*losses)
    np.testing.assert_allclose(*losses, rtol=0.05)
    for tensor in load_file(tmp_path / "bf16" / "models" / "0.safetensors").values():
        assert tensor.dtype == np.float32


def test_a_client_alone_learns_an_ensemble_in_bf16(small, tmp_path):
    changes = {"strategy": "fedapen", "models": "mlp", "precision": "bf16", "num-server-rounds": 1}
    run = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    assert (run.rounds["failures"] == 0).all()


def test_class_means_have_all_digits():
    torch.manual_seed(0)
    predictions, labels = torch.randn(300, 10).softmax(dim=1), torch.arange(300) % 10
    with computing_in("bf16", "cpu"):
        means, _ = class_means(predictions, labels, 10)
    torch.testing.assert_close(means.sum(dim=1), torch.ones(10), rtol=0, atol=1e-5)
    torch.testing.assert_close(means[3], predictions[3::10].mean(dim=0))


def test_mean_predictions_are_on_the_simplex(small, tmp_path):
    changes = {"strategy": "fd", "precision": "bf16"}
    run = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    assert (run.rounds["failures"] == 0).all()


def test_a_projection_is_folded_into_a_head_with_all_digits():
    torch.manual_seed(0)
    plain, model = (build_model("mlp", (1, 28, 28), 10, SearchSpace()) for _ in range(2))
    with_common_width(model, 7)
    expected = {k: v.clone() for k, v in fold_into(plain, model).state_dict().items()}
    with computing_in("bf16", "cpu"):
        folded = fold_into(plain, model).state_dict()
    assert all(torch.equal(folded[name], value) for name, value in expected.items())


def test_another_precision_is_refused():
    with pytest.raises(ConfigError, match="precision"):
        read_config({"precision": "fp8"})
