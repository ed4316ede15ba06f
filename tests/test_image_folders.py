"""Folders of images and of clients: class numbers, skipped files, and decoding."""

import json

import numpy as np
import pytest
from helpers import png, write_image_folder, write_parquet
from PIL import Image

import fedkd_flwr
from fedkd_flwr.data.checks import warnings_about_data
from fedkd_flwr.data.clients import client_parts, load_client
from fedkd_flwr.data.folders import class_names
from fedkd_flwr.data.registry import DataError, DataFormat, forget_data
from fedkd_flwr.data.settings import DataPlan, DataSettings
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


def test_a_node_needs_a_folder_for_every_class_which_may_be_empty(tmp_path):
    write_pets(tmp_path, ["cat", "dog"])
    with pytest.raises(DataError, match="holds 2 folders; it needs one for each of the 3"):
        load_node_data(tmp_path, (1, 8, 8), 3)
    (tmp_path / "ape").mkdir()
    assert load_node_data(tmp_path, (1, 8, 8), 3).labels.tolist() == [1, 1, 2, 2]


PAIRS = [("Training", "Testing"), ("Train", "Test"), ("TRAIN", "TEST"), ("fold1", "fold2")]
PAIRS += [("training_set", "test_set"), ("training", "validation"), ("seg_train", "seg-test")]


@pytest.mark.parametrize("parts", PAIRS)
def test_parts_under_any_usual_name_are_no_classes(parts, tmp_path):
    """As classes, Training against Testing gave 46% where ant against bee gives 100."""
    for part in parts:
        write_pets(tmp_path / part, ["cat", "dog"])
    found = load_images(f"folder:{tmp_path}")
    assert classes_by_brightness(found) == {(10, 0), (100, 1)}
    assert (len(found.images), found.classes) == (8, 2)


@pytest.mark.parametrize("other", [("Cat", "cat"), ("caf\u00e9", "cafe\u0301")])
def test_names_that_differ_in_case_or_unicode_form_are_one_class(other, logged, tmp_path):
    for part, name in zip(("train", "test"), other, strict=True):
        for folder in (name, "dog"):
            save(tmp_path / part / folder, "0.png", np.zeros((8, 8), np.uint8))
    found = load_images(f"folder:{tmp_path}")
    assert (len(found.images), found.classes) == (4, 2)
    assert f"are one class: {other[0]} and {other[1]}" in logged()[-1]
    assert class_names(str(tmp_path), 2) == sorted([other[0], "dog"])
    save(tmp_path / "test" / other[0], "0.png", np.zeros((8, 8), np.uint8))
    forget_data()
    with pytest.raises(DataError, match="names are equal but for case or Unicode form: rename one"):
        load_images(f"folder:{tmp_path}")


def test_folders_with_equal_subfolders_may_be_clients_so_the_run_asks(logged, tmp_path):
    """`photos/{north,south}/{cat,dog}` read as classes trains sites against each other."""
    for site, pets in {"north": ["cat", "dog"], "south": ["cat", "dog"], "east": ["cat"]}.items():
        write_pets(tmp_path / site, pets)
    asked = (
        f"folders east, north, south, which share the folders cat, dog: .* set dataset to "
        f"clients:{tmp_path}; .* folder:{tmp_path}/east; .* set num-classes to 3$"
    )
    for classes in (0, 2):
        with pytest.raises(DataError, match=asked):
            load_images(f"folder:{tmp_path}", data_format=DataFormat(classes=classes))
    assert load_images(f"folder:{tmp_path}", data_format=DataFormat(classes=3)).classes == 3
    assert "the former are read as classes" in logged()[-1]


def test_parts_without_class_folders_are_refused(tmp_path):
    for part in ("train", "test"):
        save(tmp_path / part, "0.png", np.zeros((8, 8), np.uint8))
    with pytest.raises(DataError, match=r"has the folders test, train, which are parts .*test/cat"):
        load_images(f"folder:{tmp_path}")


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


def test_what_is_left_out_is_counted(tmp_path):
    write_pets(tmp_path, ["cat", "dog"])
    for name in ("cat/0.gif", "cat/1.GIF", "dog/0.heic", "dog/README", "dog/.hidden"):
        (tmp_path / name).write_bytes(b"not looked at")
    save(tmp_path, "cover.png", np.zeros((8, 8), np.uint8))
    assert load_images(f"folder:{tmp_path}").said == (
        f"{tmp_path}: 4 images (1 x 8 x 8) of 2 classes: cat 2, dog 2; left out: 2 .gif, "
        "1 .heic, 1 without a suffix, 1 beside the class folders"
    )


@pytest.mark.parametrize("suffix", [".gif", ".pgm", ".jp2", ".heic"])
def test_a_class_without_an_image_that_is_read_does_not_vanish(suffix, tmp_path):
    write_pets(tmp_path, ["cat", "dog"])
    (tmp_path / "horse").mkdir()
    (tmp_path / f"horse/0{suffix}").write_bytes(b"not looked at")
    with pytest.raises(DataError, match=rf"horse' has no image .* but 1 {suffix}; read are"):
        load_images(f"folder:{tmp_path}")


WHOLE = png(np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"no image", "it is none of BMP, JPEG, PNG, TIFF, WEBP"),
        (WHOLE[:80], "image file is truncated"),
    ],
)
def test_an_unreadable_file_is_refused_with_the_reason(content, reason, tmp_path):
    write_pets(tmp_path, ["cat", "dog"])
    (tmp_path / "cat/broken.png").write_bytes(content)
    with pytest.raises(DataError, match=rf"broken\.png' is no readable image file: .*({reason})"):
        load_images(f"folder:{tmp_path}")


def test_a_file_with_too_many_pixels_is_refused_with_the_reason(tmp_path, monkeypatch):
    write_pets(tmp_path, ["cat", "dog"])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)
    with pytest.raises(
        DataError, match=r"0000\.png' .* Image size \(64 pixels\) exceeds limit of 60"
    ):
        load_images(f"folder:{tmp_path}")


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


def test_twelve_bits_of_gray_keep_their_levels(tmp_path):
    """By 65535 / 255, they would have 16 levels; by the largest number of the set they have 256."""
    wide = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    for name, pixels in (("cat", wide), ("dog", wide // 2)):
        save(tmp_path / name, "0.png", pixels)
    found = load_images(f"folder:{tmp_path}")
    bright, dark = found.images
    assert (len(bright.unique()), int(bright.max()), int(dark.max())) == (256, 255, 127)
    assert found.said.endswith("16 bits scaled by the largest number, 4095: 2")
    assert found.levels.white == 4095


INK = np.zeros((8, 8), np.uint8)
INK[2:6, 3] = 255


@pytest.mark.parametrize(("color", "behind"), [(0, "white"), (255, "black")])
@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_what_is_drawn_in_the_alpha_channel_is_seen(mode, color, behind, tmp_path):
    """Without its alpha channel such an image has one value."""
    bands = [np.full((8, 8), color, np.uint8)] * (len(mode) - 1)
    save(tmp_path / "0", "0.png", np.dstack([*bands, INK]))
    found = load_images(f"folder:{tmp_path}")
    assert found.images.shape[1] == len(mode) - 1
    np.testing.assert_array_equal(found.images[0, 0], INK if color else 255 - INK)
    assert found.said.endswith(f"alpha channels put on {behind}: 1")


@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff"])
def test_a_photo_is_turned_as_its_camera_was(suffix, tmp_path):
    upright = np.zeros((16, 24), np.uint8)
    upright[:, 12:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    for name, pixels, marked in (("0", upright, None), ("1", np.rot90(upright), exif)):
        (tmp_path / name).mkdir()
        image = Image.fromarray(np.ascontiguousarray(pixels))
        image.save(tmp_path / name / f"photo.{suffix}", exif=marked or Image.Exif())
    found = load_images(f"folder:{tmp_path}")
    assert found.images.shape == (2, 1, 16, 24)
    assert (found.images[0].int() - found.images[1].int()).abs().max() <= 2
    assert not found.warning


def test_colors_stay_whatever_the_first_file_is(tmp_path):
    """One gray file that came first used to make all images gray."""
    save(tmp_path / "0", "0.png", np.zeros((8, 8), np.uint8))
    save(tmp_path / "0", "1.png", np.full((8, 8, 3), (0, 200, 0), np.uint8))
    found = load_images(f"folder:{tmp_path}")
    assert found.images[:, :, 0, 0].tolist() == [[0, 0, 0], [0, 200, 0]]
    assert found.said.endswith("gray ones among those in color: 1")


def test_all_images_get_the_median_size_with_a_warning(tmp_path):
    for n, side in enumerate((5, 8, 8, 8, 16)):
        save(tmp_path / str(n % 2), f"{n}.png", np.full((side, 8), 255, np.uint8))
    settings = DataSettings(dataset=f"folder:{tmp_path}")
    assert settings.image_shape == (1, 8, 8)
    (warning,) = warnings_about_data(settings)
    assert "5 images have 3 sizes, from 5 x 8 to 16 x 8 (height x width), and all are" in warning
    assert warning.endswith("resized to the median, 8 x 8: set image-shape for another")
    chosen = settings.model_copy(update={"configured_shape": "1,4,4"})
    assert chosen.image_shape == (1, 4, 4) and not warnings_about_data(chosen)


@pytest.mark.parametrize("sides", [(1, 1), (28, 140), (900, 700)])
def test_sizes_that_differ_by_more_than_four_times_are_a_question(sides, tmp_path):
    for n, (height, width) in enumerate([sides, (28, 28), (28, 28)]):
        save(tmp_path / str(n % 2), f"{n}.png", np.zeros((height, width), np.uint8))
    with pytest.raises(
        DataError, match=r"0\.png'.* more than 4 times: set image-shape .* 1,28,28$"
    ):
        load_images(f"folder:{tmp_path}")
    data_format = DataFormat(shape=(1, 28, 28))
    assert load_images(f"folder:{tmp_path}", data_format=data_format).images.shape[1:] == (
        1,
        28,
        28,
    )


@pytest.mark.parametrize(("dtype", "mode"), [(np.int32, "I"), (np.float32, "F")])
def test_pixels_without_a_known_white_are_refused(dtype, mode, tmp_path):
    save(tmp_path / "0", "depth.tif", np.ones((8, 8), dtype))
    with pytest.raises(DataError, match=rf"depth\.tif' has pixels of 32 bits \(mode {mode}\)"):
        load_images(f"folder:{tmp_path}")


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


# ---- A client for each folder or file, of images, tables or arrays -------------------


SITES = {"north": 0, "south": 100, "east": 200}
"""The brightness of each site's first image; the others are brighter by their number."""


def images_of(site, count=20):
    brightness = np.arange(count, dtype=np.uint8) + SITES[site]
    return np.broadcast_to(brightness[:, None, None], (count, 8, 8))


def animals(count):
    return np.array(["cat", "dog"])[np.arange(count) % 2]


def write_photos(folder):
    for site in SITES:
        write_image_folder(folder / site, images_of(site), animals(20))


def write_tables(folder):
    for site in SITES:
        write_parquet(folder / f"{site}.parquet", images_of(site), np.arange(20) % 2)


def write_tables_in_folders(folder):
    for site in SITES:
        write_parquet(folder / site / "a.parquet", images_of(site)[:12], np.arange(12) % 2)
        write_parquet(folder / site / "b.parquet", images_of(site)[12:], np.arange(8) % 2)


def write_arrays(folder):
    for site in SITES:
        (folder / site).mkdir(parents=True)
        np.savez(folder / site / "own.npz", X=images_of(site)[:, None], y=np.arange(20) % 2)


def test_arrays_of_clients_with_channels_last_are_warned_about(tmp_path):
    pixels = np.zeros((20, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "north.npz", x=pixels, y=np.arange(20) % 2)
    (warning,) = warnings_about_data(DataSettings(dataset=f"clients:{tmp_path}"))
    assert "look like images with channels last" in warning


def test_a_table_of_each_client_has_classes_of_all(own, tmp_path):
    """The words of a class column are numbered over all files, and a test file is for testing."""
    generator = np.random.default_rng(0)
    for name, words in (("north", "yn"), ("south/train", "y"), ("south/test", "yn")):
        rows = [f"{x:.3f},{y:.3f},{words[n % len(words)]}"
                for n, (x, y) in enumerate(generator.normal(size=(40, 2)))]  # fmt: skip
        file = tmp_path / f"{name}.csv" if "/" in name else tmp_path / name / "own.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["x,y,class", *rows]))
    found = load_images(f"clients:{tmp_path}")
    assert np.bincount(found.owners.clients).tolist() == [40, 80]
    assert (np.bincount(found.labels).tolist(), found.owners.is_test.sum()) == ([40, 80], 40)
    assert "2 classes" in found.said and found.said.endswith("2 clients: north 40, south 80")
    changes = {"dataset": f"clients:{tmp_path}", "held-out-size": 20, "public-size": 20}
    run = fedkd_flwr.run({**own, **changes}, output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0]


@pytest.mark.parametrize(
    "write", [write_photos, write_tables, write_tables_in_folders, write_arrays]
)
def test_each_folder_or_file_is_a_client(write, own, tmp_path):
    """Read as classes, the folders would make site against site of cat against dog."""
    write(tmp_path / "photos")
    unset = {key: value for key, value in own.items() if key not in ("num-clients", "partition")}
    settings = {**unset, "dataset": f"clients:{tmp_path / 'photos'}", "held-out-size": 12}
    run = fedkd_flwr.run({**settings, "public-size": 12}, output_dir=tmp_path / "run")
    assert (run.config["num-clients"], run.config["partition"]) == (3, "by-file")
    assert list(run.rounds["failures"]) == [0]
    recorded = json.loads((run.path / "split.json").read_text())
    assert [client["values"][0].split(".")[0] for client in recorded] == sorted(SITES)
    plan = DataPlan(DataSettings(dataset=settings["dataset"], public_dataset="none"), 3)
    for number, site in enumerate(sorted(SITES)):
        data = load_client(plan, number)
        everything = np.sort(np.concatenate(data.positions))
        brightness = data.samples.images[everything].flatten(1)[:, 0].sort().values.tolist()
        assert brightness == [SITES[site] + n for n in range(20)]
        assert data.classes == 2


def test_a_client_may_have_its_own_test_folder(tmp_path):
    write_image_folder(tmp_path / "north/Training", images_of("north"), animals(20))
    write_image_folder(tmp_path / "north/Testing", images_of("south", 6), animals(6))
    write_image_folder(tmp_path / "south", images_of("east"), animals(20))
    settings = DataSettings(dataset=f"clients:{tmp_path}", public_dataset="none")
    plan = DataPlan(settings, 2)
    assert load_client(plan, 0).test_images.shape[0] == 6
    assert len(client_parts(plan, 1)[2]) == 4  # as client-split says


def test_classes_are_numbered_alike_at_all_clients(tmp_path):
    """A client without cats shifts no number."""
    write_photos(tmp_path)
    for file in (tmp_path / "east/cat").iterdir():
        file.unlink()
    (tmp_path / "east/cat").rmdir()
    found = load_images(f"clients:{tmp_path}")
    assert found.labels[found.owners.clients == 0].tolist() == [1] * 10
    assert "2 classes: cat 20, dog 30; 3 clients: east 10, north 20, south 20" in found.said


def write_parts(folder):
    for part in ("train", "test"):
        write_image_folder(folder / part, images_of("north"), animals(20))


def write_mixture(folder):
    write_image_folder(folder / "north", images_of("north"), animals(20))
    write_parquet(folder / "south/own.parquet", images_of("south"), np.arange(20) % 2)


def write_unsorted(folder):
    write_photos(folder)
    for file in sorted((folder / "east").rglob("*.png")):
        file.rename(folder / "east" / file.name)


def write_three_arrays(folder):
    folder.mkdir()
    np.savez(folder / "north.npz", a=np.zeros(3), b=np.zeros(3), c=np.zeros(3))


def write_metadata(folder):
    write_photos(folder)
    for client in folder.iterdir():
        (client / "metadata.csv").write_text("label,age\n0,31.5\n1,42.5\n")


def write_two_scales(folder):
    folder.mkdir()
    for name, scale in (("north", np.uint8(1)), ("south", np.float32(1 / 255))):
        np.savez(folder / f"{name}.npz", x=images_of("north")[:, None] * scale, y=np.arange(20) % 2)


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (write_metadata, r"several kinds \(.*north: .csv, images; .*\); all need the same"),
        (
            write_two_scales,
            "has samples of float32, uint8: those of uint8 are pixels from 0 to 255",
        ),
        (write_parts, "has the folders test, train, which are parts .* set dataset to folder:"),
        (write_mixture, r"several kinds \(north: images; south: .parquet\)"),
        (write_unsorted, "no sample is found of the client 'east': sort its images into a folder"),
        (write_three_arrays, "has the arrays a, b, c: it needs samples as x or .* labels as y or"),
        (lambda folder: folder.mkdir(), "needs a folder for each client, or a file"),
        (lambda folder: None, "there is no folder"),
    ],
)
def test_other_folders_are_refused_in_one_line(write, sentence, tmp_path):
    write(tmp_path / "photos")
    with pytest.raises(DataError, match=sentence) as refused:
        load_images(f"clients:{tmp_path / 'photos'}")
    assert "\n" not in str(refused.value)
