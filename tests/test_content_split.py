"""The split of a node's own data: a sample keeps its part while the silo grows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from helpers import image_rows, png, write_image_folder, write_parquet

from fedkd_flwr.data.clients import load_client
from fedkd_flwr.data.content_split import Grouping, parts_by_content
from fedkd_flwr.data.registry import DataError, forget_data
from fedkd_flwr.data.settings import DataPlan, DataSettings

PIXELS = np.random.default_rng(0).integers(0, 256, (120, 8, 8), dtype=np.uint8)
LABELS = np.arange(120) % 3
PATIENTS = np.array([f"P{n // 4:02d}" for n in range(120)])
BY_PATIENT = Grouping(pattern=r"^(P\d+)_")
PARTS = ("train", "validation", "test")


def plan_of(client_split="60/20/20", seed=0):
    settings = DataSettings(
        dataset="folder:anywhere",
        configured_classes=3,
        configured_shape="1,8,8",
        public_dataset="none",
        client_split=client_split,
        input_scaling="symmetric",
    )
    return DataPlan(settings, 2, seed)


def part_of_each(data):
    found = {}
    for part in PARTS:
        for image in getattr(data, f"{part}_images"):
            found[image.numpy().tobytes()] = part
    return found


def parts_at(path, plan=None, partition_id=0, grouping=None):
    # A process loads a folder once; plans of other seeds stand for later processes.
    forget_data()
    data = load_client(plan or plan_of(), partition_id, str(path), grouping or Grouping())
    return part_of_each(data)


def key(pixels):
    return (torch.from_numpy(pixels)[None] / 127.5).sub_(1.0).numpy().tobytes()


def write_named(folder, names, pixels=PIXELS, labels=LABELS):
    for name, image, label in zip(names, pixels, labels, strict=False):
        path = folder / str(label) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image))
    return folder


def assert_same_parts(before, after):
    common = set(before) & set(after)
    assert len(common) >= min(len(before), len(after)) - 1
    assert {k: before[k] for k in common} == {k: after[k] for k in common}


def test_an_added_image_moves_no_other(tmp_path):
    before = parts_at(write_image_folder(tmp_path, PIXELS[1:], LABELS[1:]))
    (tmp_path / "0/000_first.png").write_bytes(png(PIXELS[0]))
    after = parts_at(tmp_path)
    assert len(after) == len(before) + 1
    assert_same_parts(before, after)


def test_a_renamed_or_relabeled_image_keeps_its_part(tmp_path):
    before = parts_at(write_image_folder(tmp_path, PIXELS, LABELS))
    first = sorted(tmp_path.rglob("*.png"))[0]
    first.rename(first.with_name("zzz.png"))
    assert parts_at(tmp_path) == before
    first.with_name("zzz.png").rename(tmp_path / "2/another.png")
    assert parts_at(tmp_path) == before


def test_the_order_of_rows_does_not_count(tmp_path):
    order = np.random.default_rng(1).permutation(120)
    before = parts_at(write_parquet(tmp_path / "a.parquet", PIXELS, LABELS))
    after = parts_at(write_parquet(tmp_path / "b.parquet", PIXELS[order], LABELS[order]))
    assert after == before
    # The same files in a folder have the same content.
    assert parts_at(write_image_folder(tmp_path / "c", PIXELS, LABELS)) == before


def samples():
    return PIXELS[:, None] / 255, LABELS


def fewer_samples():
    return PIXELS[5:, None] / 255, LABELS[5:]


def test_data_of_a_function_are_split_by_content():
    before = parts_at("test_content_split:samples")
    after = parts_at("test_content_split:fewer_samples")
    assert len(after) == 115
    assert {k: before[k] for k in after} == after


def test_parts_have_about_the_percentages():
    keys = [f"sample {n}" for n in range(4000)]
    parts = parts_by_content(keys, "60/10/20", 0)
    assert [len(part) / 4000 for part in parts] == pytest.approx([0.6, 0.1, 0.2], abs=0.03)
    assert len(set(np.concatenate(parts))) == sum(map(len, parts))


@pytest.mark.parametrize("size", range(3, 12))
@pytest.mark.parametrize("start", range(6))
def test_no_part_of_a_small_silo_is_empty(size, start):
    parts = parts_by_content([f"sample {start} {n}" for n in range(size)], "70/10/20", 0)
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(size))


def test_only_a_lent_sample_returns(logged, caplog):
    """Sample by sample a silo grows: once each part has its own, none changes its part."""
    keys = [f"sample {n}" for n in range(60)]
    settled = {}
    for size in range(3, 61):
        caplog.clear()
        parts = parts_by_content(keys[:size], "80/10/10", 0)
        now = {n: part for part, own in enumerate(parts) for n in own}
        assert {n: now[n] for n in settled} == settled
        if not logged():
            settled = now
    assert len(settled) > 50


def test_a_moved_sample_is_logged(logged):
    parts_by_content(["a", "b", "c"], "98/1/1", 0)
    assert any("is used for it" in line and "train/ and test/" in line for line in logged())


def test_too_few_samples_are_refused():
    with pytest.raises(DataError, match="2 samples, too few for the client-split 60/20/20"):
        parts_by_content(["a", "b"], "60/20/20", 4)
    with pytest.raises(DataError, match="1 groups, too few for the client-split 60/20/20"):
        parts_by_content(["P1"] * 9, "60/20/20", 4, kind="groups")


def test_copies_of_an_image_share_a_part(tmp_path):
    write_image_folder(tmp_path, PIXELS, LABELS)
    for n, image in enumerate(PIXELS):
        (tmp_path / f"{LABELS[n]}/copy{n}.png").write_bytes(png(image))
    forget_data()
    data = load_client(plan_of(), 0, str(tmp_path))
    sizes = [len(getattr(data, f"{part}_images")) for part in PARTS]
    assert sum(sizes) == 240
    assert len(part_of_each(data)) == 120
    assert all(size % 2 == 0 for size in sizes)


# ---- Groups ---------------------------------------------------------------------------


def parts_of_patients(found):
    of_patient = {}
    for patient, pixels in zip(PATIENTS, PIXELS, strict=True):
        of_patient.setdefault(patient, set()).add(found[key(pixels)])
    return of_patient


def test_a_patient_never_spans_parts(tmp_path):
    names = [f"{patient}_{n}.png" for n, patient in enumerate(PATIENTS)]
    folder = write_named(tmp_path / "named", names)
    alone = parts_of_patients(parts_at(folder))
    assert any(len(parts) > 1 for parts in alone.values())
    grouped = parts_at(folder, grouping=BY_PATIENT)
    of_patient = parts_of_patients(grouped)
    assert all(len(parts) == 1 for parts in of_patient.values())
    assert set.union(*of_patient.values()) == set(PARTS)
    # A new image of a patient follows the others.
    new = np.full((8, 8), 7, dtype=np.uint8)
    (folder / "0/P07_new.png").write_bytes(png(new))
    after = parts_at(folder, grouping=BY_PATIENT)
    assert {after[key(new)]} == of_patient["P07"]
    assert_same_parts(grouped, after)


def test_a_patient_of_a_column(tmp_path):
    table = {"label": LABELS, "img": image_rows(PIXELS), "patient": PATIENTS}
    path = tmp_path / "own.parquet"
    pyarrow.parquet.write_table(pa.table(table), path)
    found = parts_of_patients(parts_at(path, grouping=Grouping(column="patient")))
    assert all(len(parts) == 1 for parts in found.values())
    with pytest.raises(DataError, match="has no column 'person'"):
        parts_at(path, grouping=Grouping(column="person"))
    with pytest.raises(DataError, match="group-pattern reads file names"):
        parts_at(path, grouping=BY_PATIENT)


def test_groups_that_cannot_be_told_are_refused(tmp_path):
    names = [f"{patient}_{n}.png" for n, patient in enumerate(PATIENTS)]
    folder = write_named(tmp_path, [*names[:118], "Schmidt_Karl.png", "x.png"])
    with pytest.raises(DataError, match="fits 118 of 120 file names") as refused:
        parts_at(folder, grouping=BY_PATIENT)
    assert "Schmidt" not in str(refused.value)
    with pytest.raises(DataError, match="fits 119 of 120 file names"):  # x.png has no group
        parts_at(folder, grouping=Grouping(pattern=r"([^_]+_)?"))
    with pytest.raises(DataError, match="group-column reads a table"):
        parts_at(folder, grouping=Grouping(column="patient"))
    with pytest.raises(DataError, match="is not a regular expression"):
        parts_at(folder, grouping=Grouping(pattern="("))
    with pytest.raises(DataError, match="set one of"):
        parts_at(folder, grouping=Grouping(column="patient", pattern="x"))
    with pytest.raises(DataError, match="data of a function have no"):
        parts_at("test_content_split:samples", grouping=BY_PATIENT)


# ---- Folders train/ and test/ -----------------------------------------------------------


def write_parts(folder, train=90):
    names = [f"{patient}_{n}.png" for n, patient in enumerate(PATIENTS)]
    write_named(folder / "train", names[:train], PIXELS[:train], LABELS[:train])
    write_named(folder / "test", names[train:], PIXELS[train:], LABELS[train:])
    return folder


def test_folders_of_an_operator_are_respected(tmp_path):
    found = parts_at(write_parts(tmp_path), plan_of("60/20/20"))
    assert all(found[key(image)] == "test" for image in PIXELS[90:])
    within = [found[key(image)] for image in PIXELS[:90]]
    assert within.count("test") == 0
    # Of train/ 20 of 80 validate.
    assert within.count("validation") == pytest.approx(90 * 20 / 80, abs=10)
    no_validation = parts_at(tmp_path, plan_of("12/0/88"))
    assert [no_validation[key(image)] for image in PIXELS[:90]] == ["train"] * 90


def test_an_empty_test_folder_and_a_patient_in_both_are_refused(tmp_path):
    with pytest.raises(DataError, match="1 groups have images in train/ and in test/"):
        parts_at(write_parts(tmp_path / "both", train=90), grouping=BY_PATIENT)
    (write_named(tmp_path / "none/train", [f"{n}.png" for n in range(120)]).parent / "test").mkdir()
    with pytest.raises(DataError, match="test/ has no image"):
        parts_at(tmp_path / "none")
