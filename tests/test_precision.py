"""Networks that multiply in bfloat16: nearly the same results, and float32 wherever it is kept."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedkd_flwr
from fedkd_flwr.config import ConfigError, read_config


@pytest.mark.parametrize("changes", [{"models": "mlp", "cohort": "on"}, {"models": "lenet,mlp"}])
def test_bf16_is_close_to_float32_and_no_more_than_close(changes, small, tmp_path):
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


def test_another_precision_is_refused():
    with pytest.raises(ConfigError, match="precision"):
        read_config({"precision": "fp8"})
