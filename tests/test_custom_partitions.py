"""Splits by a function of the user, and by the values of a column."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from helpers import assert_refused, image_rows

import fedkd_flwr
from fedkd_flwr.config import read_config
from fedkd_flwr.custom_objects.importing import hold
from fedkd_flwr.data.checks import check_data
from fedkd_flwr.data.clients import client_indices
from fedkd_flwr.data.natural_split import names_of_clients, owners_of
from fedkd_flwr.data.settings import DataPlan, DataSettings
from fedkd_flwr.data.sources import load_labels

HERE = "test_custom_partitions"


WRITERS = np.array(["w10", "w2", "w1", "w2", "w10", "w1", "w3", "w3"] * 15)


def by_class_then_rest(labels, num_clients, seed):
    """Give each client one class, in an order that the seed draws."""
    order = np.random.default_rng(seed).permutation(np.unique(labels))
    return [np.flatnonzero(labels == order[n]) for n in range(num_clients)]


def with_last(own):
    """Return a split of a sample a client whose last client has these instead."""
    return lambda labels, num_clients, seed: [[n + 1] for n in range(num_clients - 1)] + [own]


INVALID = {
    "too_few": (
        lambda labels, num_clients, seed: [[0], [1]],
        "returns 2 index arrays for 4 clients; it should be .labels, num_clients, se",
    ),
    "empty": (with_last([]), "client 3 has no sample; every client needs some"),
    "out_of_range": (
        with_last([1797]), "client 3 has indices from 1797 to 1797; allowed are 0 to 1796",
    ),
    "negative": (with_last([-1]), "client 3 has indices from -1 to -1; allowed are 0 to 1796"),
    "overlapping": (
        lambda labels, num_clients, seed: [[n, 7] for n in range(num_clients)],
        "sample 7 belongs to the clients 0, 1, 2, 3; each sample may have one",
    ),
    "twice": (
        with_last([0, 0]), "sample 0 belongs to the clients 3, 3; each sample may have one owner",
    ),
    "masks": (
        lambda labels, num_clients, seed: [labels == n for n in range(num_clients)],
        r"client 0 has an array \(1797,\) of bool; it should be whole numbers",
    ),
    "ragged": (lambda *_: [[[1], [2, 3]]] * 4, "client 0 has no array of indices"),
    "broken": (lambda *_: 1 / 0, "fails: ZeroDivisionError: division by zero"),
    "nothing": (lambda *_: None, "fails: TypeError: 'NoneType' object is not iterable"),
    "unseeded": (
        lambda labels, num_clients, seed: np.array_split(
            np.random.permutation(len(labels)), num_clients
        ),
        r"returns another split at each call: draw with numpy\.random\.default_rng",
    ),
    "WRITERS": (WRITERS, "is a ndarray, and should be callable"),
}  # fmt: skip
globals().update({name: function for name, (function, _) in INVALID.items()})


def plan_of(num_clients=4, seed=0, **settings):
    return DataPlan(DataSettings(held_out_size=0, **settings), num_clients, seed)


@pytest.fixture
def table(tmp_path):
    """Write 120 images of four writers as a Parquet file; return its name as a data set."""
    images = np.random.default_rng(0).integers(0, 256, (120, 8, 8, 3), dtype=np.uint8)
    columns = {
        "label": np.arange(120) % 3,
        "image": image_rows(images),
        "writer": WRITERS,
        "number": np.arange(120) // 40,
        "weight": np.linspace(0, 1, 120),
        "hole": ["a", None] * 60,
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "table.parquet")
    return f"folder:{tmp_path / 'table.parquet'}"


# ---- A function ------------------------------------------------------------------------


def test_a_function_splits_the_data():
    plan = plan_of(partition=f"{HERE}:by_class_then_rest", seed=3)
    labels = load_labels("digits")
    held = [np.unique(labels[indices]).tolist() for indices in client_indices(plan)]
    order = np.random.default_rng(3).permutation(10)
    assert held == [[k] for k in order[:4].tolist()]


@pytest.mark.parametrize("name", [*INVALID, "absent"])
def test_an_invalid_split_is_refused_in_one_line(name, small, tmp_path):
    _, sentence = INVALID.get(name, (None, "holds no absent"))
    changes = {"partition": f"{HERE}:{name}", "max-samples": 0, "held-out-size": 0}
    changes |= {"strategy": "local"}
    assert_refused(sentence, {**small, **changes}, tmp_path / "run")


def test_a_run_takes_a_function_and_records_the_split(small, tmp_path):
    runs = [
        fedkd_flwr.run({**small, "strategy": "local"}, partition=partition, output_dir=path)
        for partition, path in (
            (by_class_then_rest, tmp_path / "a"),
            (lambda *given: by_class_then_rest(*given), tmp_path / "b"),
        )
    ]
    assert runs[0].config["partition"] == f"{HERE}:by_class_then_rest"
    assert runs[1].config["partition"].startswith("object:lambda_")
    rows, again = (json.loads((run.path / "split.json").read_text()) for run in runs)
    assert rows == again
    assert [row["partition_id"] for row in rows] == [0, 1, 2, 3]
    plan = read_config(runs[0].config).run.server_data_plan
    assert [row["samples"] for row in rows] == list(map(len, client_indices(plan)))
    assert len({row["sha256"] for row in rows}) == 4
    assert runs[0].description["data"] == runs[1].description["data"]


# ---- A column --------------------------------------------------------------------------


def test_each_client_has_the_rows_of_one_value(table):
    plan = plan_of(dataset=table, client_column="writer")
    assert plan.settings.partition == "by-column"
    held = [set(WRITERS[indices]) for indices in client_indices(plan)]
    assert held == [{"w1"}, {"w10"}, {"w2"}, {"w3"}]
    assert sum(map(len, client_indices(plan))) == 120


def test_numbers_are_sorted_as_numbers(table):
    plan = plan_of(num_clients=3, dataset=table, client_column="number")
    assert [indices.tolist()[0] for indices in client_indices(plan)] == [0, 40, 80]


def test_fewer_clients_share_the_values_evenly_as_the_seed_says(table):
    settings = DataSettings(dataset=table, client_column="writer", held_out_size=0)
    names = owners_of(settings).names
    drawn = [names_of_clients(settings, 3, seed) for seed in (0, 0, 1, 2, 3)]
    as_lists = [[[names[n] for n in own] for own in of_clients] for of_clients in drawn]
    assert as_lists[0] == as_lists[1]
    assert any(values != as_lists[0] for values in as_lists[2:])
    for values in as_lists:
        assert sorted(map(len, values)) == [1, 1, 2]
        assert sorted(value for own in values for value in own) == ["w1", "w10", "w2", "w3"]
    for indices, values in zip(client_indices(DataPlan(settings, 3, 0)), as_lists[0], strict=True):
        assert set(WRITERS[indices]) == set(values)


def test_zero_clients_are_as_many_as_values(table, small, tmp_path):
    changes = {"strategy": "local", "models": "mlp", "held-out-size": 8, "max-samples": 0}
    changes |= {"dataset": table, "client-column": "writer", "num-clients": 0}
    run = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    assert (run.config["num-clients"], run.config["partition"]) == (4, "by-column")
    rows = json.loads((run.path / "split.json").read_text())
    assert [row["values"] for row in rows] == [["w1"], ["w10"], ["w2"], ["w3"]]
    assert sum(row["samples"] for row in rows) == 112


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"client-column": "hand"}, "has the columns label, image, writer, number, weight, hole"),
        ({"client-column": "weight"}, "holds double; it should hold text or whole numbers"),
        ({"client-column": "hole"}, "has 60 empty rows"),
        (
            {"client-column": "writer", "num-clients": 5},
            "has 4 values, too few for 5 clients; set num-clients to at most 4, or 0",
        ),
        ({"partition": "by-column"}, "by-column needs client-column"),
        ({"client-column": "writer", "dataset": "digits"}, "digits has no columns; use a Parquet"),
        (
            {"client-column": "writer", "max-samples": 9, "held-out-size": 5},
            "no sample with writer = w.* is left",
        ),
    ],
)
def test_a_column_that_names_no_clients_is_refused(changes, sentence, table, small, tmp_path):
    base = {**small, "strategy": "local", "dataset": table, "max-samples": 0}
    assert_refused(sentence, {**base, **changes}, tmp_path / "run")


def sites():
    """Eighteen rows of three sites."""
    labels = np.arange(18) % 2
    return np.stack([labels, np.arange(18)], axis=1), labels, np.array(["b", "a", "c"] * 6)


BY_SITE = {
    "strategy": "local", "public-size": 0, "held-out-size": 3, "num-server-rounds": 1,
    "num-clients": 0, "models": "mlp",
}  # fmt: skip


@pytest.mark.parametrize("dataset", [sites(), f"{HERE}:sites"], ids=["arrays", "function"])
def test_a_third_array_names_the_client_of_each_sample(dataset, tmp_path):
    named = {} if isinstance(dataset, tuple) else {"partition": "by-column"}
    settings = {**BY_SITE, **named}
    run = fedkd_flwr.run(settings, dataset=dataset, output_dir=tmp_path / "run")
    assert run.config["num-clients"] == 3
    lines = json.loads((run.path / "split.json").read_text())
    assert [line["values"] for line in lines] == [["a"], ["b"], ["c"]]
    samples, _, clients = sites()
    whose = samples[clients == "a", 1].tolist()
    settings = DataSettings(dataset=run.config["dataset"], partition="by-column", held_out_size=3)
    assert set(samples[client_indices(DataPlan(settings, 3))[0], 1]) < set(whose)


def test_a_split_may_ask_where_its_samples_are():
    asked = []

    def by_row(labels, num_clients, seed, positions):
        asked.append(positions)
        return np.array_split(np.arange(len(labels)), num_clients)

    name = hold(by_row, "by_row")
    plan = DataPlan(DataSettings(dataset="digits", partition=name, held_out_size=100), 3)
    shares = client_indices(plan)
    np.testing.assert_array_equal(asked[0], np.concatenate(shares))
    np.testing.assert_array_equal(
        load_labels("digits")[asked[0]][:5], load_labels("digits")[shares[0][:5]]
    )


@pytest.mark.parametrize(("share", "warnings"), [(0.6, 0), (0.1, 1)])
def test_a_function_that_leaves_most_samples_out_is_named(share, warnings, logged):
    def first_ones(labels, num_clients, seed):
        return np.array_split(np.arange(int(share * len(labels))), num_clients)

    name = hold(first_ones, f"first_{warnings}")
    check_data(DataPlan(DataSettings(partition=name, client_split="60/0/40"), num_clients=4))
    assert logged() == [f"partition = {name} gives clients 159 of 1597 samples"] * warnings
