"""Why nobody answers: `avow doctor` where a cluster was named and cannot be used.

From the caller's side a wrong port, http in place of https, a certificate nobody vouches for and a token without rights
all look like "it does not work". From the address alone they can be told apart: whether somebody listens, what it
speaks, whom its certificate is for, and what it says to the token. Each address is tried for itself, once.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from avow.cli.api import Api, path_of
from avow.cli.doctor_finding import Finding
from avow.errors import AvowError, Forbidden, NotAuthenticated

ASK_S: Final = 2.0
_SPEAKS_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


def check_reach(api: Api) -> list[Finding]:
    """One finding for each address that cannot be used; what is wrong with the token is told once."""
    return [finding for address in api.addresses if (finding := check_address(address, ca=api.ca)) is not None]


def check_address(address: str, *, ca: str) -> Finding | None:
    """None: a peer of Avow answers there."""
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or 0
    try:
        with socket.create_connection((host, port), ASK_S):
            pass
    except socket.gaierror:
        return _unusable(address, f"nobody knows the name {host}", "check the name in --api or AVOW_API")
    except TimeoutError:
        return _unusable(address, "no answer at all", "a firewall, or a machine that is down: check host and port")
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        advice = "start a peer there (avow up, avow serve), or correct the port: --api is the API's, not the links'"
        return _unusable(address, said, advice)
    if parts.scheme == "https":
        return _secure(address, host, port, ca)
    return _plain(address, host, port)


def _plain(address: str, host: str, port: int) -> Finding | None:
    connection = http.client.HTTPConnection(host, port, timeout=ASK_S)
    try:
        return _asked(address, connection)
    except (OSError, http.client.HTTPException):
        if speaks_tls(host, port):
            advice = f"use https://{host}:{port}, with --ca or AVOW_CA for an authority of your own"
            return _unusable(address, "it speaks HTTPS, not HTTP", advice)
        return _unusable(
            address, "it does not speak HTTP", "is that the port of links (peer_listen)? use that of listen"
        )
    finally:
        connection.close()


def _secure(address: str, host: str, port: int, ca: str) -> Finding | None:
    trust = ssl.create_default_context(cafile=ca or None)
    connection = http.client.HTTPSConnection(host, port, timeout=ASK_S, context=trust)
    try:
        return _asked(address, connection)
    except ssl.SSLCertVerificationError as error:
        if "Hostname mismatch" in error.verify_message or "IP address mismatch" in error.verify_message:
            return _unusable(address, f"its certificate is not for {host}", "use a name that stands in the certificate")
        advice = "--ca or AVOW_CA names the authority's PEM" if not ca else f"{ca} is not the authority that signed it"
        return _unusable(address, f"its certificate is not trusted: {error.verify_message}", advice)
    except ssl.SSLError as error:
        if any(reason in str(error).upper() for reason in _SPEAKS_NO_TLS):
            return _unusable(address, "it speaks HTTP, not HTTPS", f"use http://{host}:{port}")
        return _unusable(
            address, f"no TLS with it: {error.reason or error}", "is that the port of links (peer_listen)?"
        )
    except (OSError, http.client.HTTPException) as error:
        return _unusable(address, str(error) or type(error).__name__, "is that the port of links (peer_listen)?")
    finally:
        connection.close()


def _asked(address: str, connection: http.client.HTTPConnection) -> Finding | None:
    connection.request("GET", "/healthz")
    response = connection.getresponse()
    body = response.read(1000)
    if response.status == 200 and b"alive" in body:
        return None
    said = f"something else answers there (status {response.status})"
    return _unusable(address, said, "correct the port in --api or AVOW_API")


def speaks_tls(host: str, port: int) -> bool:
    """Whoever it is: nothing is sent to it."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), ASK_S) as plain, anybody.wrap_socket(plain):
            return True
    except OSError:
        return False


def check_token(api: Api) -> list[Finding]:
    """What the first peer that answers says to this token."""
    try:
        api.get(path_of("queues"))
        api.get(path_of("peers"))
    except NotAuthenticated as error:
        advice = "give the right one with --token or AVOW_TOKEN" if api.token else "give one with --token or AVOW_TOKEN"
        return [Finding("token", "fail", str(error).partition(";")[0], advice)]
    except Forbidden as error:
        advice = "ask for it where tokens are given out; rights stand in the tokens file of the peers"
        return [Finding("token", "fail", str(error).partition(";")[0], advice)]
    except AvowError as error:
        return [Finding("cluster", "fail", f"{error.code}: {error}", "look at the peers' logs")]
    return []


def _unusable(address: str, said: str, advice: str) -> Finding:
    return Finding("cluster", "fail", f"{address}: {said}", advice)
