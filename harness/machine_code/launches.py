"""Which builds of a kernel a launcher asks for: its launches, recorded instead of executed.

Triton decides itself what it would specialise on (a stride of 1, pointers and numbers that are multiples of 16): its
own binder is asked, for an sm_90 target. No driver and no GPU take part.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

SM90 = GPUTarget('cuda', 90, 32)

# A place in the argument list: (3,) is the fourth argument, (3, 1) the second element of a tuple passed there.
ArgumentPath = tuple[int, ...]


class Interpreted(Exception):
    """This process interprets kernels (TRITON_INTERPRET), so that there is no machine code to speak of."""


@dataclass(frozen=True)
class Specialization:
    """What the compiler is told: equal specialisations give one build.

    Attributes:
        kernel: 'module:attribute' of the kernel.
        signature: (argument, type) pairs, for example ('gate_up_ptr', '*bf16'), ('stride', 'i32'), ('N', 'constexpr').
        constexprs: (path, value) pairs; arguments equal to 1 stand here, too.
        attrs: (path, ((attribute, value), ...)) pairs, for example ((0,), (('tt.divisibility', 16),)).
        options: (name, value) pairs that the launcher gave: num_warps, num_stages, ...
        function: the kernel itself.
    """

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constexprs: tuple[tuple[ArgumentPath, object], ...]
    attrs: tuple[tuple[ArgumentPath, tuple[tuple[str, int], ...]], ...]
    options: tuple[tuple[str, object], ...]
    function: JITFunction = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """Equal for equal specialisations only. (Values would not do: True == 1, but they compile differently.)"""
        return repr((self.kernel, self.signature, self.constexprs, self.attrs, self.options))

    @property
    def constants(self) -> dict[str, object]:
        """Argument -> value of what the compiler takes for constant ('argument.1' inside a tuple)."""
        arguments = [name for name, _ in self.signature]
        return {'.'.join([arguments[path[0]], *map(str, path[1:])]): value for path, value in self.constexprs}

    @property
    def name(self) -> str:
        """For people: the kernel, its pointer types, what is constant, what is known of the rest, and the options."""
        arguments = [name for name, _ in self.signature]
        pointers = ' '.join(f'{name}:{kind}' for name, kind in self.signature if kind.startswith('*'))
        constants = ' '.join(f'{name}={value}' for name, value in self.constants.items())
        aligned = [arguments[path[0]] for path, attributes in self.attrs if attributes]
        options = ' '.join(f'{name}={value}' for name, value in self.options)
        return f'{self.kernel.split(":")[1]}[{pointers} {constants} | 16: {" ".join(aligned)} | {options}]'


@dataclass(frozen=True)
class Launch:
    """One recorded launch.

    Attributes:
        specialization: the build that it needs.
        grid: programs along each of the three axes.
        scalars: (argument, value) pairs of what is passed at run time beside pointers.
    """

    specialization: Specialization
    grid: tuple[int, int, int]
    scalars: tuple[tuple[str, int | float], ...]


@contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """While active, `kernel[grid](...)` appends a `Launch` to the yielded list and runs nothing.

    Launchers may be called with CPU tensors; their outputs stay unwritten.

    Raises:
        Interpreted: kernels are interpreted here, and would run instead of being recorded.
    """
    if triton.knobs.runtime.interpret:
        raise Interpreted('record_launches: expected a process without TRITON_INTERPRET, found it set')
    launches: list[Launch] = []
    original = JITFunction.run

    def run(self, *args, grid, warmup, **kwargs):
        launches.append(_describe(self, args, kwargs, grid))

    JITFunction.run = run
    try:
        yield launches
    finally:
        JITFunction.run = original


def distinct(launches: Iterable[Launch]) -> list[Specialization]:
    """The builds that the launches need, each once, in order of first use."""
    return list({launch.specialization.key: launch.specialization for launch in launches}.values())


def _describe(function: JITFunction, args: tuple, kwargs: dict, grid) -> Launch:
    backend = make_backend(SM90)
    binder = create_function_from_signature(function.signature, function.params, backend)
    bound, specialised, options = binder(*args, **kwargs)
    _, signature, constexprs, attrs = function._pack_args(backend, dict(kwargs), bound, specialised, options)
    given = {name: value for name, value in kwargs.items() if name not in function.arg_names}
    specialization = Specialization(
        kernel=f'{function.fn.__module__}:{function.fn.__qualname__}',
        signature=tuple(signature.items()),
        constexprs=tuple(sorted(constexprs.items())),
        attrs=tuple(sorted((path, tuple(map(tuple, found))) for path, found in attrs.items())),
        options=tuple(sorted(given.items())),
        function=function,
    )
    sizes = tuple(grid(bound) if callable(grid) else grid)
    scalars = tuple((name, value) for name, value in bound.items()
                    if isinstance(value, (int, float)) and signature[name] != 'constexpr')
    return Launch(specialization, sizes + (1, ) * (3 - len(sizes)), scalars)
