"""What `compare-mounts --object-store` does: mounts of one object store, in one run.

    scripts/compare-mounts --object-store            2 GiB, 100,000 reads; about half an hour
    scripts/compare-mounts --object-store --quick    small, for a look whether all works
    scripts/compare-mounts --object-store --jobs write,read --bytes 1GiB --rounds 3

`cargo xtask store-server` runs MinIO behind a proxy that delays each request by --delay-ms; all
subjects use it, and all have their caches in --dir.

Subjects:
    raw       puts and ranged gets of 8 MiB by the client of Forebay, as many at a time as a pool
              sends, with nothing above them (`forebay-bench object-requests`)
    forebay   forebay mount, with an L2 device (a file) that holds everything
    file      forebay mount of a pool on a file
    s3fs      with its cache (Debian: s3fs); 32 requests at a time, parts of 8 MiB
    rclone    rclone mount with its full cache (Debian: rclone); the same

Jobs:
    write     bytes/s: one file written in order and synced; for rclone, until it has uploaded it
    read      bytes/s: the same file read in order, nothing cached. CPU seconds of Forebay's process
    create    files/s of fs_mark, 4 threads, empty files, no fsync; on s3fs and rclone a fiftieth of
              the files
    random    reads/s of 64 threads, 8 KiB at random, nothing cached, with records of 8 KiB on
              Forebay. Requests of all kinds a read, and requests at a time. On s3fs and rclone a
              hundredth of the reads
    restart   reads/s of 32 threads, 8 KiB at random of a set in L2 that memory does not hold,
              before an export and from 2 s after `mount` was called on, and the ratio

A round does each job on each subject, one after the other. Results are medians, ratios are of
medians.
"""

import argparse
import collections
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
PART = 8 * MIB
# Seconds until everything that was written is on L2, which has no sync.
L2_SETTLES = 15


class Server:
    """MinIO and the proxy."""

    def __init__(self, common, delay_ms, folder):
        command = ["cargo", "xtask", "store-server"]
        xtask = os.path.join(common.ROOT, "target", "debug", "xtask")
        command = [xtask, "store-server"] if os.access(xtask, os.X_OK) else command
        self.process = subprocess.Popen(
            command, cwd=common.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": folder}, start_new_session=True)
        first = self.process.stdout.readline()
        if not first:
            raise common.Skip("the server does not start; see above")
        told = json.loads(first)
        self.bucket, self.variables = told["bucket"], told["variables"]
        self.ask(f"delay {delay_ms}")

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(f"store-server: {line}: {answer['error']}")
        return answer

    def counts(self):
        """Since the last call."""
        return self.ask("counts")

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Mount:
    """A mounted file system. `at` has large records, `small` those of 8 KiB."""

    def __init__(self, name, context):
        self.name, self.context, self.common = name, context, context.common
        self.folder = os.path.join(context.folder, name)
        self.at = self.small = os.path.join(self.folder, "mnt")
        os.makedirs(self.at)
        self.share = 1

    def stop(self):
        for at in {self.at, self.small}:
            if os.path.ismount(at):
                self.common.quiet("umount", at) or self.common.quiet("umount", "-l", at)


class Forebay(Mount):
    """A pool on the store, or on a file."""

    def start(self):
        run_dir = os.path.join(self.folder, "run")
        os.makedirs(run_dir, mode=0o700)
        self.env = {
            "FOREBAY_RUN_DIR": run_dir, "FOREBAY_STATE_DIR": os.path.join(self.folder, "state"),
            **self.context.server.variables}
        self.small = os.path.join(self.folder, "mnt-small")
        os.makedirs(self.small)
        self.pool = f"compare-{self.name}"
        self.l2 = None
        if self.name == "file":
            self.medium = os.path.join(self.folder, "image")
            self.command("create", self.medium, "--name", self.pool, "--size", "16G")
        else:
            self.medium = f"s3://{self.context.server.bucket}/{self.name}"
            self.l2 = os.path.join(self.folder, "l2")
            with open(self.l2, "wb") as file:
                file.truncate(4 * self.context.given.bytes + 512 * MIB)
            self.command(
                "create", "--object-store", self.medium, "--name", self.pool, "--l2-device", self.l2)
        self.command("dataset", "create", self.medium, "small", "--record-size", "8K")
        self.mount()

    def command(self, *arguments):
        return self.common.run(self.context.given.forebay, *arguments, env=self.env)

    def mount(self, small_only=False, memory=None):
        memory = ["--memory", str(memory or self.context.given.memory)]
        for tunable in self.context.given.tunable:
            memory += ["--tunable", tunable]
        if small_only:
            wanted = ["--dataset", "small"]
            return self.command("mount", self.medium, self.small, "--daemon", *memory, *wanted)
        self.command("mount", self.medium, self.at, "--daemon", *memory)
        return self.command("mount", self.pool, self.small, "--dataset", "small", "--daemon")

    def cpu_seconds(self):
        """Of the process of the mounts, until now."""
        process = json.loads(self.command("stats", "--json"))[0]["pid"]
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def export(self):
        self.command("export", self.pool)

    def cool(self):
        os.sync()
        if self.l2:
            time.sleep(L2_SETTLES)
            self.command("l2", "remove", self.pool, self.l2)
            self.command("l2", "add", self.pool, self.l2)
        self.command("cache", "flush", self.pool)
        self.common.drop_caches()

    def stop(self):
        if hasattr(self, "medium"):
            try:
                self.export()
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                self.common.note(str(error))
        super().stop()


class Peer(Mount):
    """s3fs or rclone: what they cache is in a folder, which a restart can remove."""

    def start(self):
        self.common.needs(self.name, self.name)
        self.share = 100
        self.mount()

    def mount(self):
        variables, bucket = self.context.server.variables, self.context.server.bucket
        endpoint, cache = variables["AWS_ENDPOINT"], os.path.join(self.folder, "cache")
        if self.name == "s3fs":
            self.common.run(
                "s3fs", bucket, self.at, "-o", f"url={endpoint},use_path_request_style",
                "-o", f"use_cache={cache},parallel_count=32,multipart_size={PART // MIB}",
                env={"AWSACCESSKEYID": variables["AWS_ACCESS_KEY_ID"],
                     "AWSSECRETACCESSKEY": variables["AWS_SECRET_ACCESS_KEY"]})
        else:
            self.common.run(
                "rclone", "mount", f":s3:{bucket}/rclone", self.at, "--daemon",
                "--config", "/dev/null", "--s3-provider", "Minio", "--s3-env-auth",
                "--s3-endpoint", endpoint, "--s3-upload-concurrency", 32,
                "--s3-chunk-size", "8M", "--vfs-cache-mode", "full", "--cache-dir", cache,
                "--vfs-write-back", "0s",
                # The server has no TLS, and rclone fails if it is to trust certificates.
                env={**variables, "AWS_CA_BUNDLE": ""})
        self.common.wait_for_mount(self.at)

    def cool(self):
        self.common.run("umount", self.at)
        shutil.rmtree(os.path.join(self.folder, "cache"), ignore_errors=True)
        self.common.drop_caches()
        self.mount()


class Raw:
    """Requests with no file system."""

    share = 1

    def __init__(self, name, context):
        self.name, self.context = name, context

    def start(self):
        pass

    def stop(self):
        pass

    def send(self, kind):
        context = self.context
        url = f"s3://{context.server.bucket}/raw"
        text = context.common.run(
            context.given.bench, "--json", "object-requests", kind, url, "--object-bytes", PART,
            "--objects", context.given.bytes // PART, env=context.server.variables)
        return json.loads(text.splitlines()[-1])["bytes_per_s"]


SUBJECTS = {"raw": Raw, "forebay": Forebay, "file": Forebay, "s3fs": Peer, "rclone": Peer}


def job_write(subject, given, counted):
    if subject.name == "raw":
        return subject.send("put")
    path = os.path.join(subject.at, "sequential.0")
    if os.path.exists(path):
        os.unlink(path)
    os.sync()
    subject.context.server.counts()
    began = time.monotonic()
    subject.common.lay_out(subject.at, "sequential", 1, given.bytes)
    sent = 0
    while True:
        counted.update(subject.context.server.counts())
        sent += counted["body_bytes"]
        if subject.name != "rclone" or sent >= given.bytes:
            break
        time.sleep(0.05)
    counted["body_bytes"] = sent
    return given.bytes / (time.monotonic() - began)


def job_read(subject, given, counted):
    if subject.name == "raw":
        return subject.send("get")
    subject.common.lay_out(subject.at, "sequential", 1, given.bytes)
    subject.cool()
    cpu_seconds = getattr(subject, "cpu_seconds", lambda: 0)
    subject.context.server.counts()
    before = cpu_seconds()
    found = subject.common.fio("sequential-read", subject.at, SIZE=given.bytes)
    counted["cpu_s"] = cpu_seconds() - before
    counted.update(subject.context.server.counts())
    return found["read"]["bw_bytes"]


def job_create(subject, given, _):
    subject.common.needs("fs_mark", "fsmark")
    files = given.creates if subject.share == 1 else max(given.creates // 50, 10)
    return subject.common.fs_mark(subject, files, 0)


def random_reads(subject, size, threads, *, reads=None, seconds=None):
    """Runs fio, and returns what it says of the reads: so many, no block of them twice, by threads
    that have a part of the file each; or those of some seconds, by threads that read all of it."""
    if reads:
        part = size // threads
        limit = [f"--number_ios={max(reads // threads, 1)}", f"--size={part}", f"--offset_increment={part}"]
    else:
        limit = ["--time_based", f"--runtime={seconds}", f"--size={size}", "--norandommap"]
    text = subject.common.run(
        "fio", "--output-format=json", "--name=random", "--rw=randread", "--bs=8k", "--thread",
        "--ioengine=psync", f"--numjobs={threads}", "--group_reporting", "--fallocate=none",
        "--randrepeat=0", *limit, f"--filename={os.path.join(subject.small, 'random.0')}")
    return json.loads(text[text.index("{"):])["jobs"][0]["read"]


def job_random(subject, given, counted):
    subject.common.lay_out(subject.small, "random", 1, given.bytes)
    subject.cool()
    subject.context.server.counts()
    reads = max(given.reads // subject.share, 64)
    found = random_reads(subject, given.bytes, 64, reads=reads)
    counted.update(subject.context.server.counts())
    counted["reads"] = found["total_ios"]
    counted["requests_a_read"] = counted["requests"] / found["total_ios"]
    return found["iops"]


def job_restart(subject, given, counted):
    # The set is at least twice the memory.
    memory = 64 * MIB
    size = max(given.bytes // 4, 2 * memory)
    subject.common.lay_out(subject.small, "random", 1, max(given.bytes, size))
    os.sync()
    time.sleep(L2_SETTLES)
    subject.export()
    subject.mount(small_only=True, memory=memory)
    subject.common.drop_caches()
    random_reads(subject, size, 32, seconds=given.seconds)
    time.sleep(L2_SETTLES)
    warm = random_reads(subject, size, 32, seconds=given.seconds)["iops"]
    subject.export()
    subject.common.drop_caches()
    subject.context.server.counts()
    began = time.monotonic()
    subject.mount(small_only=True, memory=memory)
    counted["mounted_after_s"] = time.monotonic() - began
    time.sleep(max(2 - (time.monotonic() - began), 0))
    counted["warm"] = warm
    after = random_reads(subject, size, 32, seconds=1)["iops"]
    counted["ratio"] = after / warm
    counted.update(subject.context.server.counts())
    subject.export()
    subject.mount()
    return after


JOBS = {
    "write": (job_write, "bytes/s", "raw,forebay,s3fs,rclone"),
    "read": (job_read, "bytes/s", "raw,forebay,s3fs,rclone"),
    "create": (job_create, "files/s", "forebay,file,s3fs,rclone"),
    "random": (job_random, "reads/s", "forebay,s3fs,rclone"),
    "restart": (job_restart, "reads/s", "forebay"),
}


def bars(medians, counted):
    """What has to hold, as (what, figure, bar, whether the bar is the least)."""
    found = []
    for job, other, bar in (("write", "raw", 0.7), ("read", "raw", 0.7), ("create", "file", 0.7)):
        ours, theirs = (medians.get(job, {}).get(name) for name in ("forebay", other))
        if ours and theirs:
            found.append((f"{job}: forebay by {other}", ours / theirs, bar, True))
    told = {job: counted.get((job, "forebay")) for job in JOBS}
    if told["restart"]:
        what = "restart: rate 2 s after the call of mount, by that before"
        found.append((what, told["restart"]["ratio"], 0.9, True))
    if told["random"]:
        found.append(("random: requests a read", told["random"]["requests_a_read"], 1.1, False))
        found.append(("random: requests at a time", told["random"]["in_flight_max"], 64, True))
    return found


class Context:
    """What subjects share."""

    def __init__(self, common, given, folder):
        self.common, self.given, self.folder = common, given, folder
        self.server = Server(common, given.delay_ms, folder)


def arguments(common, words):
    parser = argparse.ArgumentParser(
        prog="compare-mounts --object-store", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="small jobs")
    add("--subjects", type=common.parse_list(SUBJECTS), default=list(SUBJECTS), metavar="A,B")
    add("--jobs", type=common.parse_list(JOBS), default=list(JOBS), metavar="A,B")
    add("--rounds", type=int, default=1)
    add("--bytes", type=common.parse_bytes, help="of the files; default 2GiB, or 64MiB with --quick")
    add("--reads", type=int, help="of the job random; default 100000, or 2000")
    add("--creates", type=int, help="files of each thread; default 10000, or 500")
    add("--seconds", type=int, help="of timed jobs; default 10, or 2")
    add("--memory", type=common.parse_bytes, default=1024 * MIB, help="of Forebay; default 1GiB")
    add("--tunable", action="append", default=[], metavar="NAME=VALUE", help="of Forebay's mounts")
    add("--delay-ms", type=int, default=20, help="of each request; default 20")
    add("--dir", help="where all data lies; default: the system's temporary folder")
    add("--forebay", help="the binary; default target/release/forebay, or the one in PATH")
    add("--bench", help="the binary of `raw`; default target/release/forebay-bench")
    add("--json", metavar="FILE", help="write all figures there")
    add("--no-bars", action="store_true", help="do not fail if a bar is missed")
    given = parser.parse_args(words)
    quick = given.quick
    given.bytes = (given.bytes or (64 if quick else 2048) * MIB) // PART * PART
    given.reads = given.reads or (2000 if quick else 100_000)
    given.creates = given.creates or (500 if quick else 10_000)
    given.seconds = given.seconds or (2 if quick else 10)
    return given


def start_all(context, made, skipped):
    for name in context.given.subjects:
        subject = None
        try:
            subject = SUBJECTS[name](name, context)
            made.append(subject)
            subject.start()
        except (context.common.Skip, RuntimeError, OSError) as error:
            skipped[name] = str(error)
            context.common.note(f"{name} is left out: {error}")
            if subject in made:
                made.remove(subject)
                subject.stop()


def measure(context, subjects, skipped):
    """The figures of each round, and what else was counted in the last one."""
    common, given = context.common, context.given
    rounds, counted = collections.defaultdict(dict), {}
    for number in range(given.rounds):
        for job in given.jobs:
            run, unit, wanted = JOBS[job]
            for subject in subjects:
                if subject.name not in wanted.split(",") or f"{subject.name} {job}" in skipped:
                    continue
                told = {}
                try:
                    figure = run(subject, given, told)
                except (common.Skip, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                    skipped[f"{subject.name} {job}"] = str(error)
                    common.note(f"{job} on {subject.name} is left out: {error}")
                    continue
                rounds[job].setdefault(subject.name, []).append(figure)
                counted[job, subject.name] = told
                common.note(
                    f"round {number + 1} of {given.rounds}, {job} on {subject.name}: "
                    f"{common.show(figure, unit)} {told or ''}")
    return rounds, counted


def tell(context, rounds, counted, skipped):
    common, given = context.common, context.given
    medians = {
        job: {name: statistics.median(found) for name, found in figures.items()}
        for job, figures in rounds.items()}
    names = [name for name in given.subjects if any(name in found for found in medians.values())]
    print("| job | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for job, found in medians.items():
        cells = [common.show(found[name], JOBS[job][1]) if name in found else "–" for name in names]
        print(f"| {job} | " + " | ".join(cells) + " |")
    print()
    checked = [
        (what, figure, bar, figure >= bar if least else figure <= bar, least)
        for what, figure, bar, least in bars(medians, counted)]
    for what, figure, bar, held, least in checked:
        limit = "at least" if least else "at most"
        print(f"{'holds ' if held else 'MISSED'} {what}: {figure:.2f}, {limit} {bar}")
    if given.json:
        document = {
            "rounds": rounds, "medians": medians, "left_out": skipped,
            "counted": {f"{job} {name}": told for (job, name), told in counted.items()},
            "bars": [{"what": what, "figure": figure, "bar": bar, "held": held}
                     for what, figure, bar, held, _ in checked]}
        with open(given.json, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2) + "\n")
    return all(held for _, _, _, held, _ in checked)


def main(common, words):
    given = arguments(common, words)
    try:
        common.needs("fio", "fio")
        given.forebay = common.find_program("forebay", given.forebay, "forebay")
        if "raw" in given.subjects:
            given.bench = common.find_program("forebay-bench", given.bench, "bench")
    except common.Skip as error:
        common.note(str(error))
        return 2
    folder = tempfile.mkdtemp(prefix="compare-mounts.", dir=given.dir)
    # Two files of each of three mounts, on the store and in caches, and the raw objects.
    if shutil.disk_usage(folder).free < 16 * given.bytes:
        common.note(f"{folder}: needs {16 * given.bytes >> 30} GiB free; give --dir or less --bytes")
        os.rmdir(folder)
        return 2

    def interrupted(number, _):
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    made, skipped, context = [], {}, None
    try:
        context = Context(common, given, folder)
        start_all(context, made, skipped)
        rounds, counted = measure(context, made, skipped)
        held = tell(context, rounds, counted, skipped)
    except (common.Skip, KeyboardInterrupt) as error:
        common.note(str(error) or "interrupted")
        return 2
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for subject in reversed(made):
            common.quiet_call(subject.stop)
        if context:
            context.server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if held or given.no_bars else 1
