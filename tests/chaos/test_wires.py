"""The bad links of the network campaign do what they say, and TCP copes as far as it can."""

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from chaos import packets, wires
from chaos.wires import HOST, Weather, Wires

SEND = """
import socket as s
with s.create_connection(('{}', {}), 30) as c:
    c.sendall(bytes(range(256)) * 800)
    c.shutdown(s.SHUT_WR)
    c.recv(1)
"""
WHOLE = bytes(range(256)) * 800


@pytest.fixture
def possible():
    try:
        wires.require()
    except wires.network.LinksError as error:
        pytest.skip(str(error))


def sent(links, weather, during=lambda: None):
    """What arrives of 200 kB from the far end of a link; and whether it had gone well there."""
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(60)
        code = SEND.format(HOST, server.getsockname()[1])
        command = [*links.inside(0), sys.executable, "-c", code]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as sender:
            found, (connection, _) = b"", server.accept()
            links.weather[0] = weather
            during()
            connection.settimeout(60)
            with connection, suppress(ConnectionResetError):
                while part := connection.recv(1 << 16):
                    found += part
        return found, sender.returncode == 0


@pytest.mark.usefixtures("possible")
def test_what_is_lost_late_or_cut_off_for_a_while_arrives_all_the_same():
    with Wires(1) as links:
        assert sent(links, Weather(drop=0.05, late=0.2)) == (WHOLE, True)
        assert links.counts["dropped"] > 0 < links.counts["overtaken"]

        def heal():
            time.sleep(0.3)
            links.weather[0] = Weather()

        assert sent(links, Weather(cut=True), heal) == (WHOLE, True)
        assert sent(links, Weather(stalled=True), heal) == (WHOLE, True)
        assert links.counts["cut off"] > 0 < links.counts["stalled"]
    left = [*Path("/sys/class/net").glob(f"fs{os.getpid()}-*")]
    assert not left


@pytest.mark.usefixtures("possible")
def test_a_reset_ends_the_connection_at_both_ends():
    with Wires(1) as links:
        found, was_well = sent(links, Weather(reset=1.0))
        assert len(found) < len(WHOLE)
        assert not was_well
        assert links.counts["reset"] > 0


def test_only_packets_of_tcp_connections_are_reset():
    assert packets.forged_resets(b"") is None
    assert packets.forged_resets(b"\x60" + bytes(60)) is None  # IPv6
    head = bytes([0x45, *bytes(8), 17, *bytes(30)])
    assert packets.forged_resets(head) is None  # UDP
    # RFC 1071, section 3: the sum of its example is ddf2.
    assert packets.internet_checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2
