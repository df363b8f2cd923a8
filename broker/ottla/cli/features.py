"""`ottla features`: describe and change feature levels of the cluster (KIP-584)."""

from __future__ import annotations

import click

from ottla.cli.output import as_json, done, table
from ottla.cli.session import Session, cluster_command, key_values
from ottla.client.admin import AdminClient
from ottla.client.admin_types import FeatureUpdate, UpgradeType

_dry_run = click.option("--dry-run", is_flag=True, help="Validate the change only.")
_unsafe = click.option("--unsafe", is_flag=True, help="Allow a downgrade that may lose metadata.")
_levels = click.argument("levels", metavar="FEATURE=LEVEL…", nargs=-1, required=True)


@click.group(short_help="Show and change feature levels.")
def features() -> None:
    """Supported feature levels of brokers, and finalized levels of the cluster.

    A cluster with ZooKeeper finalizes no feature of Kafka 3.9: brokers reject changes, as Kafka's do.
    """


@features.command()
@cluster_command
def describe(session: Session) -> None:
    """List all features with their supported and finalized levels."""
    found = session.admin(lambda admin: admin.describe_features())
    rows = []
    for name in sorted({*found.supported, *found.finalized}):
        supported, finalized = found.supported.get(name), found.finalized.get(name)
        rows.append(
            {
                "feature": name,
                "supported_min": supported.least if supported else None,
                "supported_max": supported.most if supported else None,
                "finalized": finalized.most if finalized else None,
            }
        )
    if session.output == "json":
        as_json({"epoch": found.finalized_epoch, "features": rows})
        return
    epoch = "none" if found.finalized_epoch is None else found.finalized_epoch
    click.echo(f"{len(rows)} features, epoch of the finalized ones: {epoch}")
    if rows:
        table(rows)


@features.command()
@_levels
@_dry_run
@cluster_command
def upgrade(session: Session, levels: tuple[str, ...], dry_run: bool) -> None:
    """Upgrade features to levels."""
    _update(session, _parsed(levels, UpgradeType.UPGRADE), dry_run)


@features.command()
@_levels
@_unsafe
@_dry_run
@cluster_command
def downgrade(session: Session, levels: tuple[str, ...], unsafe: bool, dry_run: bool) -> None:
    """Downgrade features to levels."""
    _update(session, _parsed(levels, _downgrade(unsafe)), dry_run)


@features.command()
@click.argument("names", metavar="FEATURE…", nargs=-1, required=True)
@_unsafe
@_dry_run
@cluster_command
def disable(session: Session, names: tuple[str, ...], unsafe: bool, dry_run: bool) -> None:
    """Disable features."""
    _update(session, dict.fromkeys(names, FeatureUpdate(0, _downgrade(unsafe))), dry_run)


def _downgrade(unsafe: bool) -> UpgradeType:
    return UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE


def _parsed(levels: tuple[str, ...], kind: UpgradeType) -> dict[str, FeatureUpdate]:
    wanted = {}
    for name, level in key_values(levels, "argument").items():
        if not level.isdigit():
            raise click.UsageError(f"{name}={level}: the level must be a whole number")
        wanted[name] = FeatureUpdate(int(level), kind)
    return wanted


def _update(session: Session, updates: dict[str, FeatureUpdate], dry_run: bool) -> None:
    async def work(admin: AdminClient) -> None:
        (await admin.update_features(updates, validate_only=dry_run)).raise_first()

    session.admin(work)
    levels = {name: update.level for name, update in updates.items()}
    what = "can be set" if dry_run else "set"
    message = ", ".join(f"{name} {what} to {level}" for name, level in levels.items())
    done(message, session.output, levels=levels, dry_run=dry_run)
