"""Keys of sites and coordinators: a private key and a self-signed certificate for each, made once by ``ernie wan keys``.

Nobody trusts an authority: a coordinator has the certificates of its sites, a site that of its coordinator, and a connection
counts only if the other side has the private key of exactly such a certificate.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path

from erniecore.api import ConfigError, EnvironmentFault, UsageError

#: endings of the two files
KEY, CERTIFICATE = ".key", ".pem"
_YEARS = 10
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def make_keys(name: str, directory: Path) -> tuple[Path, Path]:
    """``NAME.key`` (private, readable for its owner alone) and ``NAME.pem`` (to give to others) in ``directory``.

    Raises:
        UsageError: a name that no site can have, or keys that are there already.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if not _NAME.fullmatch(name):
        raise UsageError("names of sites have small letters, digits, - and _", where=name, fix="choose such a name")
    key_path, path = directory / (name + KEY), directory / (name + CERTIFICATE)
    if key_path.exists() or path.exists():
        raise UsageError("there are keys of this name", where=str(key_path), fix="remove them, or choose another name")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    directory.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)
    path.write_bytes(certificate.public_bytes(encoding))
    return key_path, path


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER, in hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


def pins(certificates: Iterable[Path]) -> dict[str, str]:
    """Fingerprint -> name (that of the file) of each certificate. Raises ``UsageError`` for a file that is none."""
    found = {}
    for path in certificates:
        try:
            found[fingerprint(ssl.PEM_cert_to_DER_cert(path.read_text()))] = path.stem
        except (OSError, ValueError) as error:
            raise UsageError(
                "this is no certificate", where=str(path), found=str(error), fix="`ernie wan keys NAME` makes one"
            ) from None
    return found


def shared_secrets(key: Path, peers: Iterable[Path], purpose: bytes) -> Mapping[str, bytes]:
    """Name (that of the file) -> 32 bytes that only this site and the owner of that certificate can compute: ECDH on P-256 and
    HKDF with SHA-256.

    Args:
        key: private key of this site. peers: certificates of other sites. purpose: what the secrets are for; others for each.

    Raises:
        ConfigError: a file is no key or certificate of ``ernie wan keys``.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    found, path = {}, key
    try:
        own = serialization.load_pem_private_key(key.read_bytes(), None)
        if not isinstance(own, ec.EllipticCurvePrivateKey):
            raise ValueError("no key of an elliptic curve")
        for path in peers:
            other = x509.load_pem_x509_certificate(path.read_bytes()).public_key()
            if not isinstance(other, ec.EllipticCurvePublicKey):
                raise ValueError("no key of an elliptic curve")
            derive = HKDF(hashes.SHA256(), 32, salt=None, info=b"erniecore wan\0" + purpose)
            found[path.stem] = derive.derive(own.exchange(ec.ECDH(), other))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError.at("parallel.peers", f"{path}: {error}; `ernie wan keys NAME` makes such files") from None
    return found


def context(key: Path, trusted: Iterable[Path], *, server: bool, setting: str = "parallel.key") -> ssl.SSLContext:
    """TLS 1.3 with the key at ``key`` (its certificate lies beside it), for peers with one of the ``trusted`` certificates.

    Args:
        setting: what names the key, for errors.

    Raises:
        ConfigError: a file is missing or no key.
    """
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    found.minimum_version = ssl.TLSVersion.TLSv1_3
    found.check_hostname = False  # the certificate itself is pinned, wherever its owner is
    found.verify_mode = ssl.CERT_REQUIRED
    try:
        found.load_cert_chain(key.with_suffix(CERTIFICATE), key)
        for path in trusted:
            found.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError.at(setting, f"{key}: {error}; `ernie wan keys NAME` makes key and certificate") from None
    return found


def peer_of(connection: ssl.SSLSocket, known: dict[str, str]) -> str:
    """The name of who is at the other end. Raises ``EnvironmentFault`` for a certificate that is not pinned itself."""
    certificate = connection.getpeercert(binary_form=True)
    name = known.get(fingerprint(certificate or b""))
    if name is None:
        raise EnvironmentFault(
            "the other side has a certificate that is not pinned", next="exchange certificates again"
        )
    return name
