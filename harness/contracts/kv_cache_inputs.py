"""A batch for the FP8 KV fill, and the memory in which its caches lie."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from harness.contracts import values
from harness.contracts.formats import TORCH_CODES, TORCH_STORAGE, QuantFormat
from harness.contracts.values import GROUP
from harness.evidence.bits import from_numpy_bits
from harness.oracles.fp8 import Fp8
from harness.oracles.storage import Format

SPARE_PAGES = 2
NAN_TOKENS = 2
# Two steps of it lie past 2^31 codes.
FAR_PAGE_STRIDE = 2**30


@dataclass(frozen=True)
class Geometry:
    """Shapes of a batch and its caches.

    Attributes:
        lengths: (history, tokens) of every sequence; history -tokens makes it padding: it has no keys.
        heads, head_dim, head_dim_v, group: of the states; no values if head_dim_v is None.
        block: slots of a page. layout: 'bshd' or 'bhsd', of the caches.
        memory: 'separate', 'pitched' (gaps after every head and page), 'packed' (codes, scales and other bytes of a
            slot in one buffer, as MLA keeps them), 'shared_v' (the value cache is a part of the key cache) or 'far'.
        max_q: what the launcher is told of the longest sequence; the truth if None.
    """

    lengths: tuple[tuple[int, int], ...]
    heads: int = 2
    head_dim: int = 128
    head_dim_v: int | None = 128
    group: int = 128
    block: int = 16
    layout: str = 'bshd'
    memory: str = 'separate'
    max_q: int | None = None

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.lengths)

    @property
    def longest(self) -> int:
        return max((tokens for _, tokens in self.lengths), default=0) if self.max_q is None else self.max_q

    @property
    def pages_of(self) -> list[int]:
        """How many pages each sequence has."""
        return [-(-(history + tokens) // self.block) for history, tokens in self.lengths]

    @property
    def pages(self) -> int:
        return sum(self.pages_of) + SPARE_PAGES

    def groups(self, dim: int) -> int:
        return -(-dim // self.group)

    def physical(self, last: int) -> tuple[int, int, int, int]:
        """The shape of a cache whose last dimension is `last`."""
        inner = (self.block, self.heads) if self.layout == 'bshd' else (self.heads, self.block)
        return self.pages, *inner, last

    def logical(self, cache):
        """The view [page, slot, head, ...] of a cache (tensor or array) in this layout."""
        return cache if self.layout == 'bshd' else cache.swapaxes(1, 2)


@dataclass(frozen=True)
class Paged:
    """Inputs of one fill: named tensors as the operator gets them, and what the caches held before.

    Attributes:
        tensors: k_states [T, H, D], v_states [T, H, DV], cu_seqlen_q [B + 1], kv_seqlens [B], block_offsets [B, P], and
            the caches' former contents k_codes, k_scales, v_codes, v_scales (codes as uint8) and rest.
    """

    tensors: dict[str, torch.Tensor]


def noise(fmt: QuantFormat, geometry: Geometry) -> tuple[np.ndarray, np.ndarray | None]:
    """Ordinary states as uint16, K and V, with NaN tokens behind the last."""

    def states(name, dim):
        shape = (geometry.tokens, geometry.heads * dim)
        bits = values.noise(fmt.storage_format, f'kv/{name}/{shape}', shape, scale=2.0)
        nan = np.full((NAN_TOKENS, geometry.heads * dim), 0x7FFF, np.uint16)
        return np.concatenate([bits, nan]).reshape(-1, geometry.heads, dim)

    return states('k', geometry.head_dim), None if geometry.head_dim_v is None else states('v', geometry.head_dim_v)


@lru_cache(maxsize=4)
def division_edges(storage: Format, fp8: Fp8) -> np.ndarray:
    """Values whose code tells x / scale from x * (F / amax), quant_fp8's way, or from x * (1 / scale): uint16 [G, 128].

    One group for every maximum from 1 to 2 that has such values; searched in one factor of two below the maximum, since
    quotients and the edges between codes repeat with the powers of two. (No bf16 value tells the last one apart.)
    """
    largest = np.float32(fp8.maximum)
    below_two = (1 + np.arange(1 << storage.mantissa) / (1 << storage.mantissa)).astype(np.float32)
    groups = []
    for amax in below_two:
        scale = amax * np.float32(1 / fp8.maximum)
        x = np.where(below_two <= amax, below_two, below_two / 2)
        right, *wrong = (fp8.encode(np.minimum(quotient, largest))
                         for quotient in (x / scale, x * (largest / amax), x * (np.float32(1) / scale)))
        telling = x[(right != wrong[0]) | (right != wrong[1])]
        if len(telling):
            groups.append(np.concatenate([[amax], np.resize(telling, GROUP - 1)]))
    return storage.round(np.stack(groups))


def loud_start(fmt: QuantFormat, geometry: Geometry) -> tuple[np.ndarray, np.ndarray | None]:
    """Like `noise`, with the first half group of every head 32 times as large: it must not count in another group."""

    def louder(bits):
        if bits is None:
            return None
        start = bits[..., :geometry.group // 2]
        larger = fmt.storage_format.round(fmt.storage_format.decode(start) * 32)
        return np.concatenate([np.where(start == 0x7FFF, start, larger), bits[..., geometry.group // 2:]], axis=-1)

    return tuple(louder(bits) for bits in noise(fmt, geometry))


def paged(fmt: QuantFormat, geometry: Geometry, k: np.ndarray, v: np.ndarray | None, device: torch.device,
          integers: torch.dtype = torch.int32) -> Paged:
    """The batch of `geometry` with states k and v (uint16 [T, H, D])."""
    tokens = np.array([tokens for _, tokens in geometry.lengths], np.int64)
    history = np.array([history for history, _ in geometry.lengths], np.int64)
    numbers = {'cu_seqlen_q': np.concatenate([[0], tokens.cumsum()]), 'kv_seqlens': history + tokens,
               'block_offsets': _page_table(geometry)}
    tensors = {'k_states': from_numpy_bits(k, TORCH_STORAGE[fmt.storage], device)}
    if v is not None:
        tensors['v_states'] = from_numpy_bits(v, TORCH_STORAGE[fmt.storage], device)
    tensors |= {name: torch.from_numpy(array.astype(np.int64)).to(device, integers) for name, array in numbers.items()}
    formers = _formers(geometry)
    return Paged(tensors | {name: torch.from_numpy(former).to(device) for name, former in formers.items()})


def _page_table(geometry: Geometry) -> np.ndarray:
    """int64 [B, P]: pages in no order; entries behind a sequence's last page point at a spare page (a trap)."""
    order = np.argsort(values.raw(f'kv/pages/{geometry.pages}', geometry.pages), kind='stable')
    trap, free = order[0], list(order[SPARE_PAGES:])
    table = np.full((len(geometry.lengths), max(geometry.pages_of, default=0) + 1), trap, np.int64)
    for sequence, count in enumerate(geometry.pages_of):
        table[sequence, :count] = [free.pop() for _ in range(count)]
    return table


def _formers(geometry: Geometry) -> dict[str, np.ndarray]:
    """What the caches held before: bytes and scales that no fill would leave by accident."""

    def codes(name, dim):
        shape = geometry.physical(dim)
        count = int(np.prod(shape))
        return values.raw(f'kv/former/{name}', count // 2 + 1).view(np.uint8)[:count].reshape(shape)

    def scales(dim):
        shape = geometry.physical(geometry.groups(dim))
        return (-1000 - np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)

    formers = {'k_codes': codes('k', geometry.head_dim), 'k_scales': scales(geometry.head_dim)}
    if geometry.head_dim_v is not None:
        formers['v_scales'] = scales(geometry.head_dim_v)
        if geometry.memory != 'shared_v':
            formers['v_codes'] = codes('v', geometry.head_dim_v)
    if geometry.memory == 'packed':
        formers['rest'] = codes('rest', 16)
    return formers


def place_caches(geometry: Geometry, dtype: str, formers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Allocate caches of 'e4m3fn' or 'e5m2' codes, and fill them with what they held before."""
    fp8 = TORCH_CODES[dtype]
    if geometry.memory == 'packed':
        caches = _packed(formers, fp8)
    else:
        caches = {name: _empty(geometry.memory, name, former, fp8 if former.dtype == torch.uint8 else former.dtype)
                  for name, former in formers.items()}
    for name, former in formers.items():
        target = caches[name]
        (target.view(torch.uint8) if former.dtype == torch.uint8 else target).copy_(former)
    return caches


def _empty(memory: str, name: str, former: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    pages, outer, inner, last = former.shape
    if memory == 'pitched':
        head = last + 16
        stride = (outer * inner * head + 64, inner * head, head, 1)
    elif memory == 'far' and name == 'k_codes':
        stride = (FAR_PAGE_STRIDE, inner * last, last, 1)
    else:
        return torch.empty(former.shape, dtype=dtype, device=former.device)
    return torch.empty_strided(former.shape, stride, dtype=dtype, device=former.device)


def _packed(formers: dict[str, torch.Tensor], fp8: torch.dtype) -> dict[str, torch.Tensor]:
    """Codes, then scales, then other bytes of a slot's head, in one buffer of bytes."""
    codes, scales, rest = formers['k_codes'].size(-1), 4 * formers['k_scales'].size(-1), formers['rest'].size(-1)
    buffer = torch.empty((*formers['k_codes'].shape[:3], codes + scales + rest), dtype=torch.uint8,
                         device=formers['rest'].device)
    return {'k_codes': buffer[..., :codes].view(fp8), 'k_scales': buffer[..., codes:codes + scales].view(torch.float32),
            'rest': buffer[..., codes + scales:]}
