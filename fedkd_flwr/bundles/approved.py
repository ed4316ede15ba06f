"""The lists of app bundles and of run configs that a node's operator has approved.

Text files with one approval per line: a SHA-256 digest, then a remark and the day of the approval.
Only the digest decides. The files belong to the operator; the app's user reads them.
"""

import hashlib
import os
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedkd_flwr.files import replacing

FILE_VARIABLE = "FEDKD_APPROVED_BUNDLES"
"""Environment variable with the path of the list."""

DEFAULT_FILE = Path("/etc/fedkd/approved-bundles")
"""Where the list is without `FILE_VARIABLE`."""

DIGEST_LENGTH = 64
"""Hexadecimal digits of SHA-256."""


class BundleError(ValueError):
    """A bundle that cannot be read, or a digest that is not in the list."""


@dataclass(frozen=True)
class Approval:
    """One line of the list.

    The digest is SHA-256, 64 hexadecimal digits; the remark is name, version and day of approval.
    """

    digest: str
    remark: str


def approved_file() -> Path:
    """Return the path of this node's list."""
    return Path(os.environ.get(FILE_VARIABLE) or DEFAULT_FILE).expanduser()


def digest_of(content: bytes) -> str:
    """Return the SHA-256 digest of a bundle, which Flower calls its hash."""
    return hashlib.sha256(content).hexdigest()


def read_approvals(file: Path) -> list[Approval]:
    """Return the lines of a list; none if the file does not exist.

    Raises `BundleError` if a line does not begin with a digest.
    """
    approvals = []
    for number, line in enumerate(_lines(file), start=1):
        digest, _, remark = line.partition(" ")
        if not digest or digest.startswith("#"):
            continue
        if len(digest) != DIGEST_LENGTH or set(digest) - set("0123456789abcdef"):
            raise BundleError(
                f"{file}, line {number}: {digest!r} is no SHA-256 digest, "
                f"which has {DIGEST_LENGTH} digits 0-9 and a-f"
            )
        approvals.append(Approval(digest, remark.strip()))
    return approvals


def describe(bundle: Path) -> Approval:
    """Return a bundle's digest, and its name, version and number of files.

    Nothing in the bundle is executed. Raises `BundleError` if it cannot be read.
    """
    from strategies.core.flower import get_fab_metadata

    try:
        content = bundle.read_bytes()
        with zipfile.ZipFile(bundle) as archive:
            files = len(archive.namelist())
        name, version = get_fab_metadata(content)
    # A damaged archive, a missing file in it and an invalid config are unrelated kinds of error.
    except Exception as error:
        raise BundleError(f"{bundle} is no app bundle that can be read ({error})") from error
    # Line breaks in a name would add lines to the list, and escapes would reach the terminal.
    named = "".join(filter(str.isprintable, f"{name} {version}"))
    return Approval(digest_of(content), f"{named}, {files} files")


def approve(bundle: Path, file: Path) -> Approval:
    """Add a bundle to a list.

    Raises `BundleError` if the bundle or the list cannot be read; `OSError` if the list cannot be
    written.
    """
    return add(describe(bundle), file)


def add(found: Approval, file: Path) -> Approval:
    """Add an approval to a list, with the day; one with its digest that is in it stays as it is.

    Raises `BundleError` if the list cannot be read; `OSError` if it cannot be written.
    """
    for known in read_approvals(file):
        if known.digest == found.digest:
            return known
    today = datetime.now(UTC).date().isoformat()
    approval = Approval(found.digest, f"{found.remark}, approved {today}")
    file.parent.mkdir(parents=True, exist_ok=True)
    _write(file, [*_lines(file), f"{approval.digest} {approval.remark}"])
    return approval


def revoke(digest: str, file: Path) -> Approval:
    """Remove an approval from a list, with all its lines. Other lines stay as they are.

    The digest may be its first digits. Return the first line that was removed. Raises `BundleError`
    if none or several digests begin so; `OSError` if the list cannot be written.
    """
    found = [known for known in read_approvals(file) if digest and known.digest.startswith(digest)]
    digests = {known.digest for known in found}
    if len(digests) != 1:
        raise BundleError(
            f"{file} has {len(digests)} digests that begin with {digest!r}; "
            "fedkd bundles list and fedkd runs list show all"
        )
    _write(file, [line for line in _lines(file) if line.partition(" ")[0] not in digests])
    return found[0]


def _lines(file: Path) -> list[str]:
    """Return all lines of a list, comments included."""
    return file.read_text().splitlines() if file.exists() else []


def _write(file: Path, lines: Iterable[str]) -> None:
    """Write a list anew, completely or not at all."""
    with replacing(file) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines))
        # Digests are no secret, and another user's process has to read them, whatever root's
        # umask is.
        temporary.chmod(0o644)
