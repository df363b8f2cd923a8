"""Requests to an OAuth server: what is trusted, followed and read of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ottla.security import https
from ottla.security.signed_tokens import parse_key_set
from tests.certificates import Authority
from tests.judges.oidc import OAuthServer


class Answers(BaseHTTPRequestHandler):
    """An answer for each path."""

    def do_GET(self) -> None:
        port = int(str(self.server.server_address[1]))
        other = {"/": f"http://localhost:{port}/ok", "/file": "file:///etc/passwd"}.get(self.path)
        if other is not None:
            self.send_response(302)
            self.send_header("Location", other)
        else:
            self.send_response(200 if self.path in ("/ok", "/large", "/short") else 418)
        body = {"/large": b"x" * (https.BYTES_MAX + 1), "/no": b"no " * 1000}.get(self.path, b"fine")
        self.send_header("Content-Length", str(len(body) + (self.path == "/short")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def get(url: str, **options: str) -> bytes:
    return https.request(
        url, options={name.replace("_", "."): text for name, text in options.items()}, timeout_s=10
    )


def test_an_answer_is_read_and_a_redirect_to_the_same_scheme_followed(address: str) -> None:
    assert get(f"{address}/ok") == get(f"{address}/") == b"fine"


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/file", 302, "HTTP 302"),
        ("/large", 0, "larger than 1048576 bytes"),
        ("/short", 0, "ends 1 bytes early"),
        ("/no", 418, "HTTP 418 no no"),
    ],
)
def test_other_answers_are_a_problem(address: str, path: str, status: int, text: str) -> None:
    with pytest.raises(https.HttpProblem, match=text) as problem:
        get(address + path)
    assert problem.value.status == status
    assert len(str(problem.value)) < 300


def test_a_server_that_is_not_there_is_a_problem() -> None:
    with pytest.raises(https.HttpProblem, match="refused"):
        get("http://localhost:1/jwks")


def test_only_servers_with_a_trusted_certificate_and_their_name_are_asked(tmp_path: Path) -> None:
    authority, other = Authority(), Authority("Another")
    trusted, untrusted = (each.write(tmp_path / f"{id(each)}.pem") for each in (authority, other))
    with OAuthServer(authority.sign("localhost").write_pem(tmp_path / "server.pem")) as server:
        keys = parse_key_set(
            get(server.jwks_url, ssl_truststore_type="PEM", ssl_truststore_location=str(trusted))
        )
        assert [key.id for key in keys] == ["rsa-1", "ec-1"]
        for how in ({}, {"ssl_truststore_type": "PEM", "ssl_truststore_location": str(untrusted)}):
            with pytest.raises(https.HttpProblem, match="CERTIFICATE_VERIFY_FAILED"):
                get(server.jwks_url, **how)
        by_inline = {"ssl_truststore_type": "PEM", "ssl_truststore_certificates": trusted.read_text()}
        assert get(server.jwks_url, **by_inline)
    with (
        OAuthServer(authority.sign("localhost").write_pem(tmp_path / "other.pem"), "127.0.0.2") as server,
        pytest.raises(https.HttpProblem, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        get(
            server.jwks_url.replace("localhost", "127.0.0.2"),
            ssl_truststore_type="PEM",
            ssl_truststore_location=str(trusted),
        )
