"""A trust store for Java with the system's certificate authorities.

Java has its own list of authorities, which lacks that of a proxy. Called by `prefetch`, and by the build of
the image, which has no Spark then, as a script: `python trust_store.py FILE` prints Java's options.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

SYSTEMS_AUTHORITIES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_PASSWORD: Final = "changeit"


def system_trust_store(store: Path) -> str:
    """Write the system's authorities to the PKCS #12 file `store`. Returns Java's options to use it, or "" if
    there are none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    if not SYSTEMS_AUTHORITIES.is_file():
        return ""
    known = x509.load_pem_x509_certificates(SYSTEMS_AUTHORITIES.read_bytes())
    named = [pkcs12.PKCS12Certificate(one, f"{number}".encode()) for number, one in enumerate(known)]
    encryption = serialization.BestAvailableEncryption(_PASSWORD.encode())
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_bytes(pkcs12.serialize_java_truststore(named, encryption))
    settings = {"": store, "Type": "PKCS12", "Password": _PASSWORD}
    return " ".join(f"-Djavax.net.ssl.trustStore{name}={value}" for name, value in settings.items())


if __name__ == "__main__":
    print(system_trust_store(Path(sys.argv[1])))  # noqa: T201
