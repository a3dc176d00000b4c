# SPDX-License-Identifier: Apache-2.0
"""Third-party S3 clients with the same five operations each, for round trips against the emulator.

`boto3` is a library in the development environment. s5cmd, rclone, mc and s3fs are programs that
`make setup-peers-clients` installs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BIN = Path(__file__).resolve().parents[2] / ".tools/bin"


def program(name: str) -> str:
    """The path of an installed program."""
    found = shutil.which(name, path=f"{BIN}:{os.environ['PATH']}")
    if found is None:
        pytest.fail(f"{name} is not installed; run make setup-peers-clients", pytrace=False)
    return found


class Client:
    """A client of an emulator (`served`); `work` is an empty folder. A prefix ends in a slash."""

    name = ""

    def __init__(self, served: Any, work: Path) -> None:
        self.served, self.bucket = served, served.bucket
        endpoint, access, secret = served.server.endpoint, served.server.access_key, served.server.secret_key
        self.work = work
        self.env = {
            **os.environ,
            **served.server.env,
            "HOME": str(work),
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_E_TYPE": "s3",
            "RCLONE_CONFIG_E_PROVIDER": "Other",
            "RCLONE_CONFIG_E_ENDPOINT": endpoint,
            "RCLONE_CONFIG_E_REGION": served.server.region,
            "RCLONE_CONFIG_E_ACCESS_KEY_ID": access,
            "RCLONE_CONFIG_E_SECRET_ACCESS_KEY": secret,
            "MC_HOST_e": endpoint.replace("://", f"://{access}:{secret}@"),
            "S3_ENDPOINT_URL": endpoint,
        }

    def run(self, *argv: object) -> str:
        """Runs the program, which must exit with 0; returns its standard output."""
        command = [program(self.name), *map(str, argv)]
        done = subprocess.run(
            command, env=self.env, cwd=self.work, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def close(self) -> None:
        """Releases the client's resources."""

    def upload(self, source: Path, prefix: str) -> None:
        """Uploads every file below `source` to `prefix`."""
        raise NotImplementedError

    def keys(self, prefix: str) -> set[str]:
        """The keys below `prefix`, without the prefix."""
        raise NotImplementedError

    def copy(self, source: str, target: str) -> None:
        """Copies all objects of one prefix to another."""
        raise NotImplementedError

    def download(self, prefix: str, target: Path) -> None:
        """Downloads every object of `prefix` into a file below `target`."""
        raise NotImplementedError

    def delete(self, prefix: str) -> None:
        """Deletes every object of `prefix`."""
        raise NotImplementedError


class Boto3(Client):
    """The boto3 library with its transfer manager: parts of 8 MiB."""

    name = "boto3"

    def __init__(self, served: Any, work: Path) -> None:
        super().__init__(served, work)
        import boto3

        self.s3 = boto3.client(
            "s3",
            endpoint_url=served.server.endpoint,
            region_name=served.server.region,
            aws_access_key_id=served.server.access_key,
            aws_secret_access_key=served.server.secret_key,
        )

    def close(self) -> None:
        self.s3.close()

    def upload(self, source: Path, prefix: str) -> None:
        for path in source.rglob("*"):
            if path.is_file():
                self.s3.upload_file(str(path), self.bucket, prefix + path.relative_to(source).as_posix())

    def keys(self, prefix: str) -> set[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix, PaginationConfig={"PageSize": 3}
        )
        return {each["Key"].removeprefix(prefix) for page in pages for each in page.get("Contents", ())}

    def copy(self, source: str, target: str) -> None:
        for key in self.keys(source):
            self.s3.copy({"Bucket": self.bucket, "Key": source + key}, self.bucket, target + key)

    def download(self, prefix: str, target: Path) -> None:
        for key in self.keys(prefix):
            (target / key).parent.mkdir(parents=True, exist_ok=True)
            self.s3.download_file(self.bucket, prefix + key, str(target / key))

    def delete(self, prefix: str) -> None:
        objects = [{"Key": prefix + key} for key in self.keys(prefix)]
        answer = self.s3.delete_objects(Bucket=self.bucket, Delete={"Objects": objects})
        assert "Errors" not in answer, answer["Errors"]


class S5cmd(Client):
    name = "s5cmd"

    def upload(self, source: Path, prefix: str) -> None:
        self.run("cp", "--part-size", "8", f"{source}/", f"s3://{self.bucket}/{prefix}")

    def keys(self, prefix: str) -> set[str]:
        listed = self.run("ls", "--show-fullpath", f"s3://{self.bucket}/{prefix}*")
        return {line.removeprefix(f"s3://{self.bucket}/{prefix}") for line in listed.splitlines()}

    def copy(self, source: str, target: str) -> None:
        self.run("cp", f"s3://{self.bucket}/{source}*", f"s3://{self.bucket}/{target}")

    def download(self, prefix: str, target: Path) -> None:
        self.run("cp", "--part-size", "8", f"s3://{self.bucket}/{prefix}*", f"{target}/")

    def delete(self, prefix: str) -> None:
        self.run("rm", f"s3://{self.bucket}/{prefix}*")


class Rclone(Client):
    name = "rclone"

    def upload(self, source: Path, prefix: str) -> None:
        self.run("copy", "--s3-upload-cutoff", "8Mi", "--s3-chunk-size", "8Mi", source, f"e:{self.bucket}/{prefix}")
        # rclone reads both sides again and compares their bytes.
        self.run("check", "--download", source, f"e:{self.bucket}/{prefix}")

    def keys(self, prefix: str) -> set[str]:
        return set(self.run("lsf", "-R", "--files-only", f"e:{self.bucket}/{prefix}").splitlines())

    def copy(self, source: str, target: str) -> None:
        cutoff = ("--s3-copy-cutoff", "8Mi", "--s3-chunk-size", "8Mi")
        self.run("copy", *cutoff, f"e:{self.bucket}/{source}", f"e:{self.bucket}/{target}")

    def download(self, prefix: str, target: Path) -> None:
        self.run("copy", f"e:{self.bucket}/{prefix}", target)

    def delete(self, prefix: str) -> None:
        self.run("purge", f"e:{self.bucket}/{prefix}")


class Mc(Client):
    name = "mc"

    def upload(self, source: Path, prefix: str) -> None:
        self.run("cp", "--quiet", "--recursive", f"{source}/", f"e/{self.bucket}/{prefix}")

    def keys(self, prefix: str) -> set[str]:
        listed = self.run("ls", "--recursive", "--json", f"e/{self.bucket}/{prefix}")
        return {json.loads(line)["key"] for line in listed.splitlines()}

    def copy(self, source: str, target: str) -> None:
        self.run("cp", "--quiet", "--recursive", f"e/{self.bucket}/{source}", f"e/{self.bucket}/{target}")

    def download(self, prefix: str, target: Path) -> None:
        self.run("cp", "--quiet", "--recursive", f"e/{self.bucket}/{prefix}", f"{target}/")

    def delete(self, prefix: str) -> None:
        self.run("rm", "--quiet", "--recursive", "--force", f"e/{self.bucket}/{prefix}")


class S3fs(Client):
    """The bucket as a mounted file system."""

    name = "s3fs"

    def __init__(self, served: Any, work: Path) -> None:
        super().__init__(served, work)
        self.root = work / "mount"
        self.root.mkdir()
        keys = work / "passwd-s3fs"
        keys.touch(mode=0o600)
        keys.write_text(f"{served.server.access_key}:{served.server.secret_key}\n")
        options = f"url={served.server.endpoint},passwd_file={keys},use_path_request_style"
        options += f",endpoint={served.server.region},multipart_size=5"
        self.run(self.bucket, self.root, "-o", options)

    def close(self) -> None:
        subprocess.run([program("fusermount3"), "-u", str(self.root)], check=True, timeout=60)

    def upload(self, source: Path, prefix: str) -> None:
        shutil.copytree(source, self.root / prefix)

    def keys(self, prefix: str) -> set[str]:
        root = self.root / prefix
        return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}

    def copy(self, source: str, target: str) -> None:
        # A rename in s3fs is a server-side copy and a delete.
        shutil.copytree(self.root / source, self.root / "moving")
        (self.root / "moving").rename(self.root / target)

    def download(self, prefix: str, target: Path) -> None:
        shutil.copytree(self.root / prefix, target, dirs_exist_ok=True)

    def delete(self, prefix: str) -> None:
        shutil.rmtree(self.root / prefix)
