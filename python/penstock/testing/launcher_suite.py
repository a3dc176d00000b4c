# SPDX-License-Identifier: Apache-2.0
"""Test suite for launchers: checks that a launcher fulfils the contract. Run `LauncherSuite(launcher, ...).run()`.

Each check is a method `check_…` that raises AssertionError on failure. The nodes need a POSIX shell and Python.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.errors import Deadline, Interrupted, NotFound, PenstockError
from penstock.protocols import Launcher, RankPrefix, RunRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.protocols import Exit, Node

__all__ = ["LauncherSuite"]

_LIMIT_S = 60.0


class LauncherSuite:
    """Checks one open launcher with two or more nodes.

    Args:
        launcher: An open launcher; the suite does not close it.
        there: A folder that can be created on every node and that only the suite uses. Nodes may share it.
        here: A folder on this machine that only the suite uses.
        is_shared: Whether the nodes share `there`.
    """

    def __init__(self, launcher: Launcher, there: str, here: Path, *, is_shared: bool) -> None:
        self.launcher = launcher
        self.there = f"{there}/{uuid4().hex[:8]}"
        self.here = here
        self.is_shared = is_shared
        self.nodes = list(launcher.nodes())

    def run(self) -> list[str]:
        """Run all checks; return their names."""
        names = [name for name in dir(self) if name.startswith("check_")]
        for name in names:
            getattr(self, name)()
        return names

    def _run(
        self,
        argv: Sequence[str],
        on: Sequence[Node],
        ranks_per_node: int = 1,
        *,
        timeout_s: float = _LIMIT_S,
        **more: Any,
    ) -> list[Exit]:
        return self.launcher.run(RunRequest(argv, on, ranks_per_node, timeout_s=timeout_s, **more))

    def _sh(self, text: str, *args: str) -> list[str]:
        return ["sh", "-c", text, "sh", *args]

    def check_contract_is_fulfilled(self) -> None:
        assert isinstance(self.launcher, Launcher)
        assert len(self.nodes) > 1, "the suite needs two nodes"
        assert len({node.name for node in self.nodes}) == len(self.nodes)
        assert self.nodes == list(self.launcher.nodes()), "the order of nodes changes"

    def check_every_rank_runs_once_in_order(self) -> None:
        exits = self._run(
            self._sh('echo "$0-$1-$2-$3"; echo err >&2', "{rank}", "{world}", "{node}"),
            self.nodes,
            2,
            expand_placeholders=True,
        )
        world = 2 * len(self.nodes)
        assert [e.fault for e in exits] == [None] * world, exits
        assert [e.rank for e in exits] == list(range(world))
        assert [e.node for e in exits] == [node.name for node in self.nodes for _ in range(2)]
        assert [e.out.decode().strip() for e in exits] == [f"sh-{e.rank}-{world}-{e.node}" for e in exits], exits
        assert [e.err.strip() for e in exits] == [b"err"] * world, exits

    def check_arguments_arrive_unchanged(self) -> None:
        odd = ["", " ", "a b", "$HOME", "`id`", "'\"\\", "*", "{rank}", "é✓", "-n", "a\nb", "~", "#x", "!1", "%h"]
        [ended] = self._run(
            self._sh('for w in "$@"; do printf "<%s>" "$w"; done; echo', *odd), self.nodes[:1], timeout_s=_LIMIT_S
        )
        assert ended.out.decode() == "".join(f"<{arg}>" for arg in odd) + "\n", ended

    def check_exit_codes_are_each_ranks_own(self) -> None:
        exits = self._run(self._sh('exit "$(($1 * 3))"', "{rank}"), self.nodes, expand_placeholders=True)
        assert [e.code for e in exits] == [3 * at for at in range(len(self.nodes))], exits
        [killed] = self._run(self._sh("kill -9 $$"), self.nodes[:1])
        assert killed.code == 128 + 9, killed

    def check_failed_rank_stops_the_others_only_if_the_request_says_so(self) -> None:
        command = self._sh('[ "$1" = 0 ] && exit 5; exec sleep "$2"', "{rank}", "50")
        failed, stopped = self._run(command, self.nodes[:2], expand_placeholders=True, stops_on_failure=True)
        assert failed.code == 5, failed
        assert isinstance(stopped.fault, Interrupted), stopped
        command[-1] = "5"  # longer than the launcher waits before it stops the others
        exits = self._run(command, self.nodes[:2], expand_placeholders=True)
        assert [e.code for e in exits] == [5, 0], exits

    def check_program_that_is_not_there_names_node_and_program(self) -> None:
        [ended] = self._run(["penstock-no-such-program"], self.nodes[-1:])
        assert ended.code is None
        assert isinstance(ended.fault, NotFound), ended
        assert self.nodes[-1].name in str(ended.fault)
        assert "penstock-no-such-program" in str(ended.fault)

    def check_environment_and_stdin_arrive_and_stay_off_command_lines(self) -> None:
        secret = uuid4().hex
        exits = self._run(
            self._sh('cat; printf %s "$SUITE_SECRET"; tr "\\0" " " < /proc/$PPID/cmdline | grep -c -- "$SUITE_SECRET"; true'),
            self.nodes, env={"SUITE_SECRET": secret}, stdin=b"in\n",
        )  # fmt: skip
        assert [e.out.decode().strip() for e in exits] == [f"in\n{secret}0"] * len(self.nodes), exits

    def check_long_lines_and_open_ends_arrive_as_they_were(self) -> None:
        # Launchers that mix the streams of all ranks may split lines, insert labels, or add missing newlines.
        text = 'for n in 9000 3 70000; do head -c $n /dev/zero | tr "\\0" "$1"; echo; done; printf "%s" "$1$1"; printf "%s" "$1" >&2'
        exits = self._run(self._sh(text, "{rank}"), self.nodes, 2, expand_placeholders=True)
        for ended in exits:
            digit = str(ended.rank).encode()
            assert ended.out == b"".join(digit * n + b"\n" for n in (9000, 3, 70000)) + digit * 2, ended
            assert ended.err == digit, ended

    def check_blanks_and_marks_of_launchers_arrive_as_they_were(self) -> None:
        text = 'printf "%200000s\\n" ""; printf "\\036{}\\036\\n[1,0]\\n"'
        for ended in self._run(self._sh(text), self.nodes, 2):
            assert ended.code == 0, ended
            assert ended.out == b" " * 200_000 + b"\n\x1e{}\x1e\n[1,0]\n", ended

    def check_working_folder_is_taken(self) -> None:
        [ended] = self._run(["pwd"], self.nodes[:1], cwd="/usr")
        assert ended.out == b"/usr\n", ended

    def check_deadline_ends_the_command_on_its_node(self) -> None:
        mark = f"{self.there}-alive"
        # At the deadline, background processes of the command must end, too.
        text = 'mkdir -p "$(dirname "$1")"; (while :; do date +%s%N > "$1.new"; mv "$1.new" "$1"; sleep 0.1; done) & sleep 300'
        began = time.monotonic()
        [ended] = self._run(self._sh(text, mark), self.nodes[-1:], timeout_s=3)
        assert time.monotonic() - began < 3 + 20, "the call took longer than its deadline"
        assert ended.code is None
        assert isinstance(ended.fault, Deadline), ended
        assert self.nodes[-1].name in str(ended.fault)
        self._still(mark)

    def _still(self, mark: str) -> None:
        """Check that no process on the last node is still writing the file `mark`."""
        output = []
        for _ in range(2):
            [ended] = self._run(["cat", mark], self.nodes[-1:])
            output.append(ended.out)
            time.sleep(0.5)
        assert output[0], "the command did not start"
        assert output[0] == output[1], "the command runs on after its end"

    def check_what_stands_around_a_rank_is_its_own(self) -> None:
        rank_prefix = RankPrefix(argv=("env", "SUITE_AROUND={rank}-{node}"))
        exits = self._run(self._sh('echo "$SUITE_AROUND {rank}"'), self.nodes, 2, rank_prefix=rank_prefix)
        # Placeholders in the prefix are always expanded. Placeholders in the command are expanded only with
        # `expand_placeholders`.
        output = [e.out.decode() for e in exits]
        assert output == [f"{e.rank}-{e.node} {{rank}}\n" for e in exits], exits

    def check_what_ends_a_container_is_run_at_its_deadline(self) -> None:
        mark = f"{self.there}-ended"
        rank_prefix = RankPrefix(
            argv=("env",), cleanup_argv=("sh", "-c", 'mkdir -p "$(dirname "$1")"; : > "$1"', "sh", mark + "-{rank}")
        )
        [ended] = self._run(["sleep", "300"], self.nodes[-1:], timeout_s=2, rank_prefix=rank_prefix)
        assert isinstance(ended.fault, Deadline), ended
        assert self._run(["cat", f"{mark}-0"], self.nodes[-1:])[0].code == 0
        assert (
            self._run(["true"], self.nodes[-1:], rank_prefix=RankPrefix(cleanup_argv=("touch", f"{mark}-1")))[0].code
            == 0
        )
        assert self._run(["cat", f"{mark}-1"], self.nodes[-1:])[0].code == 1

    def check_lines_arrive_while_the_command_runs(self) -> None:
        received: list[tuple[str, int, str, bytes]] = []
        first = threading.Event()

        def on_line(node: str, rank: int, stream: str, line: bytes) -> None:
            received.append((node, rank, stream, line))
            first.set()

        gate = f"{self.there}-gate"
        text = 'echo begun; n=0; while [ ! -e "$1" ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done; [ -e "$1" ] && echo ended'
        runner = threading.Thread(target=lambda: self._run(self._sh(text, gate), self.nodes[:1], on_line=on_line))
        runner.start()
        assert first.wait(_LIMIT_S), "no output arrived"
        self._run(self._sh('mkdir -p "$(dirname "$1")"; : > "$1"', gate), self.nodes[:1])
        runner.join(_LIMIT_S)
        assert [line for *_, line in received] == [b"begun", b"ended"], received
        assert {entry[:3] for entry in received} == {(self.nodes[0].name, 0, "out")}

    def check_copies_are_whole_and_come_back(self) -> None:
        source = self.here / "suite-src"
        (source / "sub folder").mkdir(parents=True, exist_ok=True)
        body = os.urandom(3_000_000)
        (source / "sub folder" / "é x").write_bytes(body)
        (source / "run").write_text("#!/bin/sh\necho ran\n")
        (source / "run").chmod(0o755)
        on = self.nodes[:1] if self.is_shared else self.nodes
        for _ in range(2):  # the second copy replaces the first
            exits = self.launcher.copy(source, f"{self.there}/tree", on, timeout_s=_LIMIT_S)
            assert [e.code for e in exits] == [0] * len(on), exits
        exits = self._run([f"{self.there}/tree/run"], on)
        assert [e.out for e in exits] == [b"ran\n"] * len(on), exits
        for node in on:
            back = self.here / f"back-{uuid4().hex[:6]}"
            assert self.launcher.fetch(f"{self.there}/tree", back, node, timeout_s=_LIMIT_S).code == 0
            assert (back / "sub folder" / "é x").read_bytes() == body
        gone = self.launcher.fetch(f"{self.there}/nothing", self.here / "nothing", on[0], timeout_s=_LIMIT_S)
        assert gone.code != 0
        assert not (self.here / "nothing").exists()

    def check_calls_that_cannot_be_are_refused(self) -> None:
        for argv, on in (([], self.nodes), (["true"], [])):
            try:
                self._run(argv, on)
            except PenstockError:
                continue
            raise AssertionError(f"run({argv}, {on}) was accepted")

    def check_line_is_a_list_that_holds_the_command(self) -> None:
        lines = self.launcher.line(RunRequest(["hostname", "a b"], self.nodes))
        assert all(isinstance(arg, str) for line in lines for arg in line)
        assert all(any("hostname" in arg for arg in line) for line in lines), lines
