"""lmdeploy's own kernel tests, from a checkout: which files of it are run, and what its tests are called.

A checkout lies anywhere, so that pytest's node ids of its tests would differ from machine to machine. Here they begin
with `upstream/` and go on with the path inside the checkout; a manifest can hold that, and the command line takes it.
"""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.lanes.lane import Lane

UPSTREAM = 'upstream'
_FOLDER = 'tests/pytorch/kernel'
# The kernels of the Block-FP8 MoE decode path. The folder's other files are about other kernels, and skip themselves
# where packages of theirs are absent.
FILES = tuple(f'{_FOLDER}/test_{name}.py' for name in (
    'activation', 'fill_kv_cache', 'fuse_moe_blocked_fp8', 'fused_moe', 'gemm_fp8', 'moe_route'))


class NoCheckout(ValueError):
    """The folder is no checkout of lmdeploy, or the lane cannot run its tests. The message says what was expected."""


def checkout_of(text: str) -> Path:
    """The checkout at `text`, absolute. Raises NoCheckout unless at least one of FILES is in it.

    A file of FILES that is absent is no fault here: its tests stand in the manifest, and go missing by name.
    """
    path = Path(text).resolve()
    if not path.is_dir():
        raise NoCheckout(f'--upstream: expected a checkout of lmdeploy, found no such folder: {text!r}')
    if not any((path / name).is_file() for name in FILES):
        found = sorted(entry.name for entry in path.iterdir())[:8]
        raise NoCheckout(f'--upstream: expected a checkout of lmdeploy with tests like {FILES[0]} in {path}, '
                         f'found {", ".join(found) or "an empty folder"}')
    return path


def require_gpu(lane: Lane) -> None:
    """Raises NoCheckout on the cpu lane: upstream's tests make CUDA tensors, of sizes for a GPU."""
    if lane is not Lane.SM90:
        raise NoCheckout(f"--upstream: expected lane sm90, found lane {lane.value}; upstream's tests make tensors on "
                         "'cuda', which is nowhere but on a GPU")


def is_upstream(nodeid: str) -> bool:
    """Whether a node id is that of one of upstream's tests (or of a file of them)."""
    return nodeid.startswith(f'{UPSTREAM}/')


def stable_id(path: Path, checkout: Path) -> str | None:
    """What the test file at `path` is called, wherever the checkout lies; None for a file that is not in it."""
    return f'{UPSTREAM}/{path.relative_to(checkout).as_posix()}' if path.is_relative_to(checkout) else None


def expand(arguments: Sequence[str], checkout: Path) -> list[str]:
    """pytest's positional arguments, with 'upstream' and 'upstream/PATH[::TEST]' as places in the checkout."""
    expanded: list[str] = []
    for argument in arguments:
        if argument == UPSTREAM:
            expanded += [str(checkout / name) for name in FILES if (checkout / name).is_file()]
        elif is_upstream(argument):
            expanded.append(str(checkout / argument.removeprefix(f'{UPSTREAM}/')))
        else:
            expanded.append(argument)
    return expanded
