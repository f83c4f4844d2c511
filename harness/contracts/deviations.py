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


_ROUTING = ('sorted_routes', 'route_blocks')
STOCK_DEVIATIONS = (
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
    Deviation('F40', 'grouped_gemm', '-more_rows_than_tokens', ContractBroken,
              'the grid has room for next_power_of_2(max(64, tokens)) rows an expert, and tokens that name an expert '
              'several times give it more: the rest are not computed', 'rows 64 to 79 of 80, up to the end'),
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
