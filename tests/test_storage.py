"""Two names of one data set are recognized without reading a sample."""

import pytest

from fedkd_flwr.data.storage import share_samples


@pytest.fixture
def root(tmp_path):
    """A data root with MNIST under two names, and two folders of classes in two parts."""
    (tmp_path / "ylecun/mnist").mkdir(parents=True)
    (tmp_path / "ylecun/mnist/train.parquet").touch()
    (tmp_path / "link").symlink_to(tmp_path / "ylecun/mnist")
    for part in ("train", "test", "unlabelled"):
        (tmp_path / "pets" / part / "cat").mkdir(parents=True)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("private", "public", "are_one"),
    [
        ("mnist", "hf:ylecun/mnist", True),
        ("hf:ylecun/mnist", "mnist", True),
        ("mnist", "hf:link", True),
        ("mnist", "folder:ROOT/ylecun/mnist/train.parquet", True),
        ("mnist", "folder:ROOT/link", True),
        ("mnist", "hf:ylecun/mnist2", False),
        ("mnist", "fashion-mnist", False),
        ("mnist", "hf:mnist", False),
        ("digits", "digits", True),
        ("digits", "mnist", False),
        ("folder:ROOT/pets", "folder:ROOT/link/../../pets", True),
        ("folder:ROOT/pets", "folder:ROOT/pets/train", True),
        ("folder:ROOT/pets/train", "folder:ROOT/pets", True),
        ("folder:ROOT/pets/train", "folder:ROOT/pets/test", False),
        # Of a folder with parts, nothing else is private.
        ("folder:ROOT/pets", "folder:ROOT/pets/unlabelled", False),
        ("a.module:Data.load", "a.module.Data:load", True),
        ("a.module:one", "a.module:other", False),
    ],
)
def test_in_a_data_root(private, public, are_one, root):
    private, public = (name.replace("ROOT", root) for name in (private, public))
    assert share_samples(private, public, root) == are_one


@pytest.mark.parametrize(
    ("private", "public", "are_one"),
    [
        ("cifar10", "hf:uoft-cs/cifar10", True),
        ("cifar10", "hf:cifar10", True),
        ("hf:Uoft-CS/cifar10", "cifar10", True),
        ("hf:somebody/cifar10", "cifar10", False),
        ("cifar10", "cifar100", False),
        ("digits", "cifar10", False),
    ],
)
def test_on_the_hub(private, public, are_one):
    assert share_samples(private, public) == are_one
