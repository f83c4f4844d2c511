"""Known deviations of stock: what it does today where the contract says otherwise, kept as validated data.

Each is asserted as it was observed. One that changes or vanishes is red until somebody has looked and edits this list.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason


@dataclass(frozen=True)
class Deviation:
    """One finding.

    Attributes:
        finding: its number, for ever.
        operator, case: which case it concerns; `case` is the end of the case id.
        raises: the exception type that the call raises today; ContractBroken where it returns what breaks the promise.
        why: what happens inside, one sentence.
        shows: words that the error's text holds today: which promise is broken, and where.
    """

    finding: str
    operator: str
    case: str
    raises: type[Exception]
    why: str
    shows: str = ''

    def __post_init__(self):
        if not (self.finding.startswith('F') and self.finding[1:].isdigit()):
            raise ValueError(f'Deviation.finding: expected F and a number, found {self.finding!r}')
        if not self.why.strip():
            raise ValueError(f'Deviation.why: expected a reason for {self.finding}, found nothing')
        if self.raises is ContractBroken and not self.shows:
            raise ValueError(f'Deviation.shows: expected which promise {self.finding} breaks, found nothing')


def _bad(finding: str, why: str, shows: str, **calls: tuple[str, ...]) -> list[Deviation]:
    """What stock does with input that it should refuse: operator=(names of harness/contracts/bad_calls.py, ...)."""
    return [Deviation(finding, operator, f'bad-{name}', ContractBroken, why, shows)
            for operator, names in calls.items() for name in names]


_RESULT, _OUTSIDE, _ASSERTION, _DIVISION = ('found a result', 'wrote outside out', 'found AssertionError',
                                            'found ZeroDivisionError')
_GEMM_TAKES = ('codes_differ', 'k_differs', 'scales_bf16', 'ids_int64')
_BAD_INPUT = [
    *_bad('F30', 'dtypes are not looked at: whatever the kernel can compute is computed', _RESULT,
          silu_and_mul=('float32', 'integers', 'out_dtype'), quant_fp8=('float32', 'codes_float16'),
          moe_reduce=('integers', 'weights_int64'),
          fill_kv_cache_blocked_fp8=('cache_dtype', 'cache_dtypes_differ', 'scale_dtype'),
          grouped_gemm=_GEMM_TAKES, grouped_gemm_blocks=_GEMM_TAKES),
    *_bad('F31', 'shapes are not held against each other: what does not fit is cut, or taken from a neighbour', _RESULT,
          silu_and_mul=('odd_width', 'out_overlap'), fill_kv_cache_blocked_fp8=('too_few_scales', 'fewer_heads')),
    *_bad('F32', 'an output of the caller\'s is taken for one of the right shape, and written behind its end', _OUTSIDE,
          silu_and_mul=('out_narrow', 'out_few_rows'), grouped_gemm=('out_narrow', 'out_few_rows'),
          grouped_gemm_blocks=('out_narrow', 'out_few_rows')),
    *_bad('F33', 'a bare assertion: no text, and gone under python -O', _ASSERTION,
          silu_and_mul=('three_dimensions', ),
          quant_fp8=('one_dimension', 'partial_group', 'scale_fmt', 'scale_fmt_case'),
          moe_reduce=('two_dimensions', 'weights_flat', 'weights_of_fewer_experts', 'weights_of_more_tokens'),
          fill_kv_cache_blocked_fp8=('scale_fmt', ), grouped_gemm=('a_three_dimensions', 'uneven_groups'),
          grouped_gemm_blocks=('a_three_dimensions', 'uneven_groups', 'block_wider_than_group',
                               'block_across_groups')),
    *_bad('F34', 'the group size is not looked at before it divides', _DIVISION, quant_fp8=('group_0', 'group_512')),
    *_bad('F34', 'the group size is not looked at before it divides', 'negative dimension -2',
          quant_fp8=('group_negative', )),
    *_bad('F34', 'the group size is not looked at before the kernel is compiled with it', 'power of 2',
          quant_fp8=('group_96', )),
    *_bad('F34', 'the group size is not looked at before the kernel is compiled with it', 'integer division or modulo',
          fill_kv_cache_blocked_fp8=('group_0', )),
    *_bad('F35', 'refused, but by an error that does not name the argument', 'Unsupported layout',
          fill_kv_cache_blocked_fp8=('layout', )),
    *_bad('F35', 'refused, but by an error that does not name the argument', 'requires a floating point input type',
          quant_fp8=('codes_uint8', )),
    *_bad('F35', 'refused, but by the compiler', 'unexpected type fp32', fill_kv_cache_blocked_fp8=('lengths_float', )),
    *_bad('F35', 'refused, but by the compiler', 'Unsupported rhs dtype', grouped_gemm=('codes_bf16', ),
          grouped_gemm_blocks=('codes_bf16', )),
    *_bad('F36', 'refused by the launcher, which knows the argument\'s number only', 'cannot be accessed from Triton',
          silu_and_mul=('out_on_host', ), moe_reduce=('weights_on_host', ), grouped_gemm=('out_on_host', ),
          grouped_gemm_blocks=('out_on_host', )),
    *_bad('F41', 'scales are read once a group of b\'s: with finer groups of a, every other one is left out', _RESULT,
          grouped_gemm=('finer_a_scales', ), grouped_gemm_blocks=('finer_a_scales', )),
    *_bad('F42', 'the dense launcher takes a tile that lies in several groups of columns, and one scale for all of it',
          _RESULT, grouped_gemm=('block_wider_than_group', 'block_across_groups')),
]
_ROUTING = ('sorted_routes', 'route_blocks')
STOCK_DEVIATIONS = (
    *_BAD_INPUT,
    Deviation('F1', 'quant_fp8', '-no_rows', ZeroDivisionError,
              'the launcher divides the row count by a grid of zero programs when M is 0'),
    *(Deviation('F21', operator, '-id_past_the_end', ContractBroken,
                'the counter of an expert that does not exist is incremented, behind the last counter',
                'wrote outside its output (8,) torch.int32: 1 bytes, first at byte offsets 32')
      for operator in _ROUTING),
    # The offsets depend on which atomic comes first: a position of 0 cannot be told from what was there.
    *(Deviation('F22', operator, 'parallel-id_minus_one', ContractBroken,
                'expert and lane are packed into one number and divided toward zero: the route is counted for expert 0 '
                'and its position stored before the start of the positions',
                'wrote outside its output (12,) torch.int32') for operator in _ROUTING),
    *(Deviation('F22', operator, 'single_cta-id_minus_one', ContractBroken,
                'the counter before the first counter is incremented',
                'wrote outside its output (8,) torch.int32: 1 bytes, first at byte offsets -4')
      for operator in _ROUTING),
    *(Deviation('F23', operator, '-id_past_32_bits', ContractBroken,
                'ids are cut to 32 bits: 2^32 + 3 is taken for expert 3', 'exp_start[4] is the first that differs')
      for operator in _ROUTING),
    *(Deviation('F24', operator, '-float_ids', ContractBroken, 'ids of any dtype are taken, and cut to integers',
                "expected a refusal that names 'topk_ids', found a result") for operator in _ROUTING),
    Deviation('F25', 'route_blocks', '-slice_past_the_end', ContractBroken,
              'the counts behind the last expert are read, and whatever stands there is cut into blocks',
              "expected a refusal that names 'expert_offset', found a result"),
    Deviation('F26', 'moe_reduce', '-output_past_2_31', ContractBroken,
              'a token is multiplied with its stride in 32 bits: past 2^31 elements it is read and written 2^32 '
              'elements before its place', 'against half of their states'),
    Deviation('F40', 'grouped_gemm', '-more_rows_than_tokens', ContractBroken,
              'the grid has room for next_power_of_2(max(64, tokens)) rows an expert, and tokens that name an expert '
              'several times give it more: the rest are not computed', 'rows 64 to 79 of 80, up to the end'),
    *(Deviation('F44', operator, '-far_rows', ContractBroken,
                'a row is multiplied with its stride in 32 bits: past 2^31 elements it is written 2^32 elements before '
                'its place', 'elements were written outside the row that has a route')
      for operator in ('grouped_gemm', 'grouped_gemm_blocks')),
    *(Deviation('F1', operator, case, ZeroDivisionError, 'programs are shared out among no experts, or among no rows')
      for operator, cases in (('silu_and_mul_moe_ep', ('-no_experts', '-no_experts-given')),
                              ('silu_and_mul_masked_post_quant_fwd', ('-no_rows-e4m3fn', '-no_experts-e4m3fn')))
      for case in cases),
    Deviation('F1', 'fused_moe_blocked_fp8', 'no_tokens', ZeroDivisionError,
              'the layer quantises the activation of its routes, of which there are none'),
    Deviation('F40', 'fused_moe_blocked_fp8', 'more_rows_than_tokens', ContractBroken,
              'the dense schedule computes next_power_of_2(max(64, tokens)) rows an expert; its other routes stay '
              'as they were allocated, and go into the output', 'the same call twice over different poison'),
    Deviation('F41', 'fused_moe_blocked_fp8', 'hidden_groups_64', ContractBroken,
              'the GEMMs step along K in groups of the weights and take one scale of the hidden codes for each step',
              'gate_up: stock fused_moe_blocked_fp8 against float64 given its codes'),
    Deviation('F20', 'fill_kv_cache_blocked_fp8', '-off_group', ContractBroken,
              'lanes past the head dimension load the head\'s first elements again, and these take part in the maximum '
              'of a last group that is not whole', 'owned slots against the oracle, the others unchanged'),
)


def find(operator: str, case_id: str) -> Deviation | None:
    """The deviation of stock that concerns a case, or None."""
    return next((d for d in STOCK_DEVIATIONS if d.operator == operator and case_id.endswith(d.case)), None)


def assert_deviates(log: EvidenceLog, deviation: Deviation, call: Callable[[], object], reproduce: str) -> None:
    """Call stock (and judge it, where it returns) and require that it deviates exactly as recorded.

    Raises:
        ContractBroken: BETTER if the call succeeds now, CRASH if it fails in another way.
    """
    try:
        call()
    except Exception as error:
        if isinstance(error, deviation.raises) and deviation.shows in str(error):
            log.add(Record('deviation', f'stock deviates as recorded in {deviation.finding}: {deviation.why}', 1))
            return
        raise ContractBroken(
            Reason.CRASH, f'{deviation.finding} changed: expected {deviation.raises.__name__} {deviation.shows!r}, '
            f'found {type(error).__name__}: {error}\nreproduce: {reproduce}') from error
    raise ContractBroken(Reason.BETTER, f'{deviation.finding} vanished: expected {deviation.raises.__name__} '
                         f'({deviation.why}), found a result; review and drop it from the list\nreproduce: {reproduce}')
