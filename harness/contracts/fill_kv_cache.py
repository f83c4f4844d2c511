"""fill_kv_cache_blocked_fp8: states of new tokens -> FP8 codes and float32 scales in their slots of a paged cache.

Promise (bytes): in the slots of the new tokens, scales follow harness/oracles/kv_cache.py in every bit, and every code
follows from a quotient at most 2 ulp from correctly rounded (the GPU's `div.full.f32`), exactly where division is exact
(the cpu lane, and every ue8m0 scale). A group is made of its own elements alone. Every other byte of the caches, and
everything between and beside them, stays what it was. NaN and infinities follow the observed table.
Comparator: the oracle; for subjects other than stock, stock in the same environment as well, where it does not deviate.
"""
from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import torch

from harness.contracts import bad_calls, bad_input, deviations, values
from harness.contracts.case import SM90_ONLY, Case
from harness.contracts.formats import EVERY_FORMAT, TWO_FORMATS, QuantFormat
from harness.contracts.kv_cache_inputs import Geometry, Paged, division_edges, loud_start, noise, paged, place_caches
from harness.contracts.quant_fp8 import PATTERNS, PLACES
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bits import describe, from_numpy_bits, storage_numpy, to_numpy_bits
from harness.evidence.compare import compare_bytes
from harness.evidence.log import EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.oracles import kv_cache as oracle
from harness.subjects.protocol import Subject

OPERATOR = 'fill_kv_cache_blocked_fp8'
BLOCK = 16
FORMERS = ('k_codes', 'k_scales', 'v_codes', 'v_scales', 'rest')

HISTORIES = {0: 'an empty cache', 1: 'one slot taken', BLOCK - 1: 'one slot left in the page', BLOCK: 'a full page',
             BLOCK + 1: 'one slot past a full page'}
_PREFILL = Geometry(((0, 17), (15, 1), (16, 16), (1, 15)))
_DECODE = Geometry(tuple((history, 1) for history in (0, 15, 16, 33)))
_MIXED = Geometry(((15, 1), (3, 18), (16, 1)), heads=1)
_ONE = Geometry(((15, 18), ), heads=1)

# Name -> (why, geometry).
_BATCHES = {
    'prefill': ('sequences that start, end and cross at every kind of page boundary', _PREFILL),
    'decode': ('one token a sequence, at every kind of page boundary', _DECODE),
    'mixed': ('decoding sequences beside prefill', replace(_MIXED, heads=2)),
    'decode_padding': ('a decode batch filled up with sequences without keys: they own nothing',
                       Geometry(((16, 1), (-1, 1), (3, 1), (-1, 1)))),
    'decode_hole': ('a decode batch with a sequence of no key and no token in between: tokens are no longer numbered '
                    'like sequences', Geometry(((16, 1), (0, 0), (3, 1)))),
    'two_tokens': ('two tokens a sequence, the fewest that are no decode', Geometry(((15, 2), (4, 2)))),
    'empty_sequences': ('sequences with history but without new tokens', Geometry(((5, 0), (0, 18), (16, 0)))),
    'loose_max_q': ('a launcher told of a longer sequence than there is', replace(_ONE, max_q=64)),
    'no_sequences': ('B = 0: nothing is written', Geometry(((0, 0), ))),
    'mixed_bhsd': ('heads outside slots', replace(_MIXED, heads=3, layout='bhsd')),
    'decode_bhsd': ('heads outside slots, one token a sequence', replace(_DECODE, layout='bhsd')),
    'v_none': ('no values', replace(_MIXED, head_dim_v=None)),
    'shared_v': ('the value cache is a part of the key cache: only keys are written',
                 replace(_ONE, head_dim=256, memory='shared_v')),
    'packed': ('codes, scales and other bytes of a slot in one buffer, as MLA keeps them',
               replace(_MIXED, heads=1, head_dim=512, head_dim_v=None, memory='packed')),
    'packed_decode': ('the same, one token a sequence',
                      replace(_DECODE, heads=1, head_dim=512, head_dim_v=None, memory='packed')),
    'pitched_caches': ('gaps after every head and page of the caches', replace(_MIXED, memory='pitched')),
    'pitched_caches_bhsd': ('the same, heads outside slots', replace(_ONE, heads=2, memory='pitched', layout='bhsd')),
    'one_slot_pages': ('pages of one slot', replace(_ONE, lengths=((1, 5), ), block=1)),
    'large_pages': ('pages of 64 slots', replace(_ONE, lengths=((63, 66), ), block=64)),
    'three_heads': ('heads no power of two', replace(_ONE, heads=3)),
    'head_dim_96': ('head dimension under the group, no power of two', replace(_ONE, head_dim=96)),
    'head_dim_512': ('four groups a head, one for values', replace(_ONE, head_dim=512)),
    'head_dim_v_256': ('values longer than keys, in two heads', replace(_ONE, heads=2, head_dim_v=256)),
    'group_64': ('two groups of 64 a head, one for values', replace(_ONE, group=64, head_dim_v=64)),
    'head_dim_192-off_group': ('a last group of 64 keys', replace(_ONE, head_dim=192)),
    'head_dim_576-off_group': ('a last group of 64 keys after four whole ones',
                               replace(_ONE, heads=1, head_dim=576, head_dim_v=512)),
    'head_dim_v_320-off_group': ('a last group of 64 values', replace(_ONE, head_dim_v=320)),
}


def _case(fmt: QuantFormat, name: str, why: str, geometry: Geometry, states=noise, lanes=None, layout=None,
          integers: torch.dtype = torch.int32, nonfinite: bool = False, **needs) -> Case:

    def build(device: torch.device) -> Paged:
        found = paged(fmt, geometry, *states(fmt, geometry), device, integers)
        return Paged(layout(found.tensors)) if layout else found

    options = {**fmt.options(), **asdict(geometry), 'nonfinite': nonfinite, **needs}
    extra = {} if lanes is None else {'lanes': lanes}
    return Case(OPERATOR, f'{fmt.id.removesuffix("-row")}-{name}', why, build, options=options, **extra)


def _pattern_case(fmt: QuantFormat, function, why: str) -> Case:
    """A catalogue of groups as keys: one head of one group a token, pages so large that the interpreter has few."""
    bits = function(fmt.storage_format, fmt.fp8_format).reshape(-1, 1, values.GROUP)
    block = min(256, 1 << (len(bits) + 2).bit_length())
    geometry = Geometry(((3, len(bits)), ), heads=1, head_dim_v=None, block=block)
    return _case(fmt, function.__name__, why, geometry, lambda f, g: (bits, None),
                 nonfinite=function in (values.nan, values.nan_positions, values.infinities))


def _fused_states(tensors: dict) -> dict:
    """Keys and values as parts of one projection's output."""
    joined = torch.cat([tensors['k_states'], tensors['v_states'], tensors['k_states']], dim=1)
    heads = tensors['k_states'].size(1)
    return tensors | {'k_states': joined[:, :heads], 'v_states': joined[:, heads:2 * heads]}


def _wide_table(tensors: dict) -> dict:
    table = tensors['block_offsets']
    return tensors | {'block_offsets': torch.cat([table, torch.zeros_like(table)], dim=1)[:, :table.size(1)]}


def _catalogue() -> tuple[Case, ...]:
    cases = [_pattern_case(fmt, function, why) for fmt in EVERY_FORMAT for function, why in PATTERNS.items()]
    cases += [_pattern_case(fmt, division_edges, 'values at which a reciprocal gives another code than the division')
              for fmt in EVERY_FORMAT if fmt.scale_fmt is None]
    for fmt in TWO_FORMATS:
        cases += [_pattern_case(fmt, function, why) for function, why in PLACES.items()]
        for history, why in HISTORIES.items():
            for name, tokens in (('prefill', 18), ('decode', 1)):
                cases.append(_case(fmt, f'history_{history}_{name}', f'{name} after {why}',
                                   Geometry(((history, tokens), ), heads=1)))
        cases += [_case(fmt, name, why, geometry, loud_start if name.endswith('-off_group') else noise)
                  for name, (why, geometry) in _BATCHES.items()]
        cases.append(_case(fmt, 'fused_states', 'keys and values inside one projection\'s output', _MIXED,
                           layout=_fused_states))
        cases.append(_case(fmt, 'wide_table', 'a page table inside a wider one', _MIXED, layout=_wide_table))
        cases.append(_case(fmt, 'int64', 'lengths and pages as int64', _MIXED, integers=torch.int64))
        cases.append(_case(fmt, 'int64_decode', 'the same, one token a sequence', _DECODE, integers=torch.int64))
        cases.append(_case(fmt, 'far_pages', 'pages past 2^31 codes from the first',
                           replace(_ONE, lengths=((0, 40), ), head_dim_v=None, memory='far'), lanes=SM90_ONLY,
                           memory_gib=20))
    for fmt in EVERY_FORMAT:
        cases.append(_case(fmt, 'many_ordinary', 'a million values: a wrong division shows in one of a thousand',
                           Geometry(((5, 4096), ), block=64), lanes=SM90_ONLY))
    return tuple(cases)


CASES = _catalogue() + bad_input.cases(OPERATOR, bad_calls.FILL_KV_CACHE)


def geometry_of(case: Case) -> Geometry:
    return Geometry(**{name: case.options[name] for name in Geometry.__dataclass_fields__})


def fill(subject: Subject, options: dict, geometry: Geometry, tensors: dict) -> dict[str, torch.Tensor]:
    """Caches with their former contents, after `subject` filled them: k_codes, k_scales, v_codes, v_scales, rest."""
    caches = place_caches(geometry, options['codes'], {name: tensors[name] for name in FORMERS if name in tensors})
    v_codes = caches.get('v_codes')
    if geometry.memory == 'shared_v':
        v_codes = caches['k_codes'][..., :geometry.head_dim_v]
    subject.fill_kv_cache_blocked_fp8(
        tensors['k_states'], tensors.get('v_states'), caches['k_codes'], v_codes, caches['k_scales'],
        caches.get('v_scales'), tensors['cu_seqlen_q'], tensors['kv_seqlens'], geometry.longest,
        tensors['block_offsets'], geometry.group, geometry.layout, options['scale_fmt'])
    return caches


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    if bad_input.is_bad(case):
        bad_input.judge(case, subject, setting, log)
        return
    tensors, geometry = case.build(setting.device).tensors, geometry_of(case)
    deviation = deviations.find(OPERATOR, case.id)

    def operator(given):
        return fill(subject, case.options, geometry, given)

    judged = _Judged(case, geometry, tensors, setting, log)
    found = trial.run(log, f'{subject.name} {OPERATOR}', operator, tensors, judged.context, judged.changed())
    if subject is not setting.stock and deviation is None:
        stock = fill(setting.stock, case.options, geometry, tensors)
        for name, cache in found.items():
            compare_bytes(log, f'{name}: {subject.name} against stock', name, cache, stock[name], judged.context)
    if subject is setting.stock and deviation is not None:
        judged.against_oracle(found, 'owned slots as the wrapped maximum leaves them', wraps=True)
    judged.against_oracle(found)


class _Judged:
    """One case's caches and the truth about them."""

    def __init__(self, case: Case, geometry: Geometry, tensors: dict, setting: Setting, log: EvidenceLog):
        self.options, self.geometry, self.tensors, self.log = case.options, geometry, tensors, log
        exact = setting.exact_division or case.options['scale_fmt'] == 'ue8m0'
        self.allowed = 0 if exact else oracle.DIVISION_ULPS
        numbers = [tensors[name].cpu().numpy() for name in ('cu_seqlen_q', 'kv_seqlens', 'block_offsets')]
        self.slots = oracle.owned_slots(*numbers, geometry.block)
        self.context = setting.context(inputs_at=self.inputs_at)

    def changed(self) -> dict[str, torch.Tensor]:
        """The same batch on other pages with other states, and in a decode batch with other lengths."""
        tensors, pages = self.tensors, self.geometry.pages
        changed = {name: torch.roll(tensor, (1, 1), (1, 2)) if name.endswith('states') else tensor
                   for name, tensor in tensors.items()}
        changed['block_offsets'] = (tensors['block_offsets'] + 1) % pages
        if self.geometry.longest == 1:
            changed |= {name: torch.roll(changed[name], 1, 0) for name in ('kv_seqlens', 'block_offsets')}
        return changed

    def inputs_at(self, name: str, index: tuple[int, ...]) -> list[str]:
        page, slot, head = index[0], *(index[1:3] if self.geometry.layout == 'bshd' else index[2:0:-1])
        owner = np.flatnonzero((self.slots.page == page) & (self.slots.slot == slot))
        states = self.tensors.get(f'{name[0]}_states')
        if not len(owner) or states is None or name == 'rest':
            return [f'page {page}, slot {slot}, head {head} belongs to no new token: it must stay as it was']
        token = int(self.slots.token[owner[0]])
        column = index[3] * self.geometry.group if name.endswith('scales') else index[3]
        return [f'x        {describe(states, (token, head, column))}   of token {token}, head {head}, column {column}']

    def against_oracle(self, found: dict, owned_slots: str = 'owned slots against the oracle',
                       wraps: bool = False) -> None:
        """Owned slots as the oracle has them, everything else as it was. Raises ContractBroken."""
        how = oracle.Quantisation(self.options['codes'], self.options['scale_fmt'], self.geometry.group, wraps)
        for name in found:
            expected = self.tensors[name].cpu().numpy().copy()
            # Values that share the keys' memory are not written, and neither are their scales.
            written = name[0] == 'k' or (name[0] == 'v' and self.geometry.memory != 'shared_v')
            if written and len(self.slots.token):
                states = storage_numpy(self.tensors[f'{name[0]}_states'])[self.slots.token]
                owned = (oracle.scales(states, how) if name.endswith('scales')
                         else self._codes(name, found, states, how))
                self.geometry.logical(expected)[self.slots.page, self.slots.slot] = owned
            target = from_numpy_bits(expected.view(f'u{expected.itemsize}'), found[name].dtype, found[name].device)
            compare_bytes(self.log, f'{name}: {owned_slots}, the others unchanged', name, found[name], target,
                          self.context, Reason.NONFINITE_TABLE if self.options['nonfinite'] else Reason.BYTES)

    def _codes(self, name, found, states, how) -> np.ndarray:
        """What was found where the division's error explains it, the oracle's code elsewhere."""
        observed = self.geometry.logical(to_numpy_bits(found[name]))[self.slots.page, self.slots.slot]
        exact = oracle.codes(states, how)
        explained = oracle.explained(observed, states, how, self.allowed)
        self.log.add(Record('conformance', f'{name}: codes within the error of division', observed.size,
                       int((observed != exact).sum()), detail={'unit': 'ulp', 'allowed': self.allowed}))
        return np.where(explained, observed, exact)
