"""The splits of `PARTITIONS`: the papers' numbers, disjointness, determinism, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw

from fedkd_flwr.data.partitioners import (
    Supply,
    choose_classes,
    dirichlet_clients,
    draw_classes,
    fill_up,
    lognormal_two_classes,
    partition_indices,
    random_counts,
)
from fedkd_flwr.data.registry import PARTITIONS, DataError
from fedkd_flwr.data.settings import DataSettings

# Like Fashion-MNIST: 7000 samples of each of ten classes, in random order.
FASHION = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 7000))
SCARCE = np.repeat(np.arange(10), 1200)
SMALL = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 60))


def split(labels, name, num_clients, seed, **options):
    return partition_indices(labels, DataSettings(partition=name, **options), num_clients, seed)


def table(labels, shares):
    return np.array([np.bincount(labels[share], minlength=10) for share in shares])


def assert_disjoint(shares, num_samples):
    """No sample has two owners, all exist, and every client has samples."""
    together = np.concatenate(shares)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < num_samples
    assert min(map(len, shares)) > 0


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=15, deadline=None)
@given(seed=draw.integers(0, 2**31), clients=draw.integers(3, 12))
def test_no_sample_has_two_owners(name, seed, clients):
    shares = split(SMALL, name, clients, seed, minimum_size=6)
    assert len(shares) == clients
    assert_disjoint(shares, len(SMALL))
    assert all((np.diff(share) > 0).all() for share in shares)


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_seed_decides(name):
    first, again, other = (split(SMALL, name, 6, seed) for seed in (4, 4, 5))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_iid_shares_are_equal_complete_and_mixed():
    in_order = np.sort(FASHION)
    shares = split(in_order, "iid", 7, 0)
    assert sum(map(len, shares)) == len(FASHION)
    assert {len(share) for share in shares} == {10000}
    counts = table(in_order, shares)
    # Hypergeometric, mean 1000, standard deviation 27.8: five of them either way.
    assert abs(counts - 1000).max() < 139


def test_two_groups_has_the_papers_numbers():
    counts = table(FASHION, split(FASHION, "two-groups", 20, 0))
    assert (counts[:10] == [450] * 5 + [150] * 5).all()
    assert (counts[10:] == [150] * 5 + [450] * 5).all()


@pytest.mark.parametrize("samples", [1, 2])
def test_two_groups_needs_three_samples_of_a_class(samples):
    with pytest.raises(DataError, match="set samples-per-class to at least 3"):
        split(FASHION, "two-groups", 4, 0, samples_per_class=samples)
    assert len(split(FASHION, "two-groups", 4, 0, samples_per_class=3)) == 4


@pytest.mark.parametrize(
    ("name", "labels", "clients", "options", "sentence"),
    [
        ("two-classes", SMALL[SMALL == 0], 4, {}, "the data set has one; set partition to iid"),
        ("lognormal-two-classes", SMALL[SMALL == 0], 4, {}, "has one; set partition to iid"),
        (
            "two-classes", [*SMALL[SMALL != 6], 6, 6], 20, {},
            "class 6 runs out: .* at least 4 .* the data set has 2",
        ),
        (
            "k-classes", [*SMALL[SMALL != 6], *[6] * 7], 8,
            {"classes_per_client": 5, "class_proportions": "random"},
            "class 6 runs out: .* at least 8 .* the data set has 7",
        ),
        (
            "lognormal-two-classes", [*SMALL[SMALL != 3], 3], 10, {},
            "class 3 runs out: .* at least 2 .* the data set has 1",
        ),
        (
            "k-classes", SMALL, 10, {"classes_per_client": 11},
            "cannot have 11 classes: the data set has 10",
        ),
        ("k-classes-grouped", SMALL, 3, {"groups": 4}, "cannot form 4 groups; set groups to at"),
        ("dirichlet", SMALL, 10, {"minimum_size": 61}, "600 samples are too few for 10 clients"),
        ("dirichlet-clients", SMALL, 10, {"minimum_size": 61}, "set minimum-size to at most 60"),
    ],
)  # fmt: skip
def test_an_impossible_split_is_refused_with_what_to_set(name, labels, clients, options, sentence):
    with pytest.raises(DataError, match=sentence):
        split(np.array(labels), name, clients, 0, **options)


def test_two_groups_scales_all_numbers_by_one_factor():
    counts = table(SMALL, split(SMALL, "two-groups", 4, 0))
    # A class is wanted 2 * 450 + 2 * 150 = 1200 times and there are 60: a twentieth of it.
    assert (counts[:2] == [22] * 5 + [7] * 5).all()
    assert (counts[2:] == [7] * 5 + [22] * 5).all()


def test_two_classes_has_the_papers_numbers():
    counts = table(FASHION, split(FASHION, "two-classes", 20, 3))
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert set(counts[counts > 0]) == {300}


@settings(max_examples=30, deadline=None)
@given(seed=draw.integers(0, 2**31))
def test_two_classes_can_always_be_met_by_twenty_clients(seed):
    # 1200 samples a class are exactly enough if each class goes to four of the twenty.
    counts = table(SCARCE, split(SCARCE, "two-classes", 20, seed))
    assert (counts.sum(axis=0) == 1200).all()
    assert (counts.sum(axis=1) == 600).all()


def test_samples_per_class_replaces_the_papers_number():
    two_classes = split(FASHION, "two-classes", 5, 0, samples_per_class=40)
    assert {len(share) for share in two_classes} == {80}
    two_groups = split(FASHION, "two-groups", 4, 0, samples_per_class=30)
    assert set(table(FASHION, two_groups).ravel()) == {30, 10}


@pytest.mark.parametrize("classes", [1, 4, 10])
def test_k_classes_have_equal_totals(classes):
    shares = split(FASHION, "k-classes", 10, 0, classes_per_client=classes)
    counts = table(FASHION, shares)
    assert ((counts > 0).sum(axis=1) == classes).all()
    # Ten clients choose each class equally often, so all data is used.
    assert (counts.sum(axis=1) == 7000).all()


class Exponential:
    def __init__(self, draws):
        self.draws = np.array(draws, dtype=float)

    def exponential(self, size):
        assert size == self.draws.shape
        return self.draws


@pytest.mark.parametrize(
    ("available", "draws", "most", "expected"),
    [
        # Of 24 samples four are set aside: one for each owner, and one to round up. 20 a client
        # in the proportions 1:3 are 5 and 15.
        ([24, 24], [[1, 3], [3, 1]], 0, [[6, 16], [16, 6]]),
        # 1:2 of 20 are 6.67 and 13.33; the sample that rounding leaves goes to the former.
        ([24, 24], [[1, 2], [2, 1]], 0, [[8, 14], [14, 8]]),
        # The first class is in demand: 0.75 + 0.75 of the total are its 30 - 4 samples.
        ([30, 90], [[3, 1], [3, 1]], 0, [[14, 5], [14, 5]]),
        # At most 5 of a class in the mean: 2 * (5 - 1) in the proportions 1:3.
        ([24, 24], [[1, 3], [3, 1]], 5, [[3, 7], [7, 3]]),
    ],
)
def test_random_proportions_by_hand(available, draws, most, expected):
    supply = Supply(np.arange(2), np.array(available))
    counts = random_counts(supply, np.ones((2, 2), dtype=bool), most, Exponential(draws))
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("name", ["k-classes", "k-classes-grouped"])
@settings(max_examples=15, deadline=None)
@given(seed=draw.integers(0, 2**31), clients=draw.integers(2, 12), size=draw.integers(1, 6))
def test_random_proportions_leave_totals_equal(name, seed, clients, size):
    options = {"classes_per_client": size, "class_proportions": "random"}
    counts = table(SMALL, split(SMALL, name, clients, seed, **options))
    assert ((counts > 0).sum(axis=1) == size).all()
    assert len(set(counts.sum(axis=1))) == 1


def test_random_proportions_are_uniform_on_the_simplex():
    options = {"classes_per_client": 2, "class_proportions": "random"}
    counts = table(FASHION, split(FASHION, "k-classes", 400, 0, **options))
    shares = counts[counts > 0] / counts.sum(axis=1)[0]
    # With two classes a share is uniform from 0 to 1: variance 1/12.
    assert shares.var() == pytest.approx(1 / 12, rel=0.1)


def test_groups_share_their_classes_as_blocks():
    options = {"classes_per_client": 3, "groups": 3}
    counts = table(FASHION, split(FASHION, "k-classes-grouped", 10, 2, **options))
    same = ((counts > 0)[:, None] == (counts > 0)[None]).all(axis=2)
    group = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(same, group[:, None] == group[None])
    assert len(set(counts.sum(axis=1))) == 1
    assert ((counts > 0).sum(axis=1) == 3).all()


@settings(max_examples=50, deadline=None)
@given(
    choosers=draw.integers(1, 40),
    classes=draw.integers(2, 20),
    size=draw.integers(1, 20),
    seed=draw.integers(0, 1000),
)
def test_classes_are_chosen_equally_often(choosers, classes, size, seed):
    size = min(size, classes)
    chosen = choose_classes(choosers, classes, size, np.random.default_rng(seed))
    assert (chosen.sum(axis=1) == size).all()
    assert np.ptp(chosen.sum(axis=0)) <= 1


def test_dirichlet_uses_all_data_and_keeps_the_minimum():
    # PerFed-CKT's split: most clients draw next to nothing.
    shares = split(FASHION, "dirichlet", 100, 0, alpha=0.01, minimum_size=25)
    sizes = np.array([len(share) for share in shares])
    assert sizes.sum() == len(FASHION)
    assert sizes.min() == 25
    assert sizes.max() > 3000


def counts_of(kind, num_clients, available, generator, **options):
    """Return samples of each class for each client, before they are handed out."""
    supply = Supply(np.arange(10), np.full(10, available))
    return kind.__wrapped__(supply, num_clients, DataSettings(**options), generator)


@settings(max_examples=50, deadline=None)
@given(
    clients=draw.integers(2, 12),
    classes=draw.integers(2, 10),
    minimum=draw.integers(1, 25),
    seed=draw.integers(0, 2**31),
)
def test_filling_comes_from_all_classes_alike(clients, classes, minimum, seed):
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 3, (clients, classes))
    counts[0] += clients * minimum  # enough of every class for everybody
    filled = fill_up(counts, minimum, generator)
    np.testing.assert_array_equal(filled.sum(axis=0), counts.sum(axis=0))
    small = counts.sum(axis=1) < minimum
    assert (filled[small].sum(axis=1) == minimum).all()
    assert filled.min() >= 0
    assert filled.sum(axis=1).min() >= minimum
    received = (filled - counts)[small]
    assert received.min(initial=0) >= 0
    assert np.ptp(received, axis=1, keepdims=True).max(initial=0) <= 1


def test_filling_goes_on_with_the_classes_that_are_left():
    counts = np.array([[1, 40, 1], [0, 0, 0]])
    filled = fill_up(counts, 10, np.random.default_rng(0))
    np.testing.assert_array_equal(filled, [[0, 32, 0], [1, 8, 1]])


def test_dirichlet_fractions_have_the_right_spread():
    # A client's share of a class is Beta(a, (N-1) a): variance (N-1) / (N² (N a + 1)).
    labels = np.repeat(np.arange(1000), 1000)
    allocated = split(labels, "dirichlet", 5, 0, alpha=0.9, minimum_size=1)
    shares = np.array([np.bincount(labels[share], minlength=1000) for share in allocated]) / 1000
    assert shares.mean() == pytest.approx(1 / 5)
    assert shares.var() == pytest.approx(4 / (25 * (5 * 0.9 + 1)), rel=0.1)


@pytest.mark.parametrize(
    ("proportions", "sizes", "available", "expected"),
    [
        ([[1, 0], [0, 1]], [2, 3], [5, 5], [[2, 0], [0, 3]]),
        # Nothing of the second client's class is left, so it gets what there is.
        ([[0, 1], [0, 1]], [0, 4], [3, 1], [[0, 0], [3, 1]]),
    ],
)
def test_classes_are_drawn_as_far_as_there_are_samples(proportions, sizes, available, expected):
    drawn = draw_classes(
        np.array(proportions, dtype=float),
        *(np.array(sizes), np.array(available), np.random.default_rng(0)),
    )
    np.testing.assert_array_equal(drawn, expected)


class Recorder:
    """A generator that keeps the concentrations it is asked for."""

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def dirichlet(self, concentrations, size):
        self.concentrations = concentrations
        return self.generator.dirichlet(concentrations, size)

    def __getattr__(self, name):
        return getattr(self.generator, name)


def test_the_concentration_is_alpha_times_the_classes_shares():
    supply, recorder = Supply(np.arange(2), np.array([300, 100])), Recorder()
    counts = dirichlet_clients.__wrapped__(supply, 3, DataSettings(alpha=2.0), recorder)
    np.testing.assert_allclose(recorder.concentrations, [1.5, 0.5])
    assert (counts.sum(axis=1) == 133).all()


def test_a_client_has_few_classes_where_alpha_is_small():
    def largest(alpha):
        counts = counts_of(dirichlet_clients, 50, 600, np.random.default_rng(1), alpha=alpha)
        assert (counts.sum(axis=1) == 120).all()
        assert (counts.sum(axis=0) == 600).all()
        return (counts.max(axis=1) / 120).mean()

    assert largest(0.01) > 0.7 > 0.5 > largest(3.0)
    assert largest(1e6) < 0.2


def test_sizes_are_lognormal_above_the_minimum():
    options = {"size_sigma": 0.7, "minimum_size": 30, "alpha": 5.0}
    counts = counts_of(dirichlet_clients, 500, 10**5, np.random.default_rng(2), **options)
    assert counts.sum(axis=1).min() >= 30
    assert 0 <= 10**6 - counts.sum() <= 500
    assert np.log(counts.sum(axis=1) - 30).std() == pytest.approx(0.7, rel=0.1)


@settings(max_examples=20, deadline=None)
@given(seed=draw.integers(0, 2**31))
def test_lognormal_has_two_classes_and_twice_the_floor(seed):
    counts = counts_of(lognormal_two_classes, 10, 7000, np.random.default_rng(seed))
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert (counts.sum(axis=0) <= 7000).all()
    plenty = counts[:, counts.sum(axis=0) < 6990]  # classes that do not run out
    assert plenty.size
    assert (plenty % 2 == 0).all()
    assert plenty[plenty > 0].min() >= 600


def test_lognormal_has_the_papers_mean_and_leaves_no_user_with_most_of_the_data():
    generator = np.random.default_rng(0)
    draws = [counts_of(lognormal_two_classes, 10, 7000, generator) for _ in range(200)]
    # 2 (7000 / 20 + 450), a little less where a class runs out.
    held = np.array([counts.sum() / 20 for counts in draws])
    assert held.mean() == pytest.approx(1600, rel=0.1)
    largest = [counts.sum(axis=1).max() / counts.sum() for counts in draws]
    assert max(largest) < 0.4
    assert np.median(largest) < 0.25


def test_lognormal_shares_have_the_papers_spread():
    # With so many samples the floor does not count.
    counts = counts_of(lognormal_two_classes, 400, 10**10, np.random.default_rng(0))
    assert np.log(counts[counts > 0]).std() == pytest.approx(2.0, rel=0.1)


def test_sizes_spread_as_far_as_the_largest_sigma_and_no_further():
    assert_disjoint(split(SMALL, "dirichlet-clients", 6, 0, size_sigma=100.0), len(SMALL))
    with pytest.raises(ValueError, match="less than or equal to 100"):
        DataSettings(size_sigma=1000.0)
