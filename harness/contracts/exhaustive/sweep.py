"""Running a sweep: chunk after chunk through both sides, differences tallied where they arise.

On a GPU the loop body is a CUDA graph whose only memory of where it is are two counters on the device; the host never
waits for a chunk. On the cpu lane the same body runs step by step.
"""
from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from harness.contracts.exhaustive.mismatch import Mismatch, explain
from harness.contracts.exhaustive.plan import GROUPS_PER_ROW, PATTERNS, Chunk, Sweep, pair_key, pair_of_key
from harness.contracts.exhaustive.sides import PairBuffer, Progress, Sides, signed
from harness.evidence.differing_groups import new_tally, require_sight, tally_differing_groups

_MOST_STEPS_PER_GRAPH = 32
_PROGRESS_MARKS = 16


@dataclass(frozen=True)
class Tally:
    """What a run over pairs found.

    Attributes:
        differing: groups whose bytes differ.
        first: the first of them in the order of gates, then ups, as (gate, up) of its first pair; None if none differs.
        seconds: of the loop: GPU time on a GPU, wall time on the cpu lane.
    """

    differing: int
    first: tuple[int, int] | None
    seconds: float


class SweepRun:
    """A sweep with its buffers. May be run several times, with another partner each time.

    Attributes:
        buffer: the input.

    Raises:
        ComparatorBlind: a flipped bit went unnoticed when the run was set up.
    """

    def __init__(self, sides: Sides, sweep: Sweep):
        self.sides, self.sweep = sides, sweep
        device = sides.device
        self.buffer = PairBuffer(sweep.arrangement, sweep.rows, sides.fmt.storage, device)
        rows = torch.arange(sweep.rows, device=device)
        gate_offsets, block = rows // sweep.rows_per_gate, rows % sweep.rows_per_gate
        self._gate_offsets = gate_offsets.to(torch.int16)[:, None].expand(self.buffer.gates.shape)
        up_offsets = (block[:, None] * GROUPS_PER_ROW + torch.arange(GROUPS_PER_ROW, device=device)) \
            * sweep.arrangement.pairs_per_group
        self._keys = (gate_offsets[:, None] * PATTERNS + up_offsets).reshape(-1)  # [groups] int64
        self._gate_base = torch.zeros(1, dtype=torch.int16, device=device)
        self._key_base = torch.zeros(1, dtype=torch.int64, device=device)
        self._tally = new_tally(device)
        self._enter(Chunk(sweep.gates.start, sweep.ups.start))
        self._write_gates()
        require_sight(sides.unfused(self.buffer.gate_up))
        self._steps_per_graph = max(n for n in range(1, _MOST_STEPS_PER_GRAPH + 1) if sweep.gate_steps % n == 0)
        self._graph = self._capture() if device.type == 'cuda' else None

    def run(self, progress: Progress) -> Tally:
        """Visit every chunk. `progress` is told of visited and of all pairs."""
        self._tally.copy_(new_tally(self._tally.device))
        seconds = self._run_graphs(progress) if self._graph else self._run_steps(progress)
        differing, first = self._tally.tolist()
        return Tally(differing, pair_of_key(first) if differing else None, seconds)

    def explain(self, first: tuple[int, int]) -> Mismatch | None:
        """Visit the chunk of a pair again and name what differs in its group; None if nothing differs any more."""
        chunk, group = self.sweep.locate(*first)
        self._enter(chunk)
        self._write_gates()
        return explain(self.sides, self.buffer.gate_up, group)

    def _enter(self, chunk: Chunk) -> None:
        """Make `chunk` the next to be visited."""
        ups = signed(chunk.up + np.arange(self.sweep.ups_per_chunk)).reshape(self.sweep.rows_per_gate, -1)
        self.buffer.ups.unflatten(0, (-1, len(ups))).copy_(torch.from_numpy(ups).to(self.sides.device))
        self._gate_base.fill_(int(signed(np.array(chunk.gate))))
        self._key_base.fill_(pair_key(chunk.gate, chunk.up))

    def _write_gates(self) -> None:
        # int16 wraps, as bit patterns do.
        torch.add(self._gate_offsets, self._gate_base, out=self.buffer.gates)

    def _step(self) -> None:
        """Visit one chunk and move on to the next gates. Everything is queued on the device."""
        self._write_gates()
        fused, unfused = self.sides.fused(self.buffer.gate_up), self.sides.unfused(self.buffer.gate_up)
        tally_differing_groups(fused, unfused, self._keys, self._key_base, self._tally)
        self._gate_base.add_(int(signed(np.array(self.sweep.gates_per_chunk % PATTERNS))))
        self._key_base.add_(self.sweep.gates_per_chunk * PATTERNS)

    def _capture(self) -> torch.cuda.CUDAGraph:
        self._step()  # compiles the comparator before anything is captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self._steps_per_graph):
                self._step()
        return graph

    def _run_graphs(self, progress: Progress) -> float:
        replays = self.sweep.gate_steps // self._steps_per_graph
        per_replay = self._steps_per_graph * self.sweep.pairs_per_chunk
        mark_every = max(1, replays * len(self.sweep.up_blocks()) // _PROGRESS_MARKS)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        marks: deque[tuple[int, torch.cuda.Event]] = deque()
        launched = 0
        start.record()
        for up in self.sweep.up_blocks():
            self._enter(Chunk(self.sweep.gates.start, up))
            for _ in range(replays):
                self._graph.replay()
                launched += 1
                if launched % mark_every == 0:
                    marks.append((launched * per_replay, torch.cuda.Event()))
                    marks[-1][1].record()
                    # Waiting for the mark before the last leaves the device one mark's work.
                    if len(marks) > 2:
                        visited, event = marks.popleft()
                        event.synchronize()
                        progress(visited, self.sweep.pairs)
        end.record()
        end.synchronize()
        progress(self.sweep.pairs, self.sweep.pairs)
        return start.elapsed_time(end) / 1e3

    def _run_steps(self, progress: Progress) -> float:
        started = time.perf_counter()
        visited = 0
        for up in self.sweep.up_blocks():
            self._enter(Chunk(self.sweep.gates.start, up))
            for _ in range(self.sweep.gate_steps):
                self._step()
                visited += self.sweep.pairs_per_chunk
                progress(visited, self.sweep.pairs)
        return time.perf_counter() - started
