"""Folders of images: class numbers, skipped files, and decoding."""

import numpy as np
import pytest
from helpers import write_image_folder
from PIL import Image

import fedkd_flwr
from fedkd_flwr.data import sources
from fedkd_flwr.data.registry import DataError, DataFormat, forget_data
from fedkd_flwr.data.sources import load_images, load_node_data

BRIGHTNESS = {"cat": 10, "dog": 100, "horse": 200}


def write_pets(folder, pets):
    """Write two images of each animal, of its brightness."""
    names = np.repeat(pets, 2)
    images = [np.full((8, 8), BRIGHTNESS[name], np.uint8) for name in names]
    return write_image_folder(folder, images, names)


def classes_by_brightness(found):
    return {
        (int(image[0, 0, 0]), int(k)) for image, k in zip(found.images, found.labels, strict=True)
    }


def save(folder, name, pixels):
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / name)


# ---- Classes ---------------------------------------------------------------------------


@pytest.mark.parametrize("lacking", ["train", "test"])
def test_a_class_missing_in_one_part_does_not_shift_the_others(lacking, tmp_path):
    for part in ("train", "test"):
        write_pets(tmp_path / part, ["cat", "horse"] if part == lacking else list(BRIGHTNESS))
    expected = {(10, 0), (100, 1), (200, 2)}
    found = load_images(f"folder:{tmp_path}")
    assert (classes_by_brightness(found), found.classes) == (expected, 3)
    assert classes_by_brightness(load_node_data(tmp_path, (1, 8, 8), 3)) == expected
    with pytest.raises(DataError, match="holds 3 folders; it needs one for each of the 2 classes"):
        load_node_data(tmp_path, (1, 8, 8), 2)


@pytest.mark.parametrize("part", ["train", "test"])
def test_folders_beside_a_part_are_named_since_they_are_not_read(part, logged, tmp_path):
    """They may be classes, of which one is called so."""
    write_pets(tmp_path, ["cat", "dog"])
    write_pets(tmp_path / part, ["horse"])
    save(tmp_path / ".cache", "0.png", np.zeros((8, 8), np.uint8))
    assert load_images(f"folder:{tmp_path}").classes == 1
    said = f"only {part} is read, as a part with a folder for each class; cat, dog is not"
    assert any(said in line for line in logged())


def test_folders_made_by_tools_are_not_classes(tmp_path):
    for name in (".ipynb_checkpoints", "__MACOSX"):
        save(tmp_path / name, "0.png", np.zeros((8, 8), np.uint8))
        save(tmp_path / "dog" / name, "0.png", np.zeros((8, 8), np.uint8))
    found = load_images(f"folder:{write_pets(tmp_path, ['cat', 'dog'])}")
    assert (classes_by_brightness(found), len(found.labels)) == ({(10, 0), (100, 1)}, 4)
    assert found.classes == 2
    unlabeled = load_images(f"folder:{tmp_path}", "", DataFormat(labeled=False))
    assert len(unlabeled.images) == 4


# ---- Files -----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".bmp", ".JPG", ".jpeg", ".png", ".tif", ".tiff", ".webp"])
def test_a_file_in_a_documented_format_is_an_image(suffix, tmp_path):
    save(tmp_path / "0", f"one{suffix}", np.full((8, 8), 100, np.uint8))
    (tmp_path / "0" / f".one{suffix}").write_bytes(b"hidden")
    (tmp_path / "0/notes.txt").write_text("no image")
    found = load_node_data(tmp_path, (1, 8, 8), 1)
    assert (len(found.images), int(found.images.max())) == (1, 100)
    (tmp_path / "0/other.gif").write_bytes(b"not looked at")
    assert len(load_node_data(tmp_path, (1, 8, 8), 1).images) == 1
    (tmp_path / "0" / f"two{suffix}").write_bytes(b"no image")
    with pytest.raises(DataError, match=f"two{suffix}' is no readable"):
        load_node_data(tmp_path, (1, 8, 8), 1)


@pytest.mark.parametrize("other", ["GIF", "PPM", "EPS", "ICO"])
def test_no_decoder_of_another_format_is_tried_whatever_the_file_is_called(other, tmp_path):
    (tmp_path / "0").mkdir()
    with (tmp_path / "0/disguised.png").open("wb") as file:
        Image.new("RGB", (16, 16)).save(file, other)
    with pytest.raises(DataError, match=r"disguised\.png' is no readable image file"):
        load_node_data(tmp_path, (1, 16, 16), 1)


# ---- Pixels ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gray.png", "gray.tif", "big-endian.tif"])
def test_sixteen_bits_of_gray_become_eight(name, tmp_path):
    wide = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    near = wide.astype(int) + np.where(wide < 65535, 128, 0)  # all but half of the way to the next
    for number, pixels in enumerate((wide, near.astype(np.uint16))):
        folder = tmp_path / str(number)
        folder.mkdir()
        swapped = name.startswith("big")
        mode, content = ("I;16B", pixels.astype(">u2")) if swapped else ("I;16", pixels)
        Image.frombytes(mode, (16, 16), content.tobytes()).save(folder / name)
    found = load_images(f"folder:{tmp_path}")
    assert found.images.shape == (2, 1, 16, 16)
    for image in found.images:
        np.testing.assert_array_equal(image.flatten(), np.arange(256))


@pytest.mark.parametrize(("dtype", "mode"), [(np.int32, "I"), (np.float32, "F")])
def test_pixels_without_a_known_white_are_refused(dtype, mode, tmp_path):
    save(tmp_path / "0", "depth.tif", np.ones((8, 8), dtype))
    with pytest.raises(DataError, match=rf"depth\.tif' has pixels of 32 bits \(mode {mode}\)"):
        load_images(f"folder:{tmp_path}")


def test_files_cached_by_an_older_decoder_are_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKD_CACHE", str(tmp_path / "cache"))
    write_pets(tmp_path / "pets", ["cat", "dog"])
    for version in (sources.DECODING, sources.DECODING, sources.DECODING + 1):
        monkeypatch.setattr(sources, "DECODING", version)
        load_node_data(tmp_path / "pets", (1, 8, 8), 2)
    assert len(list((tmp_path / "cache/decoded").iterdir())) == 2


# ---- Changes between runs --------------------------------------------------------------


@pytest.mark.parametrize("used_as", ["dataset", "public-dataset"])
def test_a_folder_that_changed_is_read_again_by_the_next_run(used_as, own, tmp_path):
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (160, 8, 8), dtype=np.uint8)
    folder = write_image_folder(tmp_path / "images", pixels, np.arange(160) % 4)
    settings = {**own, used_as: f"folder:{folder}", "num-server-rounds": 2}
    first, same = (fedkd_flwr.run(settings, output_dir=tmp_path / name) for name in "ab")
    assert same.rounds["loss_mean"].tolist() == first.rounds["loss_mean"].tolist()
    write_image_folder(folder, 255 - pixels, np.arange(160) % 4)
    changed = fedkd_flwr.run(settings, output_dir=tmp_path / "changed")
    assert changed.rounds["loss_mean"].tolist() != first.rounds["loss_mean"].tolist()
    # What is read again is what another process reads.
    forget_data()
    fresh = fedkd_flwr.run(settings, output_dir=tmp_path / "fresh")
    assert fresh.rounds["loss_mean"].tolist() == changed.rounds["loss_mean"].tolist()


def test_links_to_folders_are_named_since_they_are_not_followed(logged, tmp_path):
    pets = write_image_folder(tmp_path / "pets", np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1])
    public = tmp_path / "public"
    public.mkdir()
    (public / "more").symlink_to(pets)
    data_format = DataFormat(labeled=False)
    with pytest.raises(DataError, match=r"has no samples: .* links to folders are not followed"):
        load_images(f"folder:{public}", data_format=data_format)
    (public / "0.png").write_bytes((pets / "0" / "0000.png").read_bytes())
    (public / ".hidden").symlink_to(pets)
    assert len(load_images(f"folder:{public}", data_format=data_format).labels) == 1
    assert logged()[-1] == f"{public}: links to folders are not followed, such as {public / 'more'}"
