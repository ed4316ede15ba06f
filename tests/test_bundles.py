"""App bundles on a node: the list of approved ones, and the guard before Flower's processes."""

import os
import sys
from types import SimpleNamespace

import pytest
from flwr.cli.build import build_fab_from_files
from typer.testing import CliRunner

from fedkd_flwr.bundles import forking, guard
from fedkd_flwr.bundles.approved import (
    BundleError,
    approve,
    describe,
    digest_of,
    read_approvals,
    revoke,
)
from fedkd_flwr.cli import app
from strategies.core import flower

PROJECT = """
[project]
name = "tiny"
license = {{ file = "LICENSE" }}
version = "{version}"
dependencies = ["flwr>=1.41,<2"]
[tool.flwr.app]
publisher = "somebody"
fab-format-version = 1
fab-include = ["**/*.py", "LICENSE"]
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "tiny_app:server"
clientapp = "tiny_app:app"
"""
CODE = """
from pathlib import Path
from flwr.clientapp import ClientApp
Path({trace!r}).touch()
app = ClientApp()
"""


@pytest.fixture
def trace(tmp_path):
    """A file that the app makes when it is imported."""
    return tmp_path / "imported"


@pytest.fixture
def bundle(tmp_path, trace):
    return write_bundle(tmp_path, trace, "1.0.0")


@pytest.fixture(autouse=True)
def modules_and_paths(monkeypatch):
    """Leave no module and no path of a loaded bundle to other tests."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = dict(sys.modules)
    yield
    sys.modules.pop("tiny_app", None)
    sys.modules.update(known)


def write_bundle(folder, trace, version):
    files = {
        "pyproject.toml": PROJECT.format(version=version).encode(),
        "tiny_app.py": CODE.format(trace=str(trace)).encode(),
        "LICENSE": b"none",
    }
    content, _ = build_fab_from_files(files)
    file = folder / f"{version}.fab"
    file.write_bytes(content)
    return file


def guard_of(approved, folder):
    install = flower.replaced("install_from_fab")
    loader = flower.replaced("get_load_client_app_fn")
    return guard.Guard(frozenset(approved), install, loader, folder)


def test_the_list_holds_what_was_approved_once(bundle, tmp_path):
    file = tmp_path / "etc" / "approved"
    assert read_approvals(file) == []
    first = approve(bundle, file)
    assert approve(bundle, file) == first
    assert read_approvals(file) == [first]
    assert first.digest == digest_of(bundle.read_bytes())
    assert first.remark.startswith("somebody/tiny 1.0.0, 4 files, approved 20")


def test_one_bundle_is_removed_and_the_others_stay(bundle, tmp_path, trace):
    file = tmp_path / "approved"
    other = approve(write_bundle(tmp_path, trace, "2.0.0"), file)
    mine = approve(bundle, file)
    assert revoke(mine.digest[:12], file) == mine
    assert read_approvals(file) == [other]
    with pytest.raises(BundleError, match="has 0 digests that begin with"):
        revoke(mine.digest, file)
    with pytest.raises(BundleError, match="has 0 digests"):
        revoke("", file)


def test_a_list_that_was_edited_by_hand_keeps_its_other_lines(bundle, tmp_path):
    file, twice = tmp_path / "approved", "1" * 64
    # An editor may leave the last line without its end.
    file.write_text(f"# ours\n\n{twice} old\n# the same again\n{twice} old, approved twice")
    mine = approve(bundle, file)
    assert [approval.digest for approval in read_approvals(file)] == [twice, twice, mine.digest]
    assert revoke("1" * 8, file).remark == "old"
    kept = f"{mine.digest} {mine.remark}"
    assert file.read_text() == f"# ours\n\n# the same again\n{kept}\n"


def test_the_process_of_another_user_can_read_the_list(bundle, tmp_path):
    before = os.umask(0o077)
    try:
        approve(bundle, tmp_path / "approved")
    finally:
        os.umask(before)
    assert oct((tmp_path / "approved").stat().st_mode & 0o777) == "0o644"


def test_a_name_adds_no_line_to_the_list(tmp_path, bundle, monkeypatch):
    evil = f"x\n{'0' * 64} y\x1b[2J"
    monkeypatch.setitem(vars(flower), "get_fab_metadata", lambda _: (evil, "1"))
    file = tmp_path / "approved"
    approve(bundle, file)
    assert [approval.digest for approval in read_approvals(file)] == [
        digest_of(bundle.read_bytes())
    ]
    assert "\x1b" not in file.read_text()


def test_what_is_no_bundle_or_no_digest_is_named(tmp_path):
    (tmp_path / "x.fab").write_bytes(b"nothing")
    with pytest.raises(BundleError, match=r"x\.fab is no app bundle that can be read"):
        describe(tmp_path / "x.fab")
    (tmp_path / "approved").write_text("# mine\n\nABC\n")
    with pytest.raises(BundleError, match="line 3: 'ABC' is no SHA-256 digest"):
        read_approvals(tmp_path / "approved")


def test_a_bundle_that_is_not_approved_is_neither_unpacked_nor_loaded(bundle, tmp_path, trace):
    content, home = bundle.read_bytes(), tmp_path / "home"
    checking = guard_of(["0" * 64], home)
    with pytest.raises(guard.BundleNotApprovedError, match=digest_of(content)):
        checking.checked_install(content, skip_prompt=True)
    load = checking.checked_loader(default_app_ref="", app_path=None, multi_app=True)
    with pytest.raises(guard.BundleNotApprovedError):
        load("somebody/tiny", "1.0.0", digest_of(content))
    assert not home.exists()
    assert not trace.exists()


def test_an_approved_bundle_is_loaded_from_a_folder_of_its_own(bundle, tmp_path, trace):
    content = bundle.read_bytes()
    digest = digest_of(content)
    checking = guard_of([digest], tmp_path / "home")
    place = checking.checked_install(content, skip_prompt=True)
    assert place.is_relative_to(tmp_path / "home" / digest)
    loaded = checking.checked_loader()("somebody/tiny", "1.0.0", digest)
    assert type(loaded).__name__ == "ClientApp"
    assert trace.exists()
    assert sys.modules["tiny_app"].__file__ == str(place / "tiny_app.py")


def test_a_bundle_is_unpacked_as_a_whole_or_not_at_all(bundle, tmp_path):
    content = bundle.read_bytes()
    digest = digest_of(content)
    checking, other = (guard_of([digest], tmp_path / "home") for _ in range(2))
    unpack = checking.install

    def is_cut(fab_file, install_dir, **options):
        (unpack(fab_file, install_dir, **options) / "LICENSE").unlink()
        raise KeyboardInterrupt

    checking.install = is_cut
    with pytest.raises(KeyboardInterrupt):
        checking.checked_install(content)
    assert list((tmp_path / "home").iterdir()) == []

    def is_second(fab_file, **options):
        other.checked_install(fab_file)
        return unpack(fab_file, **options)

    checking.install = is_second
    place = checking.checked_install(content)
    assert other.installed == checking.installed == {digest: place}
    assert (place / "LICENSE").exists()
    assert list((tmp_path / "home").iterdir()) == [tmp_path / "home" / digest]


@pytest.mark.parametrize(
    "name", ["tiny_app.py", "numpy.py", "LICENSE", "__pycache__/tiny_app.cpython-311.pyc"]
)
def test_an_edited_bundle_is_not_loaded(name, bundle, tmp_path, trace):
    """An edit in the folder of an approved bundle once ran with the next message."""
    content = bundle.read_bytes()
    home = tmp_path / "home"
    place = guard_of([digest_of(content)], home).checked_install(content)
    (place / "__pycache__").mkdir()
    assert guard_of([digest_of(content)], home).checked_install(content) == place
    (place / name).write_text("print('edited')")
    with pytest.raises(guard.BundleChangedError, match=name) as refused:
        guard_of([digest_of(content)], home).checked_install(content)
    assert not trace.exists() and str(home) not in str(refused.value)


def test_a_bundle_that_cannot_be_unpacked_tells_no_path(bundle, tmp_path):
    content, home = bundle.read_bytes(), tmp_path / "home"
    home.write_text("no folder")
    with pytest.raises(guard.BundleNotUnpackedError, match=r"cannot unpack the bundle$"):
        guard_of([digest_of(content)], home).checked_install(content)


def test_a_revoked_bundle_is_deleted(bundle, tmp_path):
    content = bundle.read_bytes()
    guard_of([digest_of(content)], tmp_path).checked_install(content)
    kept = tmp_path / "of-another-process"
    kept.mkdir()
    guard_of(["0" * 64], tmp_path).remove_revoked()
    assert not (tmp_path / digest_of(content)).exists() and kept.exists()


def test_each_start_begins_with_an_empty_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(flower, "get_flwr_home", lambda: tmp_path)
    first, other = forking.new_folder(["--insecure"]), forking.new_folder(["--port", "1"])
    (first / "left.py").touch()
    assert forking.new_folder(["--insecure"]) == first != other
    assert not any(first.iterdir()) and first.stat().st_mode & 0o077 == 0


def test_the_modules_of_the_bundle_replace_those_of_the_installation():
    modules = {"fedkd_flwr", "fedkd_flwr.bundles.guard", "strategies.core.flower"}
    assert modules <= sys.modules.keys()
    guard.forget_modules()
    assert not modules & sys.modules.keys()
    assert "pytest" in sys.modules


def test_the_superexec_asks_for_client_apps_alone(monkeypatch, tmp_path):
    asked = []
    types = flower.TaskType
    monkeypatch.setattr(flower.AutoExecPlugin, "supported_task_types", frozenset(types))
    monkeypatch.setattr(sys, "argv", ["fedkd"])
    monkeypatch.setenv(guard.FOLDER_VARIABLE, "")  # restored at the end, as the next one
    monkeypatch.setattr(flower, "get_flwr_home", lambda: tmp_path)
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    del os.environ["FLWR_TELEMETRY_ENABLED"]
    commands = dict(flower.TASK_TYPE_TO_COMMAND)
    monkeypatch.setitem(vars(flower), "TASK_TYPE_TO_COMMAND", commands)
    monkeypatch.setitem(vars(flower), "flower_superexec", lambda: asked.extend(sys.argv))
    forking.run_superexec(["--insecure"], fresh_processes=True)
    assert asked == ["flower-superexec", "--insecure"]
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert commands == {types.CLIENT_APP: forking.CLIENT_APP_PROGRAM}
    plugin = flower.AutoExecPlugin("127.0.0.1:1", True, None, executor=SimpleNamespace())
    assert plugin.supported_task_types == {types.CLIENT_APP}


def test_the_client_app_process_runs_with_both_checks(monkeypatch, tmp_path, bundle):
    file = tmp_path / "approved"
    approve(bundle, file)
    monkeypatch.setenv("FEDKD_APPROVED_BUNDLES", str(file))
    put, ran = {}, []
    monkeypatch.setattr(flower, "replace", put.__setitem__)
    monkeypatch.setitem(vars(flower), "flwr_clientapp", lambda: ran.append(set(put)))
    guard.run_client_app()
    assert ran == [{"install_from_fab", "get_load_client_app_fn"}]
    assert put["install_from_fab"].__self__.approved == {digest_of(bundle.read_bytes())}


def test_the_commands_approve_list_and_revoke(bundle, tmp_path):
    options = ["--list", str(tmp_path / "approved")]
    digest = digest_of(bundle.read_bytes())

    def said(*arguments):
        result = CliRunner().invoke(app, ["bundles", *map(str, arguments)])
        return result.exit_code, result.output

    assert said("show", bundle) == (0, f"{digest}  somebody/tiny 1.0.0, 4 files\n")
    assert said("approve", bundle, *options)[0] == 0
    assert said("list", *options)[1].startswith(digest)
    assert said("revoke", digest[:8], *options)[1].startswith(f"removed {digest}")
    assert "approves no bundle" in said("list", *options)[1]
    assert said("revoke", digest, *options)[0] == 1
