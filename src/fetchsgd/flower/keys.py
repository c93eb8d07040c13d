"""Certificates for TLS and key pairs for nodes, as Flower 1.41 wants them.

    python -m fetchsgd.flower.keys --out keys --host server.example.org --host 192.0.2.7 --nodes 2

    ca.crt               goes to every machine: by it they know the server
    ca.key               signs further certificates; keep it off all of them
    server.crt, .key     stay on the server
    node-0, node-1 ...   a node's private key, in OpenSSH's format; goes to that node alone
    node-0.pub ...       its public key; `flwr supernode register` makes it known to the server
    client-0 ...         with --clients: a client's own key, by which it signs; stays on its machine
    directory.json       all clients' public keys; goes to every machine (identities.py)

With --clients alone nothing is made but these two. Asked again for more of anything, it adds what
is missing and leaves the rest.

Private keys are readable by their owner only, and never printed.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import sys
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fetchsgd.errors import UserError
from fetchsgd.flower.identities import read_directory, read_identity, write_directory

CURVE = ec.SECP384R1  # one of those that Flower takes for nodes
Key: TypeAlias = ec.EllipticCurvePrivateKey


def make_keys(out: Path, hosts: list[str], nodes: int, days: int = 365) -> list[Path]:
    """Everything for one server and so many nodes; what is there already is left alone."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    if not (out / "ca.crt").exists():
        made += _make_certificates(out, hosts, days)
    for number in range(nodes):
        if not (out / f"node-{number}").exists():
            made += _make_node(out / f"node-{number}")
    return made


def _make_certificates(out: Path, hosts: list[str], days: int) -> list[Path]:
    if not hosts:
        raise UserError("--host must name the server as nodes will call it: a name or an address")
    ca_key, server_key = ec.generate_private_key(CURVE()), ec.generate_private_key(CURVE())
    ca_name, server_name = _name("fetchsgd federation"), _name(hosts[0])
    ca = _certificate(ca_name, ca_key, ca_name, ca_key, days, None)
    server = _certificate(server_name, server_key, ca_name, ca_key, days, hosts)
    paths = [out / name for name in ("ca.crt", "ca.key", "server.crt", "server.key")]
    pem = PrivateFormat.PKCS8
    paths[0].write_bytes(ca.public_bytes(Encoding.PEM))
    _write_secret(paths[1], ca_key.private_bytes(Encoding.PEM, pem, NoEncryption()))
    paths[2].write_bytes(server.public_bytes(Encoding.PEM))
    _write_secret(paths[3], server_key.private_bytes(Encoding.PEM, pem, NoEncryption()))
    return paths


def _certificate(
    subject: x509.Name, key: Key, issuer: x509.Name, signer: Key, days: int, hosts: list[str] | None
) -> x509.Certificate:
    """Of the authority itself where there are no hosts."""
    is_ca = hosts is None
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=is_ca, crl_sign=is_ca, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(signed_by, critical=False)
    )
    if hosts is not None:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        server_auth = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(server_auth, critical=False)
    return builder.sign(signer, hashes.SHA384())


def _make_node(path: Path) -> list[Path]:
    key = ec.generate_private_key(CURVE())
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return [path, public]


def make_identities(out: Path, clients: int) -> list[Path]:
    """A key for each client, and the directory of all; who has one already keeps it.

    Also those in the directory whose private keys have gone to their machines.
    """
    if clients < 1:
        raise UserError(f"--clients must be at least 1, got {clients}")
    out.mkdir(parents=True, exist_ok=True)
    listed = out / "directory.json"
    before = read_directory(listed) if listed.exists() else {}
    made, directory = [], dict(before)
    for number in range(clients):
        path = out / f"client-{number}"
        if not path.exists():
            if number in before:
                continue
            pem = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
            _write_secret(path, Ed25519PrivateKey.generate().private_bytes(*pem))
            made.append(path)
        directory[number] = read_identity(path).public_key().public_bytes_raw()
        if before.get(number, directory[number]) != directory[number]:
            raise UserError(f"{path} is not the key that {listed} has of client {number}")
    if directory == before:
        return []
    write_directory(listed, directory)
    return [*made, listed]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write_secret(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fetchsgd.flower.keys", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=Path("keys"))
    parser.add_argument("--host", action="append", default=[], help="name or address; repeatable")
    parser.add_argument("--nodes", type=int, default=0, help="how many key pairs for nodes")
    parser.add_argument("--clients", type=int, help="how many clients' own keys")
    parser.add_argument("--days", type=int, default=365, help="that certificates are valid")
    given = parser.parse_args()
    try:
        made = []
        if given.host or given.nodes or given.clients is None:
            made += make_keys(given.out, given.host, given.nodes, given.days)
        if given.clients is not None:
            made += make_identities(given.out, given.clients)
    except UserError as error:
        sys.exit(f"error: {error}")
    for path in made:
        print(path)
    if not made:
        print(f"{given.out} holds all of these already")


if __name__ == "__main__":
    main()
