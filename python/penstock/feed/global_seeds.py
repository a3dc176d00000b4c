# SPDX-License-Identifier: Apache-2.0
"""Seeds the global random generators of `random`, NumPy and torch for each sample."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = ["drew_since", "seed_all", "torch_seeding"]


class _TorchSeeding:
    """Import hook that seeds torch if a function is the first to import it. Without the hook, torch would not be seeded
    for that sample.

    While functions run, the hook is in `sys.meta_path` until torch is imported.
    """

    seed = 0

    def watch(self, seed: int) -> None:
        self.seed = seed
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def end(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "torch":
            return None
        self.end()
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                module.manual_seed(self.seed)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


torch_seeding = _TorchSeeding()


def seed_all(seed: int) -> None:
    """Seed all global generators. If torch is not imported yet, its generators are seeded when it is imported."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is None:
        torch_seeding.watch(seed)
    elif torch.cuda.is_initialized():
        torch.manual_seed(seed)
    else:
        # Do not call `torch.manual_seed`: before CUDA is initialised, each call formats a stack trace and stores it in
        # a list.
        torch.default_generator.manual_seed(seed)


def drew_since(seed: int) -> bool:
    """Return whether a global generator was used after it was seeded with `seed`. Seeds all generators again."""
    before = _states()
    seed_all(seed)
    return before != _states()


def _states() -> list[Any]:
    import random

    import numpy as np

    torch = sys.modules.get("torch")
    return [random.getstate(), repr(np.random.get_state()), None if torch is None else torch.get_rng_state().tolist()]
