"""The problems that both grouped GEMMs are tried with, each with the reason why it is there."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.contracts.case import BOTH_LANES, SM90_ONLY, Case
from harness.contracts.grouped_gemm_far_rows import far_rows_case
from harness.contracts.grouped_gemm_problem import Problem, Tile
from harness.contracts.routing_cases import constant, counted, distinct, repeated

# Eight routes on eight experts, some of which have none; small, for the cpu lane interprets every program.
_FEW = Problem(distinct(4, 2, 8), 8, 'gate_up', 'ordinary', n=128)
_DOWN = replace(_FEW, role='down')
_LAST = Problem(distinct(6, 3, 16), 16, 'down', 'exact', local=4, offset=12, out='bf16')


def _edges(block_m: int) -> Problem:
    return Problem(counted([block_m - 1, 0, block_m, block_m + 1, 0]), 5, 'gate_up', 'exact')


def _of_every_tile(block_m: int) -> dict[str, tuple[str, Problem]]:
    long = replace(_FEW, k=384)
    return {
        'edges': ('ranges one short of a block, full, and one past it, beside idle experts', _edges(block_m)),
        'slice_last': ('the last of four ranks; rows of other ranks keep what was there', _LAST),
        'gate_up-fp32': ('ordinary codes and scales, every route its token\'s row', replace(_FEW, n=256)),
        'down-bf16': ('ordinary codes and scales, every route its own row', replace(_DOWN, out='bf16')),
        'coherent': ('terms of one sign: every cut goes the same way, the error is as large as it gets',
                     replace(long, values='coherent')),
        'apart': ('scales up to 2^24 apart from one K group to the next', replace(_DOWN, k=384, values='apart')),
        'bits_ordinary': ('scales that are powers of two: the accumulator\'s every bit',
                          replace(long, values='bits_ordinary')),
        'bits_coherent': ('the same, terms of one sign', replace(long, values='bits_coherent')),
        'bits_every_code': ('every finite code against every other', replace(long, values='bits_every_code')),
        'bits_every_code-e5m2': ('the same in e5m2', replace(long, values='bits_every_code', codes='e5m2')),
        'probe': ('which bits a step and an accumulator keep', Problem(constant(15, 1, 1), 2, 'gate_up', 'probe')),
    }


def _geometry() -> dict[str, tuple[str, Problem]]:
    exact = replace(_FEW, values='exact')
    return {
        'down-fp16': ('fp16 output', replace(_DOWN, out='fp16')),
        'slice_first': ('the first of four ranks', replace(_LAST, role='gate_up', offset=0, out='fp16')),
        'slice_middle': ('a rank in the middle', replace(_LAST, offset=8)),
        'slice_idle': ('a rank none of whose experts has a route: nothing is written',
                       replace(_LAST, ids=distinct(6, 3, 8))),
        'no_tokens': ('M = 0', replace(exact, ids=distinct(0, 2, 8))),
        'one_token': ('decode of one token', replace(exact, ids=distinct(1, 3, 8))),
        'one_expert': ('every route on one expert', replace(exact, ids=constant(40, 1, 3), role='down')),
        'duplicates': ('tokens that name an expert several times', replace(exact, ids=repeated(6, 5, 8), role='down')),
        'descending': ('routes of an expert in another order: atomics decide it', replace(exact, order='descending')),
        'descending-down': ('the same, every route its own row', replace(exact, order='descending', role='down')),
        'one_group': ('K of one group: the scales change but once', replace(_FEW, k=128)),
        'nine_groups': ('K of nine groups', replace(_FEW, k=1152, n=128, values='apart')),
        'group_64': ('groups of 64 along K', replace(_FEW, group_k=64, values='apart')),
        'wide_groups': ('one scale for all columns', replace(_FEW, n=256, group_n=256)),
        'pitched': ('rows of a, of the weights and of the output further apart than they are long',
                    replace(_FEW, n=256, layout='pitched')),
        'strided': ('no two elements of any operand are neighbours, nor its rows, nor its experts',
                    replace(_FEW, n=256, layout='strided', bias=True)),
        'coarse_a': ('one scale of a for two K groups of the weights',
                     replace(_FEW, k=512, group_a=256, values='apart')),
        'one_of_all': ('one token, one choice, one expert: every dimension that could be squeezed',
                       Problem(constant(1, 1, 0), 1, 'gate_up', 'exact', bias=True)),
        'transposed': ('weights and scales stored the other way round', replace(_FEW, layout='transposed')),
        'bias-fp32': ('a bias', replace(_FEW, bias=True)),
        'bias-bf16': ('a bias in bf16 on a slice', replace(_LAST, bias=True, values='ordinary')),
        'bias-exact': ('a bias in every bit', replace(exact, bias=True)),
        'tiny_scales': ('products of scales on both sides of 1e-12, where the kernels stop', replace(
            _FEW, k=384, values='tiny_scales')),
        'zero_scales': ('groups of zeros under a scale of 0', replace(_FEW, k=384, values='zero_scales')),
        'cancelling': ('groups that take back what others gave', replace(_FEW, values='cancelling')),
        'nan_codes': ('a NaN stays in its row and its column', replace(_FEW, values='nan_codes')),
        'e5m2': ('ordinary codes in e5m2', replace(_FEW, codes='e5m2')),
        'e5m2-apart': ('the same, scales apart', replace(_DOWN, codes='e5m2', values='apart')),
    }


_ONE_HOT = Problem(constant(256, 1, 1), 2, 'gate_up', 'one_hot', n=128)
ONE_HOT = {
    'one_hot': ('every finite code at every position comes out as it is', _ONE_HOT),
    'one_hot-e5m2': ('the same in e5m2', replace(_ONE_HOT, codes='e5m2')),
}
# Past the block, so that a column wraps round within a tile.
OFF_BLOCK = {'columns_192': ('N off the block', replace(_FEW, n=192, group_n=192)),
             'columns_192-bias': ('the same with a bias', replace(_FEW, n=192, group_n=192, bias=True))}
ROWS_OF_TWO_BLOCKS = {'rows_of_two_blocks': (
    'an expert with more rows than there are tokens, and than one block', Problem(constant(5, 4, 2), 8, 'down',
                                                                                  'exact'))}
MORE_ROWS = {'more_rows_than_tokens': (
    'tokens that name an expert so often that it has more rows than there are tokens, and than a launcher that counts '
    'tokens makes room for', Problem(constant(20, 4, 2), 8, 'down', 'exact'))}
# 1,030 experts of 2^21 weights: those of the last begin past 2^31 elements.
FAR = {'far_weights': ('weights past 2^31 elements, a token on the last expert',
                       Problem(counted([1] + 1028 * [0] + [2]), 1030, 'gate_up', 'bits_ordinary', k=1024,
                               n=2048))}
LARGE = {
    'long_k': ('the gate of a real layer, K = 7168', Problem(distinct(4, 2, 3), 3, 'gate_up', 'bits_ordinary',
                                                             k=7168, n=128)),
    'long_k-coherent': ('the same, terms of one sign', Problem(distinct(4, 2, 3), 3, 'gate_up', 'coherent',
                                                               k=7168, n=128)),
    'prefill': ('several blocks an expert', Problem(distinct(200, 4, 4), 4, 'down', 'bits_ordinary', k=256, n=128)),
}


def make_cases(operator: str, tiles: Sequence[Tile], geometries: Sequence[Tile],
               further: Iterable[tuple[Tile, dict]]) -> tuple[Case, ...]:
    """The catalogue of one operator.

    Args:
        tiles: every configuration that the dispatch can choose. geometries: those that stand for all where geometry,
            layout and values are at stake.
        further: (tile, problems) for single configurations.
    """
    cases = [_case(operator, tile, *named) for tile in tiles for named in _of_every_tile(tile.block_m).items()]
    # Interpreted, one tile's geometry is another's.
    cases += [_case(operator, tile, *named, BOTH_LANES if tile == geometries[-1] else SM90_ONLY)
              for tile in geometries for named in _geometry().items()]
    cases += [_case(operator, tile, *named) for tile, problems in further for named in problems.items()]
    cases += [_case(operator, tile, *named, BOTH_LANES if tile == tiles[-1] else SM90_ONLY)
              for tile in tiles for named in ONE_HOT.items()]
    cases += [_case(operator, tile, *named, SM90_ONLY) for tile in geometries for named in LARGE.items()]
    cases += [_case(operator, geometries[-1], *named, SM90_ONLY, replay=False, memory_gib=16)
              for named in FAR.items()]
    cases.append(far_rows_case(operator, geometries[-1]))
    return tuple(cases)


def _case(operator: str, tile: Tile, name: str, reasoned: tuple[str, Problem], lanes=BOTH_LANES, replay: bool = True,
          **needs) -> Case:
    why, problem = reasoned
    return Case(operator, f'{tile.id}-{name}', why, lambda device: problem.build(tile, device), lanes,
                {'replay': replay, **needs})
