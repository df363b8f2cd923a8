"""Where backups are: a folder of an object store (`s3://`, `gs://`, `az://`) or of this machine (`file://`).

Credentials are settings by the names of the stores' own environment variables (AWS_ACCESS_KEY_ID,
GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_KEY, …); without them, those of the environment apply. Names of
backups end with the time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla_operator.backup.document import BackupError

SCHEMES: Final = ("s3", "gs", "az", "file")
SUFFIX: Final = ".ndjson.gz"
_OBJECT: Final = re.compile(r"^(.*/)?[^/]+-[0-9]{8}T[0-9]{6}Z\.ndjson\.gz$")


def _errors() -> tuple[type[Exception], ...]:
    """What obstore raises. It is imported where it is used: only a backup needs it."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError)


def object_name(cluster: str, created_at: str) -> str:
    """The name of a backup: `demo-20261127T140512Z.ndjson.gz`."""
    return f"{cluster}-{created_at.replace('-', '').replace(':', '')}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with backups. All methods raise BackupError."""

    url: str
    endpoint: str = ""
    """Of another store with S3's API, such as http://minio:9000."""
    credentials: Mapping[str, str] = field(default_factory=dict)

    def _store(self) -> Any:
        from obstore.store import from_url

        build: Any = from_url
        scheme = self.url.partition("://")[0]
        if scheme not in SCHEMES:
            raise BackupError(
                f"{self.url!r} is not allowed: must be {', '.join(f'{s}://…' for s in SCHEMES)}"
            )
        if scheme == "file":
            return build(self.url, mkdir=True)
        config: dict[str, Any] = {name.lower(): value for name, value in self.credentials.items()}
        if self.endpoint:
            config["endpoint"] = self.endpoint
            config.setdefault("aws_region", "us-east-1")
            config.setdefault("aws_virtual_hosted_style_request", "false")
        options: Any = {"allow_http": self.endpoint.startswith("http://"), "timeout": "60s"}
        return build(self.url, config=config, client_options=options, retry_config={"max_retries": 3})

    async def put(self, name: str, content: bytes) -> str:
        """Write a backup. Returns its URL."""
        try:
            from obstore import put_async

            await put_async(self._store(), name, content)
        except _errors() as error:
            raise _failed(self.url, error) from None
        return f"{self.url.rstrip('/')}/{name}"

    async def get(self, name: str) -> bytes:
        """Read a backup."""
        try:
            from obstore import get_async

            return bytes(await (await get_async(self._store(), name)).bytes_async())
        except _errors() as error:
            raise _failed(f"{self.url.rstrip('/')}/{name}", error) from None

    async def names(self, cluster: str = "") -> list[str]:
        """The names of the backups, of this cluster only, the newest last."""
        try:
            from obstore import list as list_objects

            listed = await list_objects(self._store()).collect_async()
        except _errors() as error:
            raise _failed(self.url, error) from None
        found = [str(each["path"]) for each in listed if _OBJECT.match(str(each["path"]))]
        of_cluster = [name for name in found if not cluster or _cluster_of(name) == cluster]
        return sorted(of_cluster, key=lambda name: (name.rsplit("-", 1)[1], name))

    async def keep(self, cluster: str, count: int) -> list[str]:
        """Delete all but the newest `count` backups of the cluster. Returns the names of the deleted ones."""
        names = await self.names(cluster)
        old = names[: max(0, len(names) - count)]
        try:
            if old:
                from obstore import delete_async

                await delete_async(self._store(), old)
        except _errors() as error:
            raise _failed(self.url, error) from None
        return old


# By scheme: one of these alternatives is required, and more settings are allowed. Others could make the
# operator read files of its own, such as the token of its service account, and send them anywhere.
_CREDENTIALS: Final[Mapping[str, tuple[tuple[frozenset[str], ...], frozenset[str]]]] = {
    "s3": (
        (frozenset(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),),
        frozenset(("AWS_SESSION_TOKEN", "AWS_REGION")),
    ),
    "gs": ((frozenset(("GOOGLE_SERVICE_ACCOUNT_KEY",)),), frozenset()),
    "az": (
        (frozenset(("AZURE_STORAGE_ACCOUNT_KEY",)), frozenset(("AZURE_STORAGE_SAS_KEY",))),
        frozenset(("AZURE_STORAGE_ACCOUNT_NAME",)),
    ),
}


def credentials_in(url: str, secret: Mapping[str, bytes]) -> dict[str, str]:
    """The credentials for the store in the data of a Secret. Raises BackupError."""
    required, more = _CREDENTIALS.get(url.partition("://")[0], ((frozenset(),), frozenset()))
    if not any(names <= secret.keys() for names in required):
        wanted = " or ".join(" and ".join(sorted(names)) for names in required)
        raise BackupError(f"the Secret with the credentials needs {wanted}")
    allowed = more.union(*required)
    return {name: content.decode().strip() for name, content in secret.items() if name in allowed}


def _cluster_of(name: str) -> str:
    return name.rsplit("/", 1)[-1].rsplit("-", 1)[0]


def split(url: str) -> tuple[str, str]:
    """A URL as (folder, name of the backup); the name is "" for a folder."""
    if not url.endswith(SUFFIX):
        return url, ""
    folder, _, name = url.rpartition("/")
    return folder, name


async def newest(
    source: str, endpoint: str, cluster: str = "", credentials: Mapping[str, str] | None = None
) -> tuple[str, bytes]:
    """The URL and the content of a backup: the one at this URL, or the newest in this folder, of this cluster
    only. Raises BackupError."""
    url, name = split(source)
    folder = Folder(url, endpoint, credentials or {})
    if not name:
        names = await folder.names(cluster)
        if not names:
            raise BackupError(f"{source}: there is no backup" + (f" of {cluster}" if cluster else ""))
        name = names[-1]
    return f"{url.rstrip('/')}/{name}", await folder.get(name)


def _failed(where: str, error: Exception) -> BackupError:
    return BackupError(f"{where}: {_reason(str(error)) or repr(error)}")


def _reason(text: str) -> str:
    """The store's own error in a response of XML; else the first line."""
    code, message = (re.search(rf"<{name}>([^<]+)</{name}>", text) for name in ("Code", "Message"))
    if code is None:
        return text.strip().partition("\n")[0]
    return ": ".join(" ".join(found[1].split()) for found in (code, message) if found is not None)
