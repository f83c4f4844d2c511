"""The choice of a lane, over every combination of facts; the facts, from made-up machines; and the switch itself."""
from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.lanes.device import DeviceFacts, VisibleDevice, probe
from harness.lanes.fingerprint import PACKAGES, fingerprint
from harness.lanes.lane import Lane, LaneRequest, WrongDevice, resolve

ROOT = Path(__file__).resolve().parents[2]


def device(major: int, minor: int, name: str = 'NVIDIA card', sm_count: int = 132) -> VisibleDevice:
    return VisibleDevice(name, (major, minor), sm_count, f'GPU-{major}{minor}', 1 << 37)


H200, H20, A100, ADA, B200 = (device(9, 0, 'NVIDIA H200'), device(9, 0, 'NVIDIA H20', 78), device(8, 0, 'NVIDIA A100'),
                              device(8, 9), device(10, 0))
VISIBLE = [(), (H200, ), (H200, H200), (H20, H200), (A100, ), (ADA, ), (B200, ), (device(9, 1), ), (H200, A100)]


def every_machine() -> list[DeviceFacts]:
    """Every combination of facts, those that no real machine shows included."""
    combinations = itertools.product([(), ('/dev/nvidia0', '/dev/nvidiactl')], [(), ('0000:01:00.0', )],
                                     [None, '', '580.65.06'], [None, '', '0'], [None, '2.13.0+cpu', '2.11.0+cu130'],
                                     VISIBLE, ['', 'CUDA: driver too old'])
    return [DeviceFacts(nodes, pci, driver, mask, torch_version, bool(devices), devices, error)
            for nodes, pci, driver, mask, torch_version, devices, error in combinations]


def lane_or_refusal(request: LaneRequest, facts: DeviceFacts) -> Lane | str:
    try:
        return resolve(request, facts)
    except WrongDevice as refusal:
        return str(refusal)


MACHINES = every_machine()


def test_cpu_is_always_granted():
    assert {resolve(LaneRequest.CPU, facts) for facts in MACHINES} == {Lane.CPU}


@pytest.mark.parametrize('request_', [LaneRequest.SM90, LaneRequest.AUTO])
def test_sm90_is_granted_exactly_where_every_visible_device_is_9_0(request_):
    for facts in MACHINES:
        all_sm90 = facts.devices in ((H200, ), (H200, H200), (H20, H200))
        assert (lane_or_refusal(request_, facts) is Lane.SM90) == all_sm90, facts


def test_asking_for_sm90_never_gives_cpu():
    assert Lane.CPU not in {lane_or_refusal(LaneRequest.SM90, facts) for facts in MACHINES}


def test_auto_falls_back_to_cpu_only_without_any_trace_of_nvidia():
    for facts in MACHINES:
        no_trace = facts.nvidia_nodes == facts.nvidia_pci == facts.devices == () and facts.driver_version is None
        assert (lane_or_refusal(LaneRequest.AUTO, facts) is Lane.CPU) == no_trace, facts


def test_every_refusal_says_what_was_found_and_what_to_try():
    for request, facts in itertools.product((LaneRequest.SM90, LaneRequest.AUTO), MACHINES):
        answer = lane_or_refusal(request, facts)
        if not isinstance(answer, Lane):
            assert f'--lane {request.value}: expected' in answer
            assert ', found ' in answer
            assert answer.endswith('--lane cpu')


@pytest.mark.parametrize(('facts', 'words'), [
    (DeviceFacts(torch_version='2.11.0', nvidia_nodes=('/dev/nvidia0', ), cuda_visible_devices=''),
     "CUDA_VISIBLE_DEVICES=''"),
    (DeviceFacts(torch_version='2.11.0', cuda_available=True, devices=(A100, )), r'NVIDIA A100 \(8.0\)'),
    (DeviceFacts(torch_version='2.11.0', cuda_available=True, devices=(H200, A100)), 'leave it out of CUDA_VISIBLE'),
    (DeviceFacts(torch_version='2.11.0', nvidia_pci=('0000:01:00.0', ), error='CUDA: dead driver'), 'dead driver'),
    (DeviceFacts(torch_version='2.13.0+cpu', nvidia_nodes=('/dev/nvidia0', )), 'built without CUDA'),
    (DeviceFacts(error='torch: ModuleNotFoundError'), 'ModuleNotFoundError'),
    (DeviceFacts(torch_version='2.13.0+cpu'), 'nothing of NVIDIA on this machine'),
])
def test_a_refusal_names_the_cause(facts, words):
    with pytest.raises(WrongDevice, match=words):
        resolve(LaneRequest.SM90, facts)


def pci_device(root: Path, address: str, vendor: str, kind: str) -> None:
    folder = root / 'sys/bus/pci/devices' / address
    folder.mkdir(parents=True)
    (folder / 'vendor').write_text(vendor + '\n')
    (folder / 'class').write_text(kind + '\n')


def test_probe_reads_nodes_pci_and_driver(tmp_path):
    (tmp_path / 'dev').mkdir()
    for name in ('nvidia0', 'nvidiactl', 'null'):
        (tmp_path / 'dev' / name).touch()
    pci_device(tmp_path, '0000:01:00.0', '0x10de', '0x030200')
    pci_device(tmp_path, '0000:01:00.1', '0x10de', '0x040300')   # the audio function of a card
    pci_device(tmp_path, '0000:02:00.0', '0x1002', '0x030000')   # another vendor's display
    (tmp_path / 'sys/bus/pci/devices/0000:03:00.0').mkdir()      # a device without readable files
    (tmp_path / 'proc/driver/nvidia').mkdir(parents=True)
    (tmp_path / 'proc/driver/nvidia/version').write_text(
        'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12.2.0\n')
    facts = probe({'CUDA_VISIBLE_DEVICES': 'GPU-1'}, tmp_path)
    assert facts.nvidia_nodes == ('/dev/nvidia0', '/dev/nvidiactl')
    assert facts.nvidia_pci == ('0000:01:00.0', )
    assert facts.driver_version == '580.65.06'
    assert facts.cuda_visible_devices == 'GPU-1'
    assert facts.has_nvidia


def test_probe_of_a_machine_without_nvidia_finds_no_trace(tmp_path):
    facts = probe({}, tmp_path)
    assert (facts.nvidia_nodes, facts.nvidia_pci, facts.driver_version) == ((), (), None)
    assert facts.cuda_visible_devices is None


def test_an_unreadable_driver_is_still_a_driver(tmp_path):
    (tmp_path / 'proc/driver/nvidia').mkdir(parents=True)
    assert probe({}, tmp_path).driver_version == ''
    assert probe({}, tmp_path).has_nvidia


def in_fresh_process(code: str) -> str:
    """Standard output of `code`, or the last line of its traceback."""
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, timeout=120,
                          env={'PATH': '/usr/bin:/bin', 'PYTHONPATH': str(ROOT), 'CUDA_VISIBLE_DEVICES': ''})
    return done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


ACTIVATE = 'from harness.lanes.activation import activate, active_lane; from harness.lanes.lane import Lane; '


def test_probe_and_fingerprint_leave_triton_unimported():
    assert in_fresh_process('import sys; from harness.lanes.device import probe; from harness.lanes.lane import Lane\n'
                            'from harness.lanes.fingerprint import fingerprint\n'
                            'fingerprint(Lane.CPU, probe()); print("triton" in sys.modules)') == 'False\n'


def test_cpu_lane_refuses_a_triton_that_was_imported_compiled():
    assert 'imported before the cpu lane' in in_fresh_process('import triton; ' + ACTIVATE + 'activate(Lane.CPU)')


def test_cpu_lane_refuses_a_triton_whose_interpreter_is_not_known():
    message = in_fresh_process('from harness.lanes import interpreter; interpreter.KNOWN_TRITON = ("3.4.0",); '
                               + ACTIVATE + 'activate(Lane.CPU)')
    assert 'UnsupportedTriton: cpu lane: expected triton 3.4.0' in message
    assert 'ci/supported.toml' in message


def test_a_process_serves_one_lane_and_activating_it_again_is_free():
    assert 'already serves lane cpu' in in_fresh_process(
        ACTIVATE + 'assert active_lane() is None; assert activate(Lane.CPU) == activate(Lane.CPU); '
        'assert active_lane() is Lane.CPU; activate(Lane.SM90)')


def test_sm90_lane_refuses_a_process_without_the_device_and_one_that_interprets():
    assert 'WrongDevice' in in_fresh_process(ACTIVATE + 'activate(Lane.SM90)')
    assert 'would judge the interpreter' in in_fresh_process(
        'import os; os.environ["TRITON_INTERPRET"] = "1"; ' + ACTIVATE + 'activate(Lane.SM90)')


def test_fingerprint_is_json_and_names_the_device_only_on_sm90():
    facts = DeviceFacts(torch_version='2.11.0', cuda_available=True, devices=(H20, ), driver_version='580.65.06')
    on_gpu, on_cpu = fingerprint(Lane.SM90, facts), fingerprint(Lane.CPU, facts)
    assert json.loads(json.dumps(on_gpu)) == on_gpu
    assert on_gpu['device'] == {'name': 'NVIDIA H20', 'capability': '9.0', 'sm_count': 78, 'uuid': 'GPU-90',
                                'total_memory': 1 << 37}
    assert on_cpu['device'] is None
    assert on_gpu['cuda_driver'] == '580.65.06'
    assert set(PACKAGES) < set(on_cpu)
    for key in ('python', 'numpy', 'torch', 'triton', 'ml_dtypes', 'ptxas', 'cpu_model', 'cpu_cores', 'memory', 'os'):
        assert on_cpu[key], key
