"""Does the peer of this container take part in its cluster? Exit code 0 if /readyz says so, 1 otherwise.

It reads the same environment as the peer, so it asks at the port where that listens, and with TLS expects the
certificate that the peer was given, signed by the authority that peers trust.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import sys

TIMEOUT_S = 3.0


def main() -> int:
    host, _, port = os.environ.get("AVOW_LISTEN", "127.0.0.1:7400").rpartition(":")
    at = "127.0.0.1" if host in ("", "0.0.0.0", "[::]") else host.strip("[]")
    try:
        return 0 if asked(at, int(port)) == 200 else 1
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.stderr.write(f"no answer from {at}:{port}: {error}\n")
        return 1


def asked(at: str, port: int) -> int:
    connection = http.client.HTTPConnection(at, port, timeout=TIMEOUT_S)
    try:
        connection.sock = socket.create_connection((at, port), TIMEOUT_S)
        if os.environ.get("AVOW_TLS_CERT"):
            name = os.environ.get("AVOW_ADVERTISE") or at
            trust = ssl.create_default_context(cafile=os.environ.get("AVOW_TLS_CA") or None)
            connection.sock = trust.wrap_socket(connection.sock, server_hostname=name)
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


sys.exit(main())
