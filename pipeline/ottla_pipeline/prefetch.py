"""Downloads the Spark packages that the jobs need: `python -m ottla_pipeline.prefetch`.

Called by `make setup`, and with `--into-spark` by an image's build, which copies the jars into Spark's own
folder, onto the class path of drivers and executors. Runs spark-submit's resolution (Ivy, with its cache)
and writes the paths of the jars to a file (`spark.jar_list`), so that later sessions resolve and download
nothing. Also creates the archive of Spark's classes (`cds_archive`), which shortens the start of a job.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import click

from ottla_pipeline import cds_archive
from ottla_pipeline.spark import (
    EXTRAS,
    JavaMissing,
    build_session,
    ivy_home,
    jar_list,
    prefetched_jars,
    spark_jars,
)

SYSTEMS_AUTHORITIES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


def prefetch() -> list[str]:
    """Paths of the packages' jars, downloaded if necessary. Raises JavaMissing if Spark cannot start."""
    jars = prefetched_jars()
    if jars is None:
        session = build_session("ottla-prefetch", master="local[1]", memory="512m", packages=EXTRAS)
        urls = session.conf.get("spark.jars") or ""
        session.stop()
        paths = [unquote(urlsplit(url).path) for url in urls.split(",") if url]
        target = jar_list()
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_text("".join(f"{path}\n" for path in paths))
        part.replace(target)
        return paths
    return [str(jar) for jar in jars]


def into_spark(jars: list[str]) -> None:
    """Copies the jars into Spark's own folder."""
    for jar in jars:
        shutil.copy(jar, spark_jars())


def trust_what_the_system_trusts(store: Path) -> None:
    """Writes the system's certificate authorities to the PKCS #12 file `store` and sets it as the trust
    store of every Java process that is started afterwards: Java has its own list of authorities, which
    lacks that of a proxy."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    if not SYSTEMS_AUTHORITIES.is_file():
        return
    known = x509.load_pem_x509_certificates(SYSTEMS_AUTHORITIES.read_bytes())
    named = [pkcs12.PKCS12Certificate(one, f"{number}".encode()) for number, one in enumerate(known)]
    password = "changeit"
    encryption = serialization.BestAvailableEncryption(password.encode())
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_bytes(pkcs12.serialize_java_truststore(named, encryption))
    settings = {"": store, "Type": "PKCS12", "Password": password}
    options = (f"-Djavax.net.ssl.trustStore{name}={value}" for name, value in settings.items())
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join(options)


def main(arguments: Sequence[str]) -> int:
    try:
        if "--into-spark" in arguments:
            trust_what_the_system_trusts(ivy_home() / "authorities.p12")
        jars = prefetch()
    except JavaMissing as error:
        click.echo(f"prefetch: {error}", err=True)
        return 2
    if "--into-spark" in arguments:
        into_spark(jars)
    click.echo(f"prefetch: {len(jars)} jars for Spark are available")
    if "--into-spark" not in arguments and cds_archive.create() is None:
        click.echo(
            "prefetch: this Java cannot create an archive of Spark's classes; jobs start a few seconds slower"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
