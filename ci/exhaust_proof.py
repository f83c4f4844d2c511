"""Running the parts of the proof in every format that was asked for, and keeping what they found."""
from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ci.court import Court, HarnessCourt
from ci.preflight import preflight
from ci.settings import SubjectSpec
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane, LaneRequest

if TYPE_CHECKING:  # at run time only after a lane was activated, which has to come before triton
    from harness.contracts.exhaustive.results import PartResult

CPU_SAMPLE = 128
OPERATOR = 'silu_and_mul_quant'
# The comparison's own kernel, launched in between: not what a proof speaks of.
_NOT_ON_TRIAL = frozenset({'_differing_groups_kernel'})


@dataclass(frozen=True)
class ExhaustRequest:
    """What to prove, in what formats, where.

    Attributes:
        lane, subject, lmdeploy_src: as asked for.
        parts: of 'a', 'b', 'floor', 'c', 'packed'.
        storages, codes, scale_fmts: every combination is visited.
        gates: bit patterns of part b.
        pair: (gate, up) bits: the only pair of part b; None for all.
        sample: groups to visit in each sampled part; None to visit everything, or the cpu lane's default.
        seed: of the sample.
        chunk_rows: rows of one chunk of part b.
    """

    lane: LaneRequest
    subject: SubjectSpec
    lmdeploy_src: Path | None
    parts: tuple[str, ...]
    storages: tuple[str, ...]
    codes: tuple[str, ...]
    scale_fmts: tuple[str | None, ...]
    gates: range
    pair: tuple[int, int] | None
    sample: int | None
    seed: int
    chunk_rows: int


@dataclass(frozen=True)
class Found:
    """One part in one format.

    Attributes:
        result: what the part found.
        machine_code: kernel -> instruction hashes that the result holds for; empty on the cpu lane.
    """

    result: PartResult
    machine_code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def line(self) -> str:
        """For people."""
        result = self.result
        state = 'holds' if result.reason is None else f'{result.reason.value}: {result.differing_groups} groups differ'
        if result.reason is Reason.BOUND:
            state = f'BOUND: {result.facts["worst_judged_steps"]} steps from float64'
        rate = result.visited * len(result.facts.get('partner_maxima', [0])) / max(result.seconds, 1e-9)
        return (f'{result.part:6} {result.format:22} {result.visited:>10} of {result.possible:>10} {result.unit:23} '
                f'{result.seconds:8.3f} s {rate:9.3g} a second  {state}')


@dataclass(frozen=True)
class Proof:
    """Everything that was found, or why nothing could be.

    Attributes:
        lane: None if the device does not serve the one asked for.
        environment: fingerprint of the machine.
        provenance: of the subject and of stock, where they were loaded.
        found: one per part and format.
        obstacle: (reason, explanation) if the proof could not be run, or not to its end.
    """

    lane: Lane | None
    environment: Mapping[str, Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    found: tuple[Found, ...] = ()
    obstacle: tuple[Reason, str] | None = None


class Watcher(Protocol):
    """Is told of the progress."""

    def begin(self, title: str) -> None:
        """A part begins."""

    def step(self, visited: int, possible: int) -> None:
        """So much of it is done."""

    def end(self, found: Found) -> None:
        """It is done."""


def prove(request: ExhaustRequest, watcher: Watcher, court: Court | None = None) -> Proof:
    """Run every part in every format. Activates the lane in this process. Raises nothing that a subject may cause to
    refuse: what stands in the way is told in the proof."""
    court = court or HarnessCourt()
    here = preflight(request.lane)
    if here.lane is None:
        return Proof(None, here.environment, obstacle=(Reason.WRONG_DEVICE, here.obstacle or 'no lane'))
    device = court.activate(here.lane)
    from harness.contracts.exhaustive.pairs import NoUnitGate
    from harness.evidence.differing_groups import ComparatorBlind
    from harness.subjects import SubjectRefused
    try:
        stock = court.load(SubjectSpec('stock'), request.lmdeploy_src)
        trial = court.load(request.subject, request.lmdeploy_src)
    except SubjectRefused as refused:
        return Proof(here.lane, here.environment, obstacle=(Reason.MISSING, str(refused)))
    provenance = {'trial': trial.provenance.as_dict(), 'stock': stock.provenance.as_dict()}
    if OPERATOR not in trial.offers():
        return Proof(here.lane, here.environment, provenance, obstacle=(
            Reason.NOTHING_SELECTED, f'{request.subject} does not offer {OPERATOR}'))
    found: list[Found] = []
    obstacle = None
    try:
        for each in _parts(request, here.lane, device, trial, stock, watcher):
            watcher.end(each)
            found.append(each)
            stock.require_pristine()
    except (ComparatorBlind, NoUnitGate) as error:
        obstacle = Reason.INFRA, f'{type(error).__name__}: {error}'
    except (Exception, SystemExit) as error:  # whatever the subject does, it does not end the judging process
        last = ''.join(traceback.format_exception_only(error)).strip()
        obstacle = Reason.CRASH, f'after {len(found)} parts, in the next: {last}'
    return Proof(here.lane, here.environment, provenance, tuple(found), obstacle)


def _parts(request: ExhaustRequest, lane: Lane, device, trial, stock, watcher: Watcher) -> Iterator[Found]:
    from harness.contracts.exhaustive.gates import every_gate
    from harness.contracts.exhaustive.sides import Sides
    from harness.contracts.formats import QuantFormat
    from harness.oracles.storage import FORMATS

    for storage in request.storages:
        if 'a' in request.parts:
            watcher.begin(f'a {storage}')
            yield _watched(lambda s=storage: every_gate(trial, stock, FORMATS[s], device))
        for codes in request.codes:
            for scale_fmt in request.scale_fmts:
                sides = Sides(trial, stock, QuantFormat(storage, codes, scale_fmt), device)
                for part in request.parts:
                    if part != 'a':
                        watcher.begin(f'{part} {sides.fmt.id}')
                        yield _watched(lambda p=part, s=sides: _part(request, lane, p, s, watcher))


def _part(request: ExhaustRequest, lane: Lane, part: str, sides, watcher: Watcher):
    from harness.contracts.exhaustive.pairs import BULK_ROWS, every_pair, one_pair, sampled_pairs
    from harness.contracts.exhaustive.plan import EVERY_PATTERN
    from harness.contracts.exhaustive.quantiser import every_value, sampled_values

    if part == 'b' and request.pair:
        return one_pair(sides, *request.pair)
    gates = request.gates if part == 'b' else EVERY_PATTERN
    sample = request.sample or (CPU_SAMPLE if lane is Lane.CPU else None)
    if part == 'c':
        return sampled_values(sides, sample, request.seed) if sample else every_value(sides, watcher.step)
    if sample:
        return sampled_pairs(sides, part, 2 * sample if part == 'b' else sample, request.seed, gates)
    rows = request.chunk_rows if part == 'b' else BULK_ROWS
    return every_pair(sides, part, watcher.step, rows, gates)


def _watched(part) -> Found:
    from harness.machine_code.instructions import collect_compiled
    with collect_compiled() as compiled:
        result = part()
    return Found(result, compiled.instruction_hashes(without=_NOT_ON_TRIAL))
