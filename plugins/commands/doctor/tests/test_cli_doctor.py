"""``ernie doctor`` as a program."""

import json
import subprocess
import sys


def doctor(site, *args, **environ):
    command = [sys.executable, "-m", "erniecore", "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True, env=site.environ(**environ), cwd=site.path)


def test_a_machine_that_is_well_is_exit_0(site):
    done = doctor(site, OMP_NUM_THREADS="1", ERNIE_PLUGINS="sft,doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok       paddle: distribution         paddlepaddle 3." in done.stdout
    assert done.stdout.splitlines()[-1].startswith("0 problems")


def test_two_wheels_are_exit_3_and_both_are_named(site):
    site.add("paddlepaddle-gpu", {}, version="3.3.0", requires=())
    done = doctor(site, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 3
    (two,) = [f for f in found["findings"] if (f["area"], f["level"]) == ("paddle", "problem")]
    assert "paddlepaddle-gpu 3.3.0" in two["message"]
    assert found["problems"] == sum(f["level"] == "problem" for f in found["findings"])


def test_a_missing_driver_of_a_wheel_is_exit_3(site):
    version = "cuda_version     = '12.6'\n"
    site.add("paddlepaddle-gpu", {}, {"paddle/version/__init__.py": version}, version="3.3.0", requires=())
    done = doctor(site, "--device", "cuda", PATH="/usr/bin:/bin")
    assert done.returncode == 3
    assert "this paddle is built for CUDA 12.6, and there is no driver" in done.stdout


def test_the_device_that_must_work_decides(site):
    done = doctor(site, "--device", "xpu")
    assert done.returncode == 3
    assert "PROBLEM  devices: xpu" in done.stdout
    assert "paddlepaddle-xpu" in done.stdout


def test_an_unknown_device_is_refused_with_the_nearest(site):
    done = doctor(site, "--device", "cudda")
    assert done.returncode == 2
    assert "cuda" in done.stderr


def test_nothing_heavy_is_imported(site):
    code = "import sys; from erniecore.cli.app import main; main(['doctor', '--json']); print('paddle' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=site.environ(), cwd=site.path
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_devices_that_are_simply_not_here_are_shown_when_asked_for(site):
    assert "devices: npu" not in doctor(site).stdout
    assert "devices: npu" in doctor(site, "--all").stdout


def test_kernels_of_each_operator_without_paddle(site):
    code = "from erniecore.cli.app import main; main(['doctor', '--kernels', '--json']); print('paddle' in sys.modules)"
    command = [sys.executable, "-c", f"import sys; {code}"]
    done = subprocess.run(command, capture_output=True, text=True, env=site.environ(), cwd=site.path, check=True)
    text, _, heavy = done.stdout.strip().rpartition("\n")
    rows = json.loads(text)["implementations"]
    assert heavy == "False"
    assert ["rotate"] in [row["functions"] for row in rows if row["chosen"]]
    assert {row["name"] for row in rows} >= {"reference"}
