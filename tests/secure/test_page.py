"""docs/secure.md against the library, and against a reader written from the page.

PYTHONPATH=tests python tests/secure/test_page.py     writes the page's messages anew,
                                               and the tables of docs/privacy.md
"""

import hashlib
import hmac
import json
import re
import struct
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fetchsgd.secure import Client, Phase, Secret, Server, Terms, parameters, planes
from fetchsgd.secure.frames import Kind, read_header
from fetchsgd.sums import Modular
from fetchsgd.sums.layout import Layout

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs" / "secure.md"
PRIVACY = ROOT / "docs" / "privacy.md"
COHORT = (1, 4, 6, 9)


def digest(text):
    return hashlib.sha256(text).digest()


def cells_of(number):
    return np.array([1, number, 15], dtype=np.uint32)


def round_of_the_page():
    terms = Terms(b"a run of 16 byte", 7, 0, COHORT, 3, 4, 1, 0, 3, 40, 20)
    identities = {
        n: Ed25519PrivateKey.from_private_bytes(digest(b"identity %d" % n)) for n in COHORT
    }
    directory = {n: key.public_key().public_bytes_raw() for n, key in identities.items()}
    clients = {n: Client(n, key, directory) for n, key in identities.items()}
    server, states, found = Server(terms, directory), {}, []
    messages = server.invitations()
    while (phase := server.phase) < Phase.DONE:
        for number, message in messages.items():
            if number == 6 and phase is Phase.MASK:
                continue
            client = clients[number]
            if phase is Phase.ADVERTISE:
                state, answer = client.join(message, Secret(digest(b"seed %d" % number)))
            else:
                more = ()
                if phase is Phase.MASK:
                    more = (cells_of(number), np.array([100 * number], dtype=np.uint64))
                answering = getattr(client, phase.name.lower())
                state, answer = answering(states[number], message, *more)
            states[number] = state
            server.receive(answer)
            if number == 4:
                found += [message, answer]
        messages = server.close()
    result = server.result
    return found, {
        "cells": result.cells.tolist(),
        "totals": result.totals.tolist(),
        "clients": list(result.clients),
    }


def written():
    """The last part of the page."""
    messages, result = round_of_the_page()
    parts = []
    for message in messages:
        lines = [message.hex()[at : at + 96] for at in range(0, 2 * len(message), 96)]
        name = read_header(message)[0]
        parts.append(f"**{name}**\n\n" + "".join(f"    {line}\n" for line in lines))
    return "\n".join(parts) + f"\n**sum**\n\n```json\n{json.dumps(result)}\n```\n"


PAGE = PATH.read_text()
VECTORS = {
    name: bytes.fromhex(hexadecimal)
    for name, hexadecimal in re.findall(r"^\*\*(\w+)\*\*\n\n((?:    [0-9a-f]+\n)+)", PAGE, re.M)
}


def test_the_page_has_the_messages_that_are_sent():
    assert list(VECTORS) == [str(kind) for kind in Kind if kind is not Kind.PLEDGE]
    assert PAGE.endswith(written())


# What follows knows the page, and nothing of the package.

T = digest(b"fetchsgd secure terms\x01" + VECTORS["invitation"][28:]) if VECTORS else b""


def derive(secret, purpose, context):
    key = hmac.digest(bytes(32), secret, "sha256")
    info = b"fetchsgd secure " + purpose + b"\0" + T + context
    return hmac.digest(key, info + b"\x01", "sha256")


def private(number, purpose):
    return derive(digest(b"seed %d" % number), purpose, struct.pack("<I", number))


def stream(key):
    """A mask: one total, and three cells of four bits in four words."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    total, *words = struct.unpack("<5Q", cipher.update(bytes(40)))
    return total, words


def cells_in(words):
    return [sum((words[bit] >> cell & 1) << bit for bit in range(4)) for cell in range(64)]


def test_the_masked_vector_is_what_the_page_says():
    body = VECTORS["masked"][28:-64]
    total, *words = struct.unpack("<5Q", body[64:])
    cells = cells_in(words)
    own = X25519PrivateKey.from_private_bytes(private(4, b"mask key"))
    assert own.public_key().public_bytes_raw() == VECTORS["advert"][28:60]
    masks = [(derive(private(4, b"self mask seed"), b"self mask", struct.pack("<I", 4)), 1)]
    for other, sign in ((1, -1), (6, 1), (9, 1)):
        public = X25519PrivateKey.from_private_bytes(private(other, b"mask key")).public_key()
        pair = struct.pack("<II", *sorted((4, other)))
        masks.append((derive(own.exchange(public), b"pair mask", pair), sign))
    for key, sign in masks:
        mask_total, mask_words = stream(key)
        total -= sign * mask_total
        cells = [(x - sign * y) % 16 for x, y in zip(cells, cells_in(mask_words), strict=True)]
    assert total % 2**64 == 400
    assert cells == [1, 4, 15] + [0] * 61


def test_the_signatures_are_what_the_page_says():
    key = Ed25519PrivateKey.from_private_bytes(digest(b"identity 4"))
    for name in ("advert", "shares", "masked", "agreement", "reveal"):
        message = VECTORS[name]
        text = b"fetchsgd secure signature" + T + digest(message[:-64])
        assert key.sign(text) == message[-64:]
    roster = VECTORS["shares"][28:60]
    everyone = VECTORS["delivery"][28:29]
    assert everyone == b"\x0f"
    pledge = b"FSGA\x01\x0b\0\0" + struct.pack("<I", 4) + T[:16]
    pledge += digest(b"fetchsgd secure shared" + roster + everyone)
    text = b"fetchsgd secure signature" + T + digest(pledge)
    assert key.sign(text) == VECTORS["masked"][28:92]


def test_the_sum_is_that_of_the_survivors():
    found = json.loads(PAGE.split("```json\n")[1].split("```")[0])
    assert found == {"cells": [3, 14, 13], "totals": [1400], "clients": [1, 4, 9]}


def parameter_table():
    lines = ["| clients | colluding | dropping | security bits | degree | threshold | group |"]
    lines.append("|" + "---|" * 7)
    for clients in (10, 100, 1000, 10_000):
        for colluding, dropping, bits in (
            (0.05, 0.05, 40), (0.1, 0.1, 40), (0.1, 0.1, 80), (0.2, 0.1, 40)
        ):  # fmt: skip
            found = parameters(clients, colluding, dropping, bits)
            least, step = found.least, max(1, (clients - found.least) // 20)
            group = min(
                parameters(clients, colluding, dropping, bits, advertised=here).group
                for here in (*range(least, clients, step), clients)
            )
            values = (f"{clients:,}", colluding, dropping, bits, found.degree, found.threshold)
            lines.append("| " + " | ".join(str(value) for value in (*values, group)) + " |")
    return "\n".join(lines)


def cost_table():
    page = json.loads((ROOT / "benchmarks/results/secure-cpu.json").read_text())
    lines = ["| clients | cells | degree | a client | the server | up | of it the vector | down |"]
    lines.append("|" + "---|" * 8)
    for row in page["rounds"]:
        phases = row["phases"].values()
        up, down = (sum(phase[way] for phase in phases) / row["clients"] for way in ("up", "down"))
        vector = row["cells"] * row["bits"] / 8 * (1 - row["dropouts"] / row["clients"])
        values = (
            f"{row['clients']:,}", f"{row['cells']:,}", str(row["degree"]),
            f"{1e3 * row['client_processor_s']:.0f} ms", f"{row['server_processor_s']:.2f} s",
            f"{up / 1e3:,.1f} kB", f"{100 * vector / up:.1f} %", f"{down / 1e3:,.1f} kB",
        )  # fmt: skip
        lines.append("| " + " | ".join(values) + " |")
    told = (f"{row['bits']} bits {1e3 * row['processor_s']:.0f} ms" for row in page["masks"])
    loads = [row["load"] for row in page["masks"] + page["rounds"]]
    slower = [row["server_s"] / row["server_processor_s"] for row in page["rounds"]]
    cores, memory = page["about"]["hardware"], max(row["most_memory_mb"] for row in page["rounds"])
    mask = page["masks"][0]
    lines.append("")
    lines.append(
        f"Masking {mask['cells']:,} cells with {mask['neighbours']} neighbours, from the delivery"
        f" to the signed message: {', '.join(told)}. Times are of the processor ({cores}), as"
        f" others kept the machine busy, at a load of {min(loads):.0f} to {max(loads):.0f}: by the"
        f" clock the server took {min(slower):.1f} to {max(slower):.1f} times as long. Memory:"
        f" {memory:,} MB at most, for clients and server together."
    )
    return "\n".join(lines)


def phase_table():
    """The largest cohort: a client in milliseconds and the server in seconds, of the processor."""
    page = json.loads((ROOT / "benchmarks/results/secure-cpu.json").read_text())
    most = max(row["clients"] for row in page["rounds"])
    rows = [row for row in page["rounds"] if row["clients"] == most]
    told = " | ".join(f"{row['cells']:,} cells: a client | the server" for row in rows)
    lines = [f"| {most:,} clients | {told} | bytes up, without cells | bytes down |"]
    lines.append("|" + "---|" * (3 + 2 * len(rows)))
    for name, phase in rows[0]["phases"].items():
        times = " | ".join(
            f"{1e3 * row['phases'][name]['client_processor_s']:.1f} ms | "
            f"{row['phases'][name]['server_processor_s']:.2f} s"
            for row in rows
        )
        up = phase["up"]
        if name == "mask":
            masked = most - rows[0]["dropouts"]
            up -= masked * planes.num_bytes(rows[0]["cells"], rows[0]["bits"])
        lines.append(f"| {name} | {times} | {up / most:,.0f} | {phase['down'] / most:,.0f} |")
    return "\n".join(lines)


def floor_table():
    """The cohorts and cells of the private rows, as they would be behind masks."""
    names = (
        "task",
        "clients a round",
        "floor up",
        "down",
        "all cells up",
        "half of them up",
        "part",
    )
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * 7]
    for task, clients, count in (("FEMNIST", 100, 16_000), ("CIFAR10", 1000, 8000)):
        sums = Modular(sum_bits=12)
        sizes = [Layout.of(here).cells for here in (count, count // 2)]
        up = [sums.protocol(clients, cells).up / clients for cells in sizes]
        down = sums.protocol(clients, sizes[0]).down / clients
        floor = up[0] - planes.num_bytes(sizes[0], 12)
        assert floor == up[1] - planes.num_bytes(sizes[1], 12)
        told = (f"{value / 1e3:.1f} kB" for value in (floor, down, *up))
        lines.append(f"| {task} | {clients:,} | {' | '.join(told)} | {100 * up[1] / up[0]:.0f} % |")
    return "\n".join(lines)


TABLES = {
    "parameters": parameter_table, "costs": cost_table, "phases": phase_table, "floor": floor_table,
}  # fmt: skip


def renewed(page):
    for name, table in TABLES.items():
        before, rest = page.split(f"<!-- {name} -->\n")
        page = before + f"<!-- {name} -->\n{table()}\n" + rest[rest.index("<!-- end -->") :]
    return page


def test_the_tables_of_privacy_are_computed_and_measured():
    page = PRIVACY.read_text()
    assert renewed(page) == page


if __name__ == "__main__":
    PRIVACY.write_text(renewed(PRIVACY.read_text()))
    PATH.write_text(PAGE.split("**invitation**")[0] + written())
