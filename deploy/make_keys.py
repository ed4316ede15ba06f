"""Make the keys of a federation over TLS: a CA, the SuperLink's certificate, SuperNodes' keys.

    python deploy/make_keys.py keys --host superlink.example.org --node hospital-a --node hospital-b

writes into ``keys/``

=======================  ==========================================================
``ca.crt``, ``ca.key``   the certificate authority; every machine gets ``ca.crt``
``server.crt``, ``.key`` the SuperLink's certificate
``NODE``, ``NODE.pub``   a SuperNode's key, as ``flower-supernode`` reads it, and the
                         public half that is registered with ``flwr supernode register``
=======================  ==========================================================

Existing files are kept, so call it again to add nodes; it takes other users' rights away from
secret ones. The certificate always names ``localhost`` and ``127.0.0.1``, since the SuperLink's own
ServerApp connects there.
"""

import argparse
import ipaddress
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""What a node may be called: its key is a file of that name."""

OTHER_FILES = (".key", ".crt", ".pub", ".json")
"""Endings of files that are no node's key."""


def node_name(text: str) -> str:
    """Return the name of a node; refuse one that is a path, or the name of another file.

    Raises
    ------
    ArgumentTypeError
        With what is allowed.
    """
    if not NODE_NAME.fullmatch(text) or text.endswith(OTHER_FILES):
        raise argparse.ArgumentTypeError(
            f"a node cannot be called {text!r}: use letters, digits, '-', '_' and '.', "
            f"and none of the endings {', '.join(OTHER_FILES)}"
        )
    return text


def tighten(folder: Path) -> None:
    """Let the owner alone read a folder and the secret files in it."""
    folder.chmod(0o700)
    for file in folder.iterdir():
        if file.suffix == ".key" or file.with_name(f"{file.name}.pub").exists():
            file.chmod(0o600)


def write_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file completely or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_key(
    path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> None:
    """Write a private key in PEM, unencrypted, that only its owner can read."""
    pem = serialization.Encoding.PEM
    write_file(path, key.private_bytes(pem, form, serialization.NoEncryption()), 0o600)


def key_at(path: Path, form: serialization.PrivateFormat) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file, which is made if missing.

    Raises
    ------
    SystemExit
        If the file holds no such key.
    """
    if not path.exists():
        write_key(path, ec.generate_private_key(ec.SECP384R1()), form)
    is_ssh = form == serialization.PrivateFormat.OpenSSH
    load = serialization.load_ssh_private_key if is_ssh else serialization.load_pem_private_key
    try:
        key = load(path.read_bytes(), None)
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SystemExit(f"{path} holds no private key; remove it, and call this again")
    return key


def name_of(common_name: str) -> x509.Name:
    """Return a certificate's name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    """Start a certificate for a key."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # An hour's tolerance for slow clocks.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def usage(**allowed: bool) -> x509.KeyUsage:
    """Return a key usage with nothing allowed but what is named."""
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment")
    names += ("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def make_authority(folder: Path, days: int) -> None:
    """Make the certificate authority, of the key that is there if any."""
    key = key_at(folder / "ca.key", serialization.PrivateFormat.PKCS8)
    name = name_of("fedkd federation CA")
    certificate = (
        builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    write_file(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))


def make_server(folder: Path, hosts: list[str], days: int) -> None:
    """Make the SuperLink's certificate, signed by the authority."""
    authority_key = key_at(folder / "ca.key", serialization.PrivateFormat.PKCS8)
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = ec.generate_private_key(ec.SECP384R1())
    names = [alternative_name(host) for host in dict.fromkeys((*hosts, *LOCAL_HOSTS))]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        builder(name_of("fedkd SuperLink"), authority.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    # While key and certificate may differ, there is no certificate, and the next call makes both.
    (folder / "server.crt").unlink(missing_ok=True)
    write_key(folder / "server.key", key, serialization.PrivateFormat.PKCS8)
    write_file(folder / "server.crt", certificate.public_bytes(serialization.Encoding.PEM))


def alternative_name(host: str) -> x509.GeneralName:
    """Return a host as a certificate names it: an address or a domain name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_node(folder: Path, node: str) -> None:
    """Make a SuperNode's key pair in OpenSSH's format, which is what Flower reads.

    If the private half is there, the public one is made of it.
    """
    key = key_at(folder / node, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    write_file(folder / f"{node}.pub", public + b" " + node.encode() + b"\n")


def main() -> None:
    """Read the command line and make what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", action="append", default=[], help="name or address; repeatable")
    parser.add_argument(
        "--node", action="append", default=[], type=node_name, help="a SuperNode; repeatable"
    )
    parser.add_argument("--days", type=int, default=365, help="certificates are valid that long")
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not all((folder / name).exists() for name in ("ca.key", "ca.crt")):
        make_authority(folder, 10 * arguments.days)
    # A call that names hosts renews the certificate; one that only adds nodes leaves it.
    whole = all((folder / name).exists() for name in ("server.key", "server.crt"))
    if arguments.host or not whole:
        make_server(folder, arguments.host, arguments.days)
    for node in arguments.node:
        if not all((folder / name).exists() for name in (node, f"{node}.pub")):
            make_node(folder, node)
    tighten(folder)
    print(f"{folder.resolve()}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


if __name__ == "__main__":
    main()
