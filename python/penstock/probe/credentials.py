# SPDX-License-Identifier: Apache-2.0
"""Names the credential source that the store layer uses for a URL, and its expiry. Never returns or prints a secret.

Follows the order of `crates/store` (s3/chain, azure/chain.rs, gcs/chain.rs). Reads only variables and files, so this
module does not check that the store accepts the credential. The requests of `doctor` check that.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec

from penstock.probe.endpoint import aws_profile, connection_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Source", "source_of"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The first configured source.

    Attributes:
        member: Name of the source; empty if none is configured.
        expires: Time of expiry, UTC; None if the credential does not expire, or if its expiry is unknown.
        problem: Why the source cannot work; empty if the source has no problem.
        hint: What to do about the problem.
    """

    member: str
    expires: dt.datetime | None = None
    problem: str = ""
    hint: str = ""


def source_of(cloud: str, variables: Mapping[str, str]) -> Source:
    """The credential source for `s3`, `az` or `gs`."""
    return {"s3": _aws, "az": _azure, "gs": _google}[cloud](variables)


def _is_on(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name) in ("1", "true", "yes")


def _time(text: str | None) -> dt.datetime | None:
    if not text:
        return None
    try:
        found = dt.datetime.fromisoformat(text.strip().replace("Z", "+00:00").replace("UTC", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def _jwt_expiry(file: str) -> tuple[dt.datetime | None, str]:
    """Expiry of a token file (the claim `exp`), and a problem with the file."""
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return None, f"{file} cannot be read: {error.strerror}"
    parts = text.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return dt.datetime.fromtimestamp(float(claims["exp"]), dt.UTC), ""
    except (IndexError, KeyError, TypeError, ValueError, OverflowError):
        return None, "" if text else f"{file} is empty"


def _aws(variables: Mapping[str, str]) -> Source:
    if _is_on(variables, "PENSTOCK_S3_ANONYMOUS"):
        return Source(member="anonymous (PENSTOCK_S3_ANONYMOUS)")
    key, secret = variables.get("AWS_ACCESS_KEY_ID"), variables.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        is_temporary = bool(variables.get("AWS_SESSION_TOKEN"))
        return Source(
            member="environment (AWS_ACCESS_KEY_ID" + (", with a session token)" if is_temporary else ")"),
            expires=_time(variables.get("AWS_CREDENTIAL_EXPIRATION")),
        )
    half = ""
    if key or secret:
        have, lack = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")[:: 1 if key else -1]
        half = f"{have} is set, but {lack} is not"
    name, config, credentials = aws_profile(variables)
    profile = {**credentials, **config}
    if variables.get("AWS_PROFILE") and not profile:
        return Source(
            member=f"profile {name}",
            problem=f"AWS_PROFILE is {name}, which is not in AWS's files",
            hint="run aws configure list-profiles, and set AWS_PROFILE to one of them",
        )
    token_file = variables.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if variables.get("AWS_ROLE_ARN") and token_file and "role_arn" not in profile:
        return _web_identity("web identity (AWS_WEB_IDENTITY_TOKEN_FILE)", token_file)
    if found := _aws_profile_source(name, profile, variables):
        return found
    if variables.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or variables.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        return Source(member="container endpoint (AWS_CONTAINER_CREDENTIALS_*)")
    if _is_on(variables, "PENSTOCK_S3_IMDS"):
        return Source(member="instance metadata (PENSTOCK_S3_IMDS)")
    return Source(
        member="",
        problem=half or "no source of AWS credentials is configured",
        hint="set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; on an instance PENSTOCK_S3_IMDS=1; "
        "for a public bucket PENSTOCK_S3_ANONYMOUS=1",
    )


def _web_identity(member: str, token_file: str) -> Source:
    expires, problem = _jwt_expiry(token_file)
    return Source(member=member, expires=expires, problem=problem, hint="renew the token file" if problem else "")


def _aws_profile_source(name: str, profile: Mapping[str, str], variables: Mapping[str, str]) -> Source | None:
    if "role_arn" in profile:
        if "web_identity_token_file" in profile:
            return _web_identity(f"profile {name}: web identity", profile["web_identity_token_file"])
        return Source(member=f"profile {name}: role, assumed with other keys")
    if "sso_account_id" in profile or "sso_role_name" in profile:
        cached_as = profile.get("sso_session") or profile.get("sso_start_url", "")
        login = "run aws sso login" + (f" --sso-session {cached_as}" if "sso_session" in profile else "")
        digest = hashlib.sha1(cached_as.encode(), usedforsecurity=False).hexdigest()
        file = Path(variables.get("HOME") or "/nonexistent") / ".aws/sso/cache" / f"{digest}.json"
        try:
            expires = _time(str(json.loads(file.read_bytes()).get("expiresAt", "")))
        except (OSError, ValueError, AttributeError):
            return Source(member=f"profile {name}: SSO", problem="no login on this machine", hint=login)
        return Source(member=f"profile {name}: SSO", expires=expires, hint=login)
    if "aws_access_key_id" in profile:
        return Source(member=f"profile {name}: keys")
    if "credential_process" in profile:
        return Source(member=f"profile {name}: credential_process")
    return None


def _azure(variables: Mapping[str, str]) -> Source:
    parts = connection_parts(variables)
    if _is_on(variables, "PENSTOCK_AZURE_ANONYMOUS"):
        return Source(member="anonymous (PENSTOCK_AZURE_ANONYMOUS)")
    key_names = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
    if any(variables.get(name) for name in key_names):
        return Source(member="account key (AZURE_STORAGE_KEY)")
    if parts.get("accountkey"):
        return Source(member="account key (connection string)")
    named = variables.get("AZURE_STORAGE_SAS_TOKEN")
    sas = named or parts.get("sharedaccesssignature")
    if sas:
        origin = "AZURE_STORAGE_SAS_TOKEN" if named else "connection string"
        return Source(
            member=f"SAS ({origin})",
            expires=_time(parse_qs(sas.lstrip("?")).get("se", [None])[0]),
            hint="create a new SAS",
        )
    has = {name for name, value in variables.items() if value}
    for name, member in (
        ("AZURE_CLIENT_SECRET", "service principal, secret"),
        ("AZURE_CLIENT_CERTIFICATE_PATH", "service principal, certificate"),
        ("AZURE_FEDERATED_TOKEN_FILE", "workload identity"),
    ):
        if name in has:
            lacks = [other for other in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID") if other not in has]
            if lacks:
                return Source(member=member, problem=f"{name} is set, but {', '.join(lacks)} is not", hint="set both")
            if name == "AZURE_FEDERATED_TOKEN_FILE":
                return _web_identity(member, variables[name])
            return Source(member=f"{member} ({name})")
    if {"IDENTITY_ENDPOINT", "IDENTITY_HEADER"} <= has:
        return Source(member="managed identity (IDENTITY_ENDPOINT)")
    if _is_on(variables, "PENSTOCK_AZURE_CLI"):
        return Source(member="login of az (PENSTOCK_AZURE_CLI)")
    if _is_on(variables, "PENSTOCK_AZURE_IMDS"):
        return Source(member="instance metadata (PENSTOCK_AZURE_IMDS)")
    return Source(
        member="",
        problem="no source of Azure credentials is configured",
        hint="set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN; PENSTOCK_AZURE_CLI=1 uses the login of az; for a public "
        "container PENSTOCK_AZURE_ANONYMOUS=1",
    )


def _google(variables: Mapping[str, str]) -> Source:
    if variables.get("STORAGE_EMULATOR_HOST"):
        return Source(member="none (an emulator gets no token)")
    if _is_on(variables, "PENSTOCK_GS_ANONYMOUS"):
        return Source(member="anonymous (PENSTOCK_GS_ANONYMOUS)")
    named = variables.get("GOOGLE_APPLICATION_CREDENTIALS")
    folders = [
        Path(value) / below
        for value, below in (
            (variables.get("CLOUDSDK_CONFIG"), ""),
            (variables.get("XDG_CONFIG_HOME"), "gcloud"),
            (variables.get("HOME"), ".config/gcloud"),
        )
        if value
    ]
    files = [Path(named)] if named else [folder / "application_default_credentials.json" for folder in folders]
    for file in files:
        if not named and not file.is_file():
            continue
        member = "GOOGLE_APPLICATION_CREDENTIALS" if named else "login of gcloud"
        hint = "run gcloud auth application-default login"
        try:
            document = json.loads(file.read_bytes())
            kind = str(document["type"])
        except OSError as error:
            return Source(member=member, problem=f"{file} cannot be read: {error.strerror}", hint=hint)
        except (ValueError, KeyError, TypeError):
            return Source(member=member, problem=f"{file} contains no credentials", hint=hint)
        return Source(member=f"{member} ({kind.replace('_', ' ')})")
    if _is_on(variables, "PENSTOCK_GS_METADATA"):
        return Source(member="instance metadata (PENSTOCK_GS_METADATA)")
    return Source(
        member="",
        problem="no source of Google credentials is configured",
        hint="run gcloud auth application-default login; on an instance set PENSTOCK_GS_METADATA=1; for a public bucket "
        "PENSTOCK_GS_ANONYMOUS=1",
    )
