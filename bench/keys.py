"""A TLS listener for the brokers of a side, and what its clients need to trust it.

Called by `sides`. The brokers among themselves stay on the plain listener; nobody shows a certificate but the
brokers. Key and authority are PEM files, which both kinds of brokers and the Java clients take.
"""

from __future__ import annotations

from pathlib import Path

from tests.certificates import Authority


class Keys:
    """An authority made for this run, and one key that it has signed for all brokers of a side."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        authority = Authority()
        self._trusted = authority.write(directory / "authority.pem")
        self._own = authority.sign("broker").write_pem(directory / "broker.pem")
        self.client_settings = (
            "security.protocol=SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self._trusted}",
        )
        self.client_properties = directory / "client.properties"
        self.client_properties.write_text("\n".join(self.client_settings) + "\n")

    def settings(self, port: int, tls_port: int) -> dict[str, str]:
        """Of a broker that listens on these."""
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._own),
        }
