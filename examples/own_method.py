"""A custom method: KT-pFL whose coefficients follow from the distances of soft predictions.

uv run fedkd run -c strategy=examples.own_method:nearest -c nearest.sharpness=20
uv run python -m examples.own_method   # the same method, kt-pfl and local compared
"""

import numpy as np
from pydantic import Field

import fedkd_flwr
from fedkd_flwr.clients.kt_pfl import KTpFLClient
from strategies.kt_pfl import KTpFL, KTpFLSettings


class NearestSettings(KTpFLSettings):
    """KT-pFL's settings stay in the table ``kt-pfl``; the new one is ``nearest.sharpness``."""

    table = "nearest"
    sharpness: float = Field(default=10.0, ge=0)


class Nearest(KTpFL):
    """Clients learn most from those whose soft predictions are nearest to theirs."""

    record = KTpFL.record.derived(settings_type=NearestSettings)

    def updated_block(self, block, predictions, shares):
        """Return coefficients (R, R), proportional to exp(-sharpness * squared distance)."""
        differences = predictions[:, None] - predictions[None]
        distances = (differences**2).sum(axis=-1).mean(axis=-1)
        weights = np.exp(-self.settings.sharpness * distances)
        return block.sum(axis=1)[:, None] * weights / weights.sum(axis=1)[:, None]


nearest = fedkd_flwr.register("nearest", strategy=Nearest, client=KTpFLClient)


def compare_with_kt_pfl(folder=None, **settings):
    """Run local, kt-pfl and the method on the same splits, and return their comparison.

    The runs go into `folder`, or into new folders under ``runs`` if it is left out.
    """
    runs = [
        fedkd_flwr.run(settings, strategy=name, output_dir=folder and f"{folder}/{name}")
        for name in ("local", "kt-pfl", "nearest")
    ]
    return fedkd_flwr.compare(runs)


if __name__ == "__main__":
    print(compare_with_kt_pfl())
