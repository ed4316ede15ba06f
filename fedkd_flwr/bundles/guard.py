"""Flower's ClientApp process, restricted to approved bundles.

A SuperNode with ``--isolation process`` executes nothing itself: a SuperExec beside it asks for
tasks, and starts one ``flwr-clientapp`` process per task (`fedkd_flwr.bundles.forking`).
`run_client_app` is Flower's process, but it compares the digest of the bundle with the list of
approved ones before it unpacks it, and loads nothing that was not compared. An approved bundle is
unpacked into a folder that is named by its whole digest, below one that each start of the SuperExec
makes anew, and its files are compared again with each message.

It replaces names inside Flower (`strategies.core.flower.REPLACED`). If Flower moves one of them,
the process ends with an error; it never goes on without the check.
"""

import io
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

from fedkd_flwr.bundles.approved import DIGEST_LENGTH, approved_file, digest_of, read_approvals
from strategies.core import flower

OWN_PACKAGES = ("fedkd_flwr", "strategies")
"""Packages of this project, which a bundle brings along as well."""

FOLDER_VARIABLE = "FEDKD_UNPACKED_BUNDLES"
"""Environment variable with the folder of unpacked bundles of a node."""

Loader = Callable[[str, str, str], Any]
"""Loads a ClientApp, given the bundle's name, version and digest."""


class BundleNotApprovedError(PermissionError):
    """A bundle that this node's operator has not approved."""

    def __init__(self, digest: str) -> None:
        super().__init__(
            f"this node does not execute the bundle {digest}: its operator has not approved it "
            "(fedkd bundles approve FILE.fab)"
        )


class BundleNotUnpackedError(RuntimeError):
    """A bundle that cannot be written here; the server learns no path of the node."""


class BundleChangedError(PermissionError):
    """An unpacked bundle whose files are not those of the approved one."""

    def __init__(self, file: PurePath) -> None:
        super().__init__(
            f"this node does not execute a bundle that was changed after it was unpacked: {file}; "
            "restart the node, which unpacks it again"
        )


@dataclass
class Guard:
    """Checks a bundle before it is unpacked, and loads the checked one alone.

    `install` and `loader` are Flower's ``install_from_fab`` and ``get_load_client_app_fn``. Bundles
    are unpacked below `folder`, each in a folder named by its digest.
    """

    approved: frozenset[str]
    install: Callable[..., Path]
    loader: Callable[..., Loader]
    folder: Path
    installed: dict[str, Path] = field(default_factory=dict)

    def checked_install(self, fab_file: bytes, **_options: Any) -> Path:
        """Unpack a bundle if it is approved, and compare it; replaces ``install_from_fab``."""
        digest = digest_of(fab_file)
        if digest not in self.approved:
            raise BundleNotApprovedError(digest)
        place = self.folder / digest
        if not place.exists():
            try:
                self._unpack(fab_file, place)
            except OSError as error:
                raise BundleNotUnpackedError("this node cannot unpack the bundle") from error
        (self.installed[digest],) = place.glob("*/*")  # apps/PUBLISHER.NAME.VERSION.DIGEST
        require_unchanged(self.installed[digest], fab_file)
        return self.installed[digest]

    def remove_revoked(self) -> None:
        """Delete unpacked bundles that are not approved any more."""
        for place in self.folder.glob("?" * DIGEST_LENGTH):
            if place.name not in self.approved:
                shutil.rmtree(place, ignore_errors=True)

    def _unpack(self, fab_file: bytes, place: Path) -> None:
        """Unpack a bundle as a whole, since processes of two messages may do so at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.folder) as folder:
            unpacked = Path(folder) / "unpacked"
            self.install(fab_file, install_dir=unpacked, skip_prompt=True)
            try:
                unpacked.rename(place)
            except OSError:
                if not place.exists():  # else another process was first
                    raise

    def checked_loader(self, **_options: Any) -> Loader:
        """Return a loader of checked bundles; replaces ``get_load_client_app_fn``."""

        def load(name: str, version: str, digest: str) -> Any:
            if digest not in self.installed:
                raise BundleNotApprovedError(digest)
            forget_modules()
            place = str(self.installed[digest])
            load_from = self.loader(default_app_ref="", app_path=place, multi_app=True)
            return load_from(name, version, digest)

        return load


def require_unchanged(place: Path, fab_file: bytes) -> None:
    """Refuse an unpacked bundle that has other files than the bundle, or further ones.

    Raises `BundleChangedError` with the first such file.
    """
    with zipfile.ZipFile(io.BytesIO(fab_file)) as archive:
        due = {place / name: name for name in archive.namelist() if not name.startswith(".info/")}
        for file, name in due.items():
            if not name.endswith("/") and (
                not file.is_file() or file.is_symlink() or file.read_bytes() != archive.read(name)
            ):
                raise BundleChangedError(file.relative_to(place))
    for file in place.rglob("*"):
        if not file.is_dir() and file not in due:
            raise BundleChangedError(file.relative_to(place))


def forget_modules() -> None:
    """Forget loaded modules of this project, so that the bundle's own are loaded."""
    for name in list(sys.modules):
        if name.partition(".")[0] in OWN_PACKAGES:
            del sys.modules[name]


def run_client_app() -> None:
    """Run Flower's ``flwr-clientapp``; a bundle that is not approved is answered by an error."""
    sys.dont_write_bytecode = True  # byte code beside an unpacked file would run in its place
    approved = frozenset(approval.digest for approval in read_approvals(approved_file()))
    install, loader = flower.replaced("install_from_fab"), flower.replaced("get_load_client_app_fn")
    folder = Path(os.environ.get(FOLDER_VARIABLE) or flower.get_flwr_home() / "approved")
    guard = Guard(approved, install, loader, folder)
    guard.remove_revoked()
    flower.replace("install_from_fab", guard.checked_install)
    flower.replace("get_load_client_app_fn", guard.checked_loader)
    flower.flwr_clientapp()
