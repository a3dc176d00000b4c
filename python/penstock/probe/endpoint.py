# SPDX-License-Identifier: Apache-2.0
"""Finds the endpoint of a URL as the store layer does: scheme, host, port, region, and the proxy in between.

Reads the same variables as `crates/store` (settings.rs, s3/endpoint.rs, azure/account.rs, gcs/mod.rs). Sends nothing.
"""

from __future__ import annotations

import configparser
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Endpoint", "aws_profile", "connection_parts", "endpoint_of", "is_loopback"]

_PORTS = {"http": 80, "https": 443}
_OWN = ("amazonaws.com", "amazonaws.com.cn", "windows.net", "chinacloudapi.cn", "usgovcloudapi.net", "googleapis.com")


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the requests for a URL go.

    Attributes:
        cloud: `s3`, `az`, `gs`, `http` or `file`.
        host, port: Empty and 0 for files.
        base: Path of the bucket or container at the host, without a final `/`.
        bucket: Bucket or container; empty for http and files.
        region: Region that S3 requests are signed for, and its source; None for other clouds.
        is_default: Whether the endpoint is the cloud's own endpoint.
        origin: What set the endpoint: a variable, the profile, or `default`.
        proxy: URL of the proxy, with its user name and password, if any. Never print this URL. None for a direct
            connection.
    """

    cloud: str
    scheme: str = ""
    host: str = ""
    port: int = 0
    base: str = ""
    bucket: str = ""
    key: str = ""
    region: str | None = None
    region_from: str = ""
    is_default: bool = False
    origin: str = ""
    proxy: str | None = None

    @property
    def is_loopback(self) -> bool:
        return self.cloud == "file" or is_loopback(self.host)

    @property
    def host_and_port(self) -> str:
        """`host:port`, with the brackets of an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """`host:port` as in the header `Host`: without the port if it is the scheme's default."""
        return self.host_and_port.removesuffix(f":{_PORTS.get(self.scheme)}")

    @property
    def shown(self) -> str:
        """`https://host:port`, without credentials."""
        return f"{self.scheme}://{self.authority}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def aws_profile(variables: Mapping[str, str]) -> tuple[str, dict[str, str], dict[str, str]]:
    """Name of the AWS profile in use, and its keys in the config file and in the credentials file. A missing or
    malformed file counts as empty.
    """
    name = variables.get("AWS_PROFILE") or "default"
    home = Path(variables.get("HOME") or "/nonexistent") / ".aws"
    found: list[dict[str, str]] = []
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(variables.get(variable) or home / file, encoding="utf-8")
            found.append(dict(parser[section]) if parser.has_section(section) else {})
        except (configparser.Error, OSError, UnicodeDecodeError):
            found.append({})
    return name, found[0], found[1]


def endpoint_of(url: str, variables: Mapping[str, str]) -> Endpoint:
    """Find the endpoint of a URL.

    Args:
        url: `s3://`, `az://`, `gs://`, `http(s)://`, `file://` or a path.
    Raises:
        ConfigError: The URL or a variable is invalid, or a required variable is not set.
    """
    scheme = url.partition("://")[0].lower() if "://" in url else "file"
    if scheme == "file":
        return Endpoint(cloud="file", key=url)
    if scheme in ("http", "https"):
        return _with_proxy(_parsed(url, "URL", cloud="http", origin="the URL"), variables)
    parts = urlsplit(url)
    bucket, key = parts.netloc, unquote(parts.path.lstrip("/"))
    if "@" in bucket:
        raise ConfigError("the URL contains a user name or a password", where="URL", hint="remove it from the URL")
    makers = {"s3": _s3, "az": _azure, "gs": _gcs}
    if scheme not in makers:
        raise ConfigError(
            f"doctor and probe do not support {scheme}:// URLs",
            where="URL",
            hint="use s3, az, gs, http, https or a path",
        )
    found = makers[scheme](bucket, variables)
    return _with_proxy(msgspec.structs.replace(found, bucket=bucket, key=key), variables)


def _parsed(text: str, what: str, *, cloud: str, origin: str) -> Endpoint:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{what}: not a valid URL: {error}", where=what) from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ConfigError(f"{what}: must begin with https:// or http:// and name a host", where=what)
    host = parts.hostname
    return Endpoint(
        cloud=cloud,
        scheme=parts.scheme,
        host=host,
        port=port or _PORTS[parts.scheme],
        base=parts.path.rstrip("/"),
        is_default=host.endswith(_OWN),
        origin=origin,
    )


def _s3(bucket: str, variables: Mapping[str, str]) -> Endpoint:
    name, config, _ = aws_profile(variables)
    region, region_from = None, "default"
    for value, source in (
        (variables.get("AWS_REGION"), "AWS_REGION"),
        (variables.get("AWS_DEFAULT_REGION"), "AWS_DEFAULT_REGION"),
        (config.get("region"), f"profile {name}"),
    ):
        if value:
            region, region_from = value, source
            break
    region = region or "us-east-1"
    ignores = (variables.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or "").lower() == "true"
    for value, source in (
        (variables.get("AWS_ENDPOINT_URL_S3"), "AWS_ENDPOINT_URL_S3"),
        (variables.get("AWS_ENDPOINT_URL"), "AWS_ENDPOINT_URL"),
        (config.get("endpoint_url"), f"profile {name}"),
    ):
        if value and not ignores:
            found = _parsed(value, source, cloud="s3", origin=source)
            found = msgspec.structs.replace(found, base=f"{found.base}/{bucket}")
            break
    else:
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        host = f"s3.{region}.{domain}"
        # AWS's certificate covers only one more label, so a bucket name with dots goes into the path.
        dotted = "." in bucket
        found = Endpoint(
            cloud="s3",
            scheme="https",
            host=host if dotted else f"{bucket}.{host}",
            port=443,
            base=f"/{bucket}" if dotted else "",
            is_default=True,
            origin="default",
        )
    return msgspec.structs.replace(found, region=region, region_from=region_from)


def connection_parts(variables: Mapping[str, str]) -> dict[str, str]:
    """Parts of `AZURE_STORAGE_CONNECTION_STRING`, by their names in lower case."""
    text = variables.get("AZURE_STORAGE_CONNECTION_STRING") or ""
    pairs = (part.strip().partition("=") for part in text.split(";") if part.strip())
    return {name.lower(): value for name, _, value in pairs}


def _azure(container: str, variables: Mapping[str, str]) -> Endpoint:
    parts = connection_parts(variables)
    account = (
        variables.get("AZURE_STORAGE_ACCOUNT")
        or variables.get("AZURE_STORAGE_ACCOUNT_NAME")
        or parts.get("accountname")
    )
    named = variables.get("AZURE_STORAGE_ENDPOINT")
    text, origin = (named, "AZURE_STORAGE_ENDPOINT") if named else (parts.get("blobendpoint"), "the connection string")
    if not text and account and parts.get("endpointsuffix"):
        scheme = parts.get("defaultendpointsprotocol", "https")
        text = f"{scheme}://{account}.blob.{parts['endpointsuffix']}"
    if not text and account:
        text, origin = f"https://{account}.blob.core.windows.net", "default"
    if not text:
        raise ConfigError(
            "AZURE_STORAGE_ACCOUNT: not set; az:// URLs require this variable or AZURE_STORAGE_CONNECTION_STRING",
            where="AZURE_STORAGE_ACCOUNT",
            hint="export AZURE_STORAGE_ACCOUNT=NAME",
        )
    found = _parsed(text, origin, cloud="az", origin=origin)
    return msgspec.structs.replace(found, base=f"{found.base}/{container}")


def _gcs(bucket: str, variables: Mapping[str, str]) -> Endpoint:
    emulator = variables.get("STORAGE_EMULATOR_HOST")
    if emulator:
        text = emulator if "://" in emulator else f"http://{emulator}"
        found = _parsed(text, "STORAGE_EMULATOR_HOST", cloud="gs", origin="STORAGE_EMULATOR_HOST")
    else:
        found = _parsed("https://storage.googleapis.com", "endpoint", cloud="gs", origin="default")
    return msgspec.structs.replace(found, base=f"{found.base}/storage/v1/b/{bucket}")


def _with_proxy(found: Endpoint, variables: Mapping[str, str]) -> Endpoint:
    """Return the endpoint with its proxy, by curl's rules, except that loopback is never reached through a proxy."""
    if found.is_loopback:
        return found
    proxies = {
        name.lower().removesuffix("_proxy"): value
        for name, value in variables.items()
        if name.lower().endswith("_proxy") and value
    }
    if _is_excepted(found.host, proxies.get("no", "")):
        return found
    proxy = proxies.get(found.scheme) or proxies.get("all")
    return msgspec.structs.replace(found, proxy=proxy) if proxy else found


def _is_excepted(host: str, exceptions: str) -> bool:
    """Whether `NO_PROXY` contains the host: itself, a domain above it, an address range, or `*`."""
    for text in (part.strip().lower() for part in exceptions.split(",")):
        if text == "*" or (text and (host == text.lstrip(".") or host.endswith("." + text.lstrip(".")))):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(text, strict=False):
                return True
        except ValueError:
            continue
    return False
