"""The layers that fused_moe_blocked_fp8 is tried with, each with the reason why it is there."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.contracts.case import BOTH_LANES, SM90_ONLY, Case
from harness.contracts.fused_moe_problem import Layer
from harness.contracts.fused_moe_relations import RELATIONS
from harness.contracts.moe_schedule import Launch, blocks, dense
from harness.contracts.routing_cases import constant, distinct, repeated

OPERATOR = 'fused_moe_blocked_fp8'
DECODE = (dense(64), dense(16))


@dataclass(frozen=True)
class Tried:
    """A layer with why it is there and how it is tried.

    Attributes:
        path: the launches of gate/up and down, of 0.18.0.
        alone: the last token alone gives its row of the batch. replay: the graph is replayed with other inputs.
        as_on_gpu: on the cpu lane, too, the dispatch takes the GPU's way.
        refusable: refusing is right, too.
    """

    why: str
    layer: Layer
    path: tuple[Launch, Launch] = DECODE
    lanes: frozenset[str] = BOTH_LANES
    alone: bool = False
    replay: bool = True
    as_on_gpu: bool = False
    refusable: bool = False


# Eight routes on eight experts, some of which have none; small, for the cpu lane interprets every program.
_SMALL = Layer(distinct(4, 2, 8), 8, intermediate=128)
_RANK = Layer(distinct(6, 3, 16), 16, local=4, offset=12, intermediate=128)


def _of_both_dtypes(out: str, lanes: frozenset[str]) -> dict[str, Tried]:
    """Lanes: where the cases are required whose geometry is that of the other dtype's."""
    small = replace(_SMALL, out=out)
    return {
        f'{out}-ordinary': Tried('two K groups in both projections; a token alone', replace(small, intermediate=256),
                                 alone=True),
        f'{out}-renormalised': Tried('weights divided by their sum', replace(small, renormalise=True), alone=True,
                                     lanes=lanes),
        f'{out}-bias': Tried('biases in both projections', replace(small, bias=True), lanes=lanes),
        f'{out}-custom': Tried('another activation than SwiGLU', replace(small, activation='relu_and_mul')),
        f'{out}-slice_last': Tried('the last of four ranks: routes of others add nothing', replace(_RANK, out=out)),
    }


_LAYERS = {
    **_of_both_dtypes('bf16', BOTH_LANES), **_of_both_dtypes('fp16', SM90_ONLY),
    'slice_first': Tried('the first of four ranks', replace(_RANK, offset=0, seed='first/')),
    'slice_middle': Tried('a rank in the middle, weights renormalised over all experts',
                          replace(_RANK, offset=8, renormalise=True)),
    'slice_bias': Tried('a rank with biases: none for the routes of others', replace(_RANK, offset=4, bias=True)),
    'slice_idle': Tried('a rank none of whose experts has a route: every row is zero',
                        replace(_RANK, ids=distinct(6, 3, 8))),
    'one_token': Tried('decode of one token', replace(_SMALL, ids=distinct(1, 4, 8))),
    'top_1': Tried('one expert a token, whose weight is 1 when renormalised',
                   replace(_SMALL, ids=distinct(3, 1, 8), renormalise=True)),
    'top_5': Tried('top-k no power of two', replace(_SMALL, ids=distinct(3, 5, 8))),
    'one_expert': Tried('every token on one expert', replace(_SMALL, ids=constant(9, 1, 5))),
    'duplicates': Tried('tokens that name an expert several times', replace(_SMALL, ids=repeated(3, 4, 8))),
    'int32_ids': Tried('expert ids of 32 bits', replace(_SMALL, ids_dtype='int32', seed='int32/')),
    'e5m2': Tried('codes in e5m2', replace(_SMALL, codes='e5m2')),
    'pitched': Tried('rows of hidden and weights further apart than they are long', replace(_SMALL, pitched=True)),
    'weight_groups_64': Tried('weights in finer groups along K than hidden', replace(_SMALL, group_w=64)),
    'hidden_groups_64': Tried('hidden in finer groups along K than the weights', replace(_SMALL, group=64),
                              refusable=True),
    'hidden_groups_256': Tried('hidden in coarser groups along K than the weights: so are those of the states',
                               replace(_SMALL, group=256, intermediate=256)),
    'wide_column_groups': Tried('weights in groups of 256 columns', replace(_SMALL, group_n=256)),
    'a17': Tried('the down tile of 32', Layer(distinct(17, 2, 2), 2, intermediate=128), (dense(64), dense(32))),
    'a33': Tried('the down tile of 64', Layer(distinct(33, 2, 2), 2, intermediate=128), (dense(64), dense(64))),
    'prefill': Tried('past 64 tokens: the tiles of prefill', Layer(distinct(65, 1, 3), 3, intermediate=128),
                     (dense(128), dense(64))),
    'prefill_a33': Tried('the largest tiles', Layer(distinct(66, 1, 2), 2, intermediate=128),
                         (dense(128), dense(128))),
    'no_tokens': Tried('M = 0: a rank without tokens', replace(_SMALL, ids=distinct(0, 2, 8))),
    'more_rows_than_tokens': Tried(
        'tokens that name an expert so often that it has more rows than the launcher makes room for',
        replace(_SMALL, ids=constant(20, 4, 2)), replay=False),
    'blocks': Tried('compact in both projections, with biases: few of 256 experts have routes',
                    Layer(distinct(65, 4, 6, first=250), 256, intermediate=256, bias=True), (blocks(64), blocks(64)),
                    as_on_gpu=True),
    'blocks_slice': Tried('the second of two ranks, whose down projection alone is compact',
                          Layer(distinct(512, 1, 8, first=506), 1024, local=512, offset=512, intermediate=128),
                          (dense(128), blocks(64)), as_on_gpu=True),
}

_REAL = Layer(distinct(16, 8, 12), 128, hidden_size=2048, intermediate=768)
_MANY = Layer(distinct(4, 8, 12, first=240), 256, hidden_size=4096)
_LARGE = {
    'decode_real': Tried('a decode of 128 experts, H 2048', _REAL, alone=True),
    'decode_real-fp16': Tried('the same in fp16', replace(_REAL, out='fp16')),
    'prefill_real': Tried('a prefill: 2048 routes', replace(_REAL, ids=distinct(256, 8, 12)),
                          (dense(128), dense(64))),
    'blocks_short': Tried('compact in both, H 2048', replace(_MANY, hidden_size=2048, ids=distinct(96, 8, 12)),
                          (blocks(64), blocks(64))),
    'blocks_turned': Tried('compact in decode, the gate turned over', _MANY,
                           (blocks(16, transposed=True), blocks(16, 64)), alone=True),
    'blocks_turned_32': Tried('the same with 32 rows', replace(_MANY, ids=distinct(272, 8, 12)),
                              (blocks(32, transposed=True), blocks(32))),
    'blocks_wide': Tried('gate/up 1024 wide', replace(_MANY, hidden_size=2048, intermediate=512,
                                                      ids=distinct(72, 8, 12)), (blocks(64), blocks(64))),
    'blocks_down': Tried('the down projection alone is compact: 512 tokens of 512 experts',
                         Layer(distinct(512, 2, 24, first=480), 512, hidden_size=512, intermediate=128),
                         (dense(128), blocks(64))),
}
_RELATED = {'dense': (_SMALL, BOTH_LANES),
            'blocks': (replace(_MANY, hidden_size=2048, ids=distinct(96, 8, 12)), SM90_ONLY)}


def _case(name: str, tried: Tried, lanes: frozenset[str]) -> Case:
    path = {projection: vars(launch) for projection, launch in zip(('gate_up', 'down'), tried.path, strict=True)}
    return Case(OPERATOR, name, tried.why, tried.layer.build, lanes, {
        'path': path, 'alone': tried.alone, 'replay': tried.replay, 'as_on_gpu': tried.as_on_gpu,
        'refusable': tried.refusable})


def _related() -> Iterator[Case]:
    for schedule, (layer, lanes) in _RELATED.items():
        for name, (why, _) in RELATIONS.items():
            yield Case(OPERATOR, f'{schedule}-{name}', why, layer.build, lanes,
                       {'relation': name, 'schedule': schedule})


def make_cases() -> tuple[Case, ...]:
    """The catalogue."""
    cases = [_case(name, tried, tried.lanes) for name, tried in _LAYERS.items()]
    cases += [_case(name, tried, SM90_ONLY) for name, tried in _LARGE.items()]
    return (*cases, *_related())


def layer_of(case: Case) -> Layer:
    """The layer that a case of this operator builds."""
    if 'relation' in case.options:
        return _RELATED[case.options['schedule']][0]
    return (_LAYERS | _LARGE)[case.id].layer
