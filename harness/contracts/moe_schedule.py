"""moe_schedule: which kernel, with which tile, each projection of the layer is launched with. Nothing is launched.

Promise (observed): the table below, one row on each side of every boundary of 0.18.0's dispatch, derived by hand from
its source. The tile decides which matrix instruction adds, and so the bits: another tile has MOVED. Promise (bytes):
the gate/up projection takes a route's row from its token and stores in the order of sorted routes, the down projection
the other way round; anything else mixes up tokens. Comparator: the table.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.contracts.case import Case
from harness.contracts.setting import Setting
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.subjects.protocol import Subject

OPERATOR = 'moe_schedule'
ROWS = ('top_k', 'reindex_a', 'reindex_c')


@dataclass(frozen=True)
class Shape:
    """What the dispatch looks at: as the arguments of `Subject.moe_schedule`."""

    tokens: int
    top_k: int = 8
    num_experts: int = 256
    local_experts: int = 256
    expert_offset: int = 0
    hidden_size: int = 7168
    intermediate: int = 256


@dataclass(frozen=True)
class Launch:
    """The kernel and tile of one projection."""

    operator: str
    block_m: int
    block_n: int = 128
    transpose_mma: bool = False


def dense(block_m: int) -> Launch:
    return Launch('grouped_gemm', block_m)


def blocks(block_m: int, block_n: int = 128, transposed: bool = False) -> Launch:
    return Launch('grouped_gemm_blocks', block_m, block_n, transposed)


def _narrow(tokens: int, experts: int = 256, **more) -> Shape:
    return Shape(tokens, num_experts=experts, local_experts=experts, **more)


_TURNED = blocks(16, transposed=True)
# id -> (why, shape, gate/up, down). "a" below is the average of routes an expert, rounded up.
TABLE: dict[str, tuple[str, Shape, Launch, Launch]] = {
    # Fewer than 256 experts: per expert always; tokens decide about the gate, a about the down projection.
    'dense-a1': ('decode of one token', _narrow(1, 128), dense(64), dense(16)),
    'dense-a16': ('a 16: the smallest down tile', _narrow(16, 8), dense(64), dense(16)),
    'dense-a17': ('a 17: the next', _narrow(17, 8), dense(64), dense(32)),
    'dense-a32': ('a 32: the last of 32', _narrow(32, 8), dense(64), dense(32)),
    'dense-a33': ('a 33: the decode\'s largest', _narrow(33, 8), dense(64), dense(64)),
    'dense-tokens_64': ('the last decode', _narrow(64, 128), dense(64), dense(16)),
    'dense-tokens_65': ('the first prefill: both tiles grow', _narrow(65, 128), dense(128), dense(64)),
    'dense-prefill_a32': ('a 32 in prefill', _narrow(512, 128), dense(128), dense(64)),
    'dense-prefill_a33': ('a 33 in prefill', _narrow(513, 128), dense(128), dense(128)),
    # gate/up 512 wide, H 7168 (k blocks past 48): compact from a 2 to a 48.
    'narrow-tokens_32': ('a 1: too few routes', Shape(32), dense(64), dense(16)),
    'narrow-tokens_33': ('a 2: compact, the gate turned over', Shape(33), _TURNED, blocks(16, 64)),
    'narrow-a3': ('a 3 alone has wide down tiles', Shape(96), _TURNED, blocks(16)),
    'narrow-a4': ('a 4 has not', Shape(97), _TURNED, blocks(16, 64)),
    'narrow-a8': ('a 8: the last of 16 rows', Shape(256), _TURNED, blocks(16, 64)),
    'narrow-a9': ('a 9: 32 rows', Shape(257), blocks(32, transposed=True), blocks(32)),
    'narrow-a16': ('a 16: the last of 32 rows', Shape(512), blocks(32, transposed=True), blocks(32)),
    'narrow-a17': ('a 17: 64 rows, nothing turned over', Shape(513), blocks(64), blocks(64)),
    'narrow-a32': ('a 32 is no boundary here', Shape(1024), blocks(64), blocks(64)),
    'narrow-a33': ('a 33 neither', Shape(1025), blocks(64), blocks(64)),
    'narrow-a48': ('a 48: the last that is compact in both', Shape(1536), blocks(64), blocks(64)),
    'narrow-a49': ('a 49: the gate goes back', Shape(1537), dense(128), blocks(64)),
    'narrow-experts_255': ('one expert fewer than compact needs', _narrow(65, 255), dense(128), dense(64)),
    'narrow-k_48': ('H 6144, the least with this rule', _narrow(33, hidden_size=6144), _TURNED, blocks(16, 64)),
    'narrow-k_47': ('H 6016: between the rules, per expert', _narrow(65, hidden_size=6016), dense(128), dense(64)),
    # gate/up 512 wide, H at most 3072: compact past 64 tokens.
    'short-tokens_64': ('a decode is never compact at H 2048', Shape(64, hidden_size=2048), dense(64), dense(16)),
    'short-tokens_65': ('past 64 tokens it is, 64 rows whatever a is', Shape(65, hidden_size=2048), blocks(64),
                        blocks(64)),
    'short-a64': ('a 64: the last', Shape(2048, hidden_size=2048), blocks(64), blocks(64)),
    'short-a65': ('a 65: the down projection alone, larger', Shape(2049, hidden_size=2048), dense(128), blocks(128)),
    'short-experts_255': ('one expert fewer', _narrow(65, 255, hidden_size=2048), dense(128), dense(64)),
    'short-k_24': ('H 3072, the most with this rule', Shape(65, hidden_size=3072), blocks(64), blocks(64)),
    'short-k_25': ('H 3200: per expert', Shape(65, hidden_size=3200), dense(128), dense(64)),
    # gate/up 512 wide, H 4096: compact up to a 64 with no lower end, and from 140 to 160.
    'k32-one_token': ('one token is compact already', Shape(1, hidden_size=4096), _TURNED, blocks(16, 64)),
    'k32-a64': ('a 64', Shape(2048, hidden_size=4096), blocks(64), blocks(64)),
    'k32-a65': ('a 65', Shape(2049, hidden_size=4096), dense(128), blocks(128)),
    'k32-a139': ('a 139: before the second band', Shape(4448, hidden_size=4096), dense(128), blocks(128)),
    'k32-a140': ('a 140: inside', Shape(4449, hidden_size=4096), blocks(64), blocks(64)),
    'k32-a160': ('a 160: inside', Shape(5120, hidden_size=4096), blocks(64), blocks(64)),
    'k32-a161': ('a 161: behind', Shape(5121, hidden_size=4096), dense(128), blocks(128)),
    'k31': ('H 3968: per expert', Shape(65, hidden_size=3968), dense(128), dense(64)),
    'k33': ('H 4224: per expert', Shape(65, hidden_size=4224), dense(128), dense(64)),
    # gate/up at least 1024 wide.
    'wide-a1': ('a 1', Shape(32, intermediate=512), dense(64), dense(16)),
    'wide-a2': ('a 2: 64 rows at once', Shape(33, intermediate=512), blocks(64), blocks(64)),
    'wide-a48': ('a 48, the last at H above 3072', Shape(1536, intermediate=512), blocks(64), blocks(64)),
    'wide-a49': ('a 49', Shape(1537, intermediate=512), dense(128), blocks(64)),
    'wide-short_a64': ('a 64, the last at H 3072', Shape(2048, hidden_size=3072, intermediate=512), blocks(64),
                       blocks(64)),
    'wide-short_a65': ('a 65', Shape(2049, hidden_size=3072, intermediate=512), dense(128), blocks(128)),
    'wide-896': ('seven column tiles: no rule', Shape(65, intermediate=384), dense(128), dense(64)),
    'thin-256': ('two column tiles: no rule', Shape(65, intermediate=128), dense(128), dense(64)),
    # The down projection alone is compact where that saves enough programs, from 512 tokens on.
    'down-tokens_511': ('511 tokens of 512 experts', _narrow(511, 512, intermediate=128), dense(128), dense(64)),
    'down-tokens_512': ('512 tokens: a quarter of the programs is enough', _narrow(512, 512, intermediate=128),
                        dense(128), blocks(64)),
    'down-experts_511': ('511 experts ask for a sixteenth', _narrow(512, 511, intermediate=128), dense(128),
                         dense(64)),
    'down-sixteenth': ('a sixteenth of the programs at H 4096', Shape(1024, hidden_size=4096, intermediate=128),
                       dense(128), blocks(64)),
    'down-a36': ('a 36: larger tiles per expert, fewer are saved',
                 Shape(1024, 9, hidden_size=4096, intermediate=128), dense(128), dense(128)),
    'down-short': ('H below 4096 asks for a thirty-second', Shape(1024, hidden_size=3968, intermediate=128),
                   dense(128), dense(64)),
    'down-a63': ('a 63: 64 rows', Shape(2016, hidden_size=4096, intermediate=128), dense(128), blocks(64)),
    'down-a64': ('a 64: 128 rows', Shape(2017, hidden_size=4096, intermediate=128), dense(128), blocks(128)),
    # Expert parallel: 256 experts of 512. Never compact in both; a counts all experts.
    'slice-decode': ('a slice in decode', Shape(64, num_experts=512, expert_offset=256), dense(64), dense(16)),
    'slice-prefill': ('a slice in prefill: the down projection alone', Shape(1024, num_experts=512, expert_offset=256),
                      dense(128), blocks(64)),
    'slice-255': ('255 experts of 512', Shape(1024, num_experts=512, local_experts=255), dense(128), dense(64)),
}


def _case(name: str, why: str, shape: Shape, gate_up: Launch, down: Launch) -> Case:
    rows = ({'top_k': shape.top_k, 'reindex_a': True, 'reindex_c': False},
            {'top_k': 1, 'reindex_a': False, 'reindex_c': True})
    expected = {'gate_up': vars(gate_up) | rows[0], 'down': vars(down) | rows[1]}
    return Case(OPERATOR, name, why, lambda device: torch.tensor(list(vars(shape).values()), device=device),
                options={'shape': vars(shape), 'expected': expected})


CASES = tuple(_case(name, *row) for name, row in TABLE.items())


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken: BYTES for rows, LATENT for a tile."""
    found = subject.moe_schedule(**case.options['shape'], device=setting.device)
    judge_schedule(log, f'{subject.name} {OPERATOR}', found, case.options['expected'], setting)


def judge_schedule(log: EvidenceLog, what: str, found: dict[str, dict], expected: dict[str, dict],
                   setting: Setting) -> None:
    """Both launches against what is expected of them; `expected` may leave out what it does not say."""
    for projection, wanted in expected.items():
        launch = found.get(projection, {})
        wrong = [name for name, value in wanted.items() if launch.get(name) != value]
        log.add(Record('table', f'{what}: {projection} is launched as the table says', len(wanted), len(wrong)))
        if wrong:
            lines = [f'  {name}: expected {wanted[name]!r}, found {launch.get(name)!r}' for name in wrong]
            rows = any(name in ROWS for name in wrong)
            raise ContractBroken(Reason.BYTES if rows else Reason.LATENT, '\n'.join(
                [f'{what}: {projection} is launched in another way than before', *lines,
                 f'reproduce: {setting.reproduce}']))
