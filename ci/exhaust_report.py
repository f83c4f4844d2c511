"""What a proof comes to: outcome, exit code, and the texts for people and machines. Functions of what was found."""
from __future__ import annotations

import shlex
from collections import Counter
from typing import Any

from ci.exhaust_proof import ExhaustRequest, Found, Proof
from harness.evidence.verdicts import Outcome, Reason
from harness.lanes.lane import Lane


def outcome(proof: Proof) -> Outcome:
    """The worst of all parts; UNJUDGED if there are none."""
    outcomes = [found.result.reason.outcome if found.result.reason else Outcome.PASS for found in proof.found]
    return Outcome.worst(outcomes + ([proof.obstacle[0].outcome] if proof.obstacle else []))


def exit_code(proof: Proof) -> int:
    """0 PASS, 1 BROKEN or MOVED, 3 UNJUDGED."""
    return {Outcome.PASS: 0, Outcome.UNJUDGED: 3}.get(outcome(proof), 1)


def scope(proof: Proof) -> str:
    """'exhaustive' only if every part visited everything that it could."""
    return 'exhaustive' if proof.found and all(found.result.exhaustive for found in proof.found) else 'sampled'


def as_dict(request: ExhaustRequest, proof: Proof, seconds: float) -> dict[str, Any]:
    """The result for machines, JSON-compatible."""
    reasons = Counter(found.result.reason.value for found in proof.found if found.result.reason)
    if proof.obstacle:
        reasons[proof.obstacle[0].value] += 1
    return {
        'outcome': outcome(proof).value,
        'lane': proof.lane.value if proof.lane else None,
        'scope': scope(proof),
        'reasons': dict(reasons),
        'obstacle': proof.obstacle[1] if proof.obstacle else None,
        'subject': str(request.subject),
        'provenance': dict(proof.provenance),
        'environment': dict(proof.environment),
        'request': {'parts': request.parts, 'gates': [request.gates.start, request.gates.stop],
                    'sample': request.sample, 'seed': request.seed, 'chunk_rows': request.chunk_rows},
        'seconds': seconds,
        'parts': [{**found.result.as_dict(), 'machine_code': {name: list(hashes) for name, hashes
                                                              in found.machine_code.items()}}
                  for found in proof.found],
    }


def summary(request: ExhaustRequest, proof: Proof) -> str:
    """For people, after the lines of the parts: what differs, the machine code that it holds for, the verdict last."""
    lines = [line for found in proof.found for line in _explanation(request, proof, found)]
    references = dict.fromkeys(found.result.reference for found in proof.found)
    lines += [f'compared with: {reference}' for reference in references]
    lines += _machine_code(proof)
    if proof.found and scope(proof) == 'sampled' and not request.pair:
        lines.append(f'sampled where not every one was visited: every edge, then random bits with seed {request.seed}')
    return '\n'.join([*lines, _verdict(request, proof)])


def _explanation(request: ExhaustRequest, proof: Proof, found: Found) -> list[str]:
    result = found.result
    lines = _about_silu(found) if result.part == 'a' else []
    if result.differing_groups:
        lines.append(f'{result.part} {result.format}: {result.reason.value}: {result.differing_groups} groups differ '
                     f'from {result.reference}; the first:')
        if result.mismatch:
            from harness.oracles.storage import FORMATS
            lines += [f'  {line}' for line in result.mismatch.lines(FORMATS[result.mismatch.storage].decode)]
        else:
            lines.append('  it did not differ when both sides were run again')
        lines.append(f'  reproduce: {_reproduce(request, proof, found)}')
    return lines


def _reproduce(request: ExhaustRequest, proof: Proof, found: Found) -> str:
    """The command that visits the difference again: the pair alone for part b, otherwise the part in its format."""
    result = found.result
    words = ['bitgate', 'exhaust', '--lane', proof.lane.value, '--subject', str(request.subject)]
    words += ['--lmdeploy-src', str(request.lmdeploy_src)] if request.lmdeploy_src else []
    words += ['--part', result.part, '--dtype', result.fmt.storage]
    if result.part != 'a':
        words += ['--codes', result.fmt.codes, '--scale-fmt', result.fmt.scale_fmt or 'none']
    if result.part == 'b' and result.mismatch:
        words += ['--pair', f'0x{result.mismatch.gate:04x}:0x{result.mismatch.up:04x}']
    elif request.sample:
        words += ['--sample', str(request.sample), '--seed', str(request.seed)]
    return shlex.join(words)


def _about_silu(found: Found) -> list[str]:
    facts = found.result.facts
    judged = (f'stock\'s silu at {facts["judged_gates"]} gates is at most {facts["worst_judged_steps"]} step(s) from '
              f'float64, {facts["judged_off_by_one_step"]} gates are off by one')
    if found.result.reason is Reason.BOUND:
        judged = f'BOUND: stock\'s silu is up to {facts["worst_judged_steps"]} steps from float64 where one is allowed'
    away = f': {"; ".join(facts["others_off_in"])}' if facts['others_off'] else ''
    return [f'a {found.result.format}: {judged}; of {facts["other_finite_gates"]} gates without that promise '
            f'{facts["others_off"]} are further off{away}']


def _machine_code(proof: Proof) -> list[str]:
    """Kernel and hash, once each, with the parts and formats that they were seen in."""
    uses: dict[tuple[str, str], list[str]] = {}
    for found in proof.found:
        for name, hashes in found.machine_code.items():
            for sha256 in hashes:
                uses.setdefault((name, sha256), []).append(f'{found.result.part} {found.result.format}')
    return [f'holds for {name} {sha256[:16]}: {", ".join(seen)}' for (name, sha256), seen in sorted(uses.items())]


def _verdict(request: ExhaustRequest, proof: Proof) -> str:
    result = outcome(proof)
    lane = proof.lane.value if proof.lane else request.lane.value
    if proof.obstacle:
        return f'{result.value}[{lane}]: {proof.obstacle[0].value}: {proof.obstacle[1]}'
    limits = 'source semantics judged, nothing proven on sm90' if proof.lane is Lane.CPU else \
        'for the machine code named above'
    broken = sorted({f'{found.result.part} {found.result.format}' for found in proof.found if found.result.reason})
    count = len(proof.found)
    what = f'broken in {", ".join(broken)}' if broken else '1 part holds' if count == 1 else f'{count} parts hold'
    return f'{result.value}[{lane}] {scope(proof)}: {request.subject}: {what}; {limits}'
