"""Print the mean test accuracy of each round, by the reference and by the product."""

import tempfile

import numpy as np

import fedkd_flwr
from examples.reference import fedkma, kt_pfl, perfed_ckt, persfl

for reference in (kt_pfl, perfed_ckt, persfl, fedkma):
    found = [np.mean([accuracy for accuracy, _ in results]) for results, _ in reference.run()]
    with tempfile.TemporaryDirectory() as folder:
        expected = fedkd_flwr.run(reference.CONFIG, output_dir=f"{folder}/run").rounds
    print(reference.CONFIG["strategy"])
    for t, numbers in enumerate(zip(found, expected["accuracy_mean"], strict=True), start=1):
        print("  round {}: {:.6f} {:.6f}".format(t, *numbers))
