"""The job scripts where no queue is needed; PBS and LSF are not to be had here, so their commands
are stood in for by scripts that answer as their manuals say."""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from conftest import BINARY, DECK, ROOT, is_running, losses, wait_until_gone

SCRIPTS = ROOT / "jobscripts"
LONG = DECK.replace("steps = 12", "steps = 1000000").replace("every_steps = 4", "every_steps = 0")


@pytest.fixture
def job(program):
    (program.folder / "commands").mkdir()
    program.environment.update(
        VOLTAPILE=BINARY,
        VOLTAPILE_PAUSE="1",
        PATH=f"{program.folder}/commands:{os.environ['PATH']}",
    )
    for name in [name for name in program.environment if name.startswith("SLURM_")]:
        del program.environment[name]
    return program


def stand_in(job, name, text):
    path = job.folder / "commands" / name
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


def start(job, script, *arguments, **environment):
    return subprocess.Popen(
        [SCRIPTS / script, *map(str, arguments)],
        cwd=job.folder,
        env={**job.environment, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(process):
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


def below(process):
    """Process ids of everything that descends from it."""
    listing = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True)
    parents = {}
    for line in listing.stdout.splitlines():
        child, parent = map(int, line.split())
        parents.setdefault(parent, []).append(child)
    found, todo = [], [process]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def named(processes, name):
    found = []
    for process in processes:
        try:
            with open(f"/proc/{process}/comm") as file:
                if file.read().strip() == name:
                    found.append(process)
        except OSError:
            continue
    return found


def wait_for_training(job, process, step=3):
    lines = job.folder / "runs/small/metrics.jsonl"
    while not lines.exists() or lines.read_text().count('"train"') < step:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_mpirun_sh_trains_and_says_when_there_is_nothing_to_do(job):
    deck = job.deck()
    code, out = finish(start(job, "mpirun.sh", deck))
    assert code == 0 and "Finished: runs/small, step 12" in out, out
    code, out = finish(start(job, "mpirun.sh", deck))
    assert code == 0 and "Nothing to do" in out and "continuing" not in out, out
    code, out = finish(start(job, "mpirun.sh", deck, "--set", "run.steps=16"))
    assert code == 0 and len(losses(job.folder / "runs/small")) == 16, out


def test_one_ctrl_c_saves_and_stops(job):
    process = start(job, "mpirun.sh", job.deck(LONG))
    wait_for_training(job, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, out = finish(process)
    assert code == 75 and "stopped early after step" in out, out
    assert "good." in job.good("verify", job.folder / "runs/small")


def test_an_mpirun_that_stands_still_without_ranks_is_ended(job):
    process = start(job, "mpirun.sh", job.deck(LONG), VOLTAPILE_LINGER="2", VOLTAPILE_RESTARTS="0")
    wait_for_training(job, process)
    started = below(process.pid)
    (mpirun,) = named(started, "mpirun")
    os.kill(mpirun, signal.SIGSTOP)  # as in a deadlock: it does not even notice that they end
    wrappers = [int(pid) for pid in open(f"/proc/{mpirun}/task/{mpirun}/children").read().split()]
    for wrapper in wrappers:
        os.kill(wrapper, 9)
    try:
        code, out = finish(process)
    except subprocess.TimeoutExpired:
        os.kill(mpirun, 9)
        raise
    assert code == 5, out
    assert out.count("mpirun has nobody left to wait for") == 1, out


@pytest.mark.parametrize("victim", ["script", "mpirun", "run_rank"])
def test_no_rank_outlives_what_started_it(job, victim):
    process = start(job, "mpirun.sh", job.deck(LONG), VOLTAPILE_RESTARTS="0")
    wait_for_training(job, process)
    started = below(process.pid)
    mpirun = named(started, "mpirun")
    ranks = named(started, "voltapile")
    assert len(mpirun) == 1 and len(ranks) == 4
    wrapper = int(open(f"/proc/{ranks[0]}/stat").read().rsplit(")", 1)[1].split()[1])
    os.kill({"script": process.pid, "mpirun": mpirun[0], "run_rank": wrapper}[victim], 9)
    process.communicate(timeout=120)
    end = time.monotonic() + 60
    while any(is_running(rank) for rank in ranks):
        if time.monotonic() > end:
            wait_until_gone(ranks)
            pytest.fail(f"ranks outlived their {victim}")
        time.sleep(0.05)


def test_a_job_script_without_a_deck_or_a_program_says_so(job):
    code, out = finish(start(job, "mpirun.sh"))
    assert code == 2 and "usage: mpirun.sh DECK" in out
    code, out = finish(start(job, "mpirun.sh", job.deck(), VOLTAPILE="nowhere/voltapile"))
    assert code == 2 and "nowhere/voltapile" in out
    code, out = finish(start(job, "mpirun.sh", "nowhere.toml"))
    assert code == 2 and "nowhere.toml" in out


def test_the_users_environment_file_is_read_first(job):
    (job.folder / "my_env.sh").write_text(f"echo mine >&2\nexport VOLTAPILE={BINARY}\n")
    code, out = finish(start(job, "mpirun.sh", job.deck(), VOLTAPILE="", VOLTAPILE_ENV="my_env.sh"))
    assert code == 0 and out.startswith("mine\n"), out


@pytest.mark.parametrize(
    "codes,launcher,expected,starts",
    [
        # srun reports the signal with which it ended the other ranks.
        ("4 137 137 137", 137, 4, 1),
        ("137 137 2 75", 137, 2, 1),
        ("5 75 75 75", 75, 5, 2),
        ("137 75 75 75", 75, 5, 2),
        ("", 1, 5, 2),  # not even started
        ("0 0 0 0", 0, 5, 2),  # yet the run's folder is not finished
    ],
)
def test_the_first_cause_counts_and_not_the_launchers_code(job, codes, launcher, expected, starts):
    stand_in(
        job,
        "mpirun",
        f"""echo start >>{job.folder}/starts
while [ "${{1##*/}}" != run_rank.sh ]; do shift; done
rank=0
for code in {codes}; do echo $code >"$2/rank_$rank"; rank=$((rank + 1)); done
exit {launcher}
""",
    )
    code, out = finish(start(job, "mpirun.sh", job.deck(), VOLTAPILE_RESTARTS="1"))
    assert code == expected, out
    assert (job.folder / "starts").read_text().count("start") == starts, out


def test_pauses_between_restarts_grow_and_begin_again_after_progress(job):
    # Two failures without a checkpoint, one after it, and three more.
    stand_in(
        job,
        "mpirun",
        f"""echo start >>{job.folder}/starts
n=$(wc -l <{job.folder}/starts)
if [ $n = 3 ]; then
  PATH=${{PATH#*:}} mpirun -n 4 {BINARY} train {job.deck()} --set run.steps=4
fi
exit 5
""",
    )
    stand_in(job, "sleep", "exec /bin/sleep 0.01\n")
    more = ["--set", "run.steps=20"]
    code, out = finish(start(job, "mpirun.sh", job.deck(), *more, VOLTAPILE_PAUSE="10"))
    assert code == 5
    pauses = [int(word) for word in re.findall(r"Restart \d of 3 in (\d+) s", out)]
    assert pauses == [10, 20, 10, 20, 40], out


# A machine of two halves: GPU 0 on node 0, GPUs 1 and 2 on node 1.
NVIDIA_SMI = """
if [ "$1" = -i ]; then
  case $2 in
    0) echo 00000000:3B:00.0 ;;
    1 | GPU-abc) echo 00000000:AF:00.0 ;;
    *) exit 6 ;;
  esac
else
  printf '0\\n1\\n'
fi
"""


@pytest.mark.parametrize(
    "local_rank,visible,cpus",
    [
        ("0", None, "0"),
        ("1", None, "1"),
        ("0", "1", "1"),
        ("1", "1,0", "0"),
        ("0", "GPU-abc", "1"),
        ("0", "7", "0-1"),  # nvidia-smi does not know it: unbound
    ],
)
def test_a_rank_is_bound_to_the_cpus_beside_its_gpu(job, local_rank, visible, cpus):
    if sorted(os.sched_getaffinity(0))[:2] != [0, 1]:
        pytest.skip("needs CPUs 0 and 1")
    stand_in(job, "nvidia-smi", NVIDIA_SMI)
    stand_in(job, "numactl", "exit 1\n")  # then taskset must do
    sysfs = job.folder / "sys"
    for bus, node in {"0000:3b:00.0": 0, "0000:af:00.0": 1}.items():
        device = sysfs / "bus/pci/devices" / bus
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        cpulist = sysfs / f"devices/system/node/node{node}"
        cpulist.mkdir(parents=True)
        (cpulist / "cpulist").write_text(f"{node}\n")
    environment = {"VOLTAPILE_SYSFS": str(sysfs), "OMPI_COMM_WORLD_LOCAL_RANK": local_rank}
    environment |= {"OMPI_COMM_WORLD_RANK": "5", "SLURM_LOCALID": "0", "SLURM_PROCID": "0"}
    if visible:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    show = "taskset -cp $$ | sed 's/.*: //'; exit 7"
    code, out = finish(
        start(job, "run_rank.sh", job.folder, "taskset", "-c", "0,1", "true", **environment)
    )
    assert code == 0
    process = start(job, "run_rank.sh", job.folder, "bash", "-c", show, **environment)
    code, out = finish(process)
    everything = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    assert out.strip() == cpus or (cpus == "0-1" and out.strip() in ("0-1", "0,1", everything)), out
    assert code == 7 and (job.folder / "rank_5").read_text() == "7\n"


QSTAT = """
cat <<'END'
Job Id: 12.server
    Job_Name = small
    Resource_List.select = 1:ncpus=4:mpiprocs=4:mem=4000mb:host=a_rather_long_nam
\te_of_a_host
    Resource_List.walltime = 00:05:03
    Account_Name = physics
END
"""


def start_pbs(job, **environment):
    stand_in(job, "qstat", QSTAT)
    stand_in(job, "qsub", f"printf '%s\\n' \"$@\" >{job.folder}/qsub.txt\n")
    hosts = job.folder / "hosts"
    hosts.write_text(f"{os.uname().nodename}\n" * 4)
    environment = {
        "PBS_O_WORKDIR": str(job.folder),
        "PBS_JOBID": "12.server",
        "PBS_JOBNAME": "small",
        "PBS_QUEUE": "long",
        "PBS_NODEFILE": str(hosts),
        "VOLTAPILE_DECK": str(job.deck(LONG)),
        "VOLTAPILE_JOBSCRIPTS": str(SCRIPTS),
        **environment,
    }
    return start(job, "pbs.sh", **environment)


def test_a_pbs_job_stops_before_its_limit_and_submits_itself_again(job):
    process = start_pbs(job, VOLTAPILE_CHANGES="--set run.seed=5", VOLTAPILE_MARGIN="297")
    code, out = finish(process)
    assert code == 75 and "Signal USR1" in out and "stopped early" in out, out
    words = (job.folder / "qsub.txt").read_text().splitlines()
    assert words[-1] == str(SCRIPTS / "pbs.sh")
    for option in (
        ["-W", "depend=afterany:12.server"],
        ["-l", "select=1:ncpus=4:mpiprocs=4:mem=4000mb:host=a_rather_long_name_of_a_host"],
        ["-l", "walltime=00:05:03"],
        ["-q", "long"],
        ["-A", "physics"],
    ):
        assert any(words[i : i + 2] == option for i in range(len(words))), (option, words)
    passed = words[words.index("-v") + 1].split(",")
    assert "VOLTAPILE_CHANGES=--set run.seed=5" in passed and "VOLTAPILE_MARGIN=297" in passed
    assert "seed = 5" in (job.folder / "runs/small/deck.toml").read_text()


def test_a_deleted_pbs_job_does_not_come_back(job):
    process = start_pbs(job)
    wait_for_training(job, process)
    os.kill(process.pid, signal.SIGTERM)
    code, out = finish(process)
    assert code == 75 and "cancelled" in out, out
    assert not (job.folder / "qsub.txt").exists()


def test_an_lsf_job_ends_with_the_code_that_puts_it_back(job):
    hosts = job.folder / "hosts"
    hosts.write_text(f"{os.uname().nodename}\n" * 4)
    process = start(job, "lsf.sh", job.deck(LONG), LSB_DJOB_HOSTFILE=str(hosts))
    wait_for_training(job, process)
    os.kill(process.pid, signal.SIGUSR1)
    code, out = finish(process)
    assert code == 75 and "stopped early" in out, out


def sweep(job, *arguments):
    options = ["--time", "10m", "--tasks-per-node", "4"]
    line = [SCRIPTS / "sweep.sh", "--dry", *arguments, "--", *options]
    return subprocess.run(line, cwd=job.folder, env=job.environment, capture_output=True, text=True)


def test_the_runs_of_a_sweep_never_share_a_name(job):
    deck = job.deck()
    values = "1e-3,1.0e-3,0.001,1e-03"  # one number, four texts
    done = sweep(job, deck, f"optimizer.lr={values}", "optimizer.betas=[0.9,0.95],[0.9, 0.95]")
    assert done.returncode == 0, done.stderr
    folders = [line.split("\t")[0] for line in done.stdout.splitlines() if "\t" in line]
    assert len(folders) == len(set(folders)) == 8
    again = sweep(job, deck, f"optimizer.lr={values}", "optimizer.betas=[0.9,0.95],[0.9, 0.95]")
    assert again.stdout == done.stdout, "the same sweep names its runs the same, and so continues"
    assert "--array=0-7" in done.stdout
    assert not (job.folder / "runs").exists()


def test_a_sweep_finds_its_scripts_wherever_the_program_lies(job, tmp_path):
    program = tmp_path / "voltapile"
    shutil.copy(BINARY, program)
    job.environment["VOLTAPILE"] = str(program)
    job.environment.pop("VOLTAPILE_JOBSCRIPTS", None)
    done = sweep(job, job.deck(), "run.seed=1,2")
    assert done.returncode == 0 and f"{SCRIPTS}/slurm.sbatch" in done.stdout, done.stderr


def test_a_table_of_no_sweep_is_refused(job):
    line = [SCRIPTS / "sweep.sh", "--table", job.folder]
    done = subprocess.run(line, cwd=job.folder, capture_output=True, text=True)
    assert done.returncode != 0 and "runs.tsv: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_sweeps_that_cannot_be(job):
    deck = job.deck()
    twice = sweep(job, deck, "optimizer.lr=1e-3,1e-3")
    assert twice.returncode == 2 and "twice" in twice.stderr
    meshes = sweep(job, deck, "parallel.data=1,2")
    assert meshes.returncode == 2 and "different numbers of ranks" in meshes.stderr
    bad = sweep(job, deck, "optimizer.lr=1e-3,-1", "model.heads=4,5")
    assert bad.returncode == 2 and bad.stderr.count("\nerror: ") == 3, bad.stderr
    assert "Nothing was submitted" in bad.stderr


def test_the_table_ranks_accuracy_before_loss_and_survives_missing_runs(job):
    trained = '{"kind":"train","step":%d,"loss":%s}'
    tested = '{"kind":"eval","step":9,"loss":1.5,"top1":%s}'
    for name, lines in {
        "a": [trained % (5, 0.5), tested % 0.3],
        "b": [trained % (9, 0.7), tested % 0.4],
        "c": [trained % (3, 0.1), '{"kind":"tra'],
        "d": [trained % (4, "null"), '{"kind":"rewind","step":4,"from_step":6,"rewinds":1}'],
    }.items():
        (job.folder / name).mkdir()
        (job.folder / name / "metrics.jsonl").write_text("\n".join(lines))
    (job.folder / "runs.tsv").write_text("".join(f"{name}\t9\tk={name}\n" for name in "dgcab"))
    line = [SCRIPTS / "sweep.sh", "--table", job.folder]
    done = subprocess.run(line, cwd=job.folder, capture_output=True, text=True, check=True)
    rows = [row.split() for row in done.stdout.splitlines()[1:]]
    assert [row[-1] for row in rows] == ["b", "a", "c", "d", "g"]
    assert rows[0][1:3] == ["40.00", "%"] and rows[2][-5:-1] == ["3", "of", "9", "k=c"]
