//! Pools on an object store, on the command line.

use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

use serde_json::Value;

use crate::fixture::{Fixture, failed, texts, wait_until};
use crate::s3::{READER, S3Server};

pub(crate) const URL: &str = "s3://bucket/tank";

/// A host with a store.
pub(crate) struct Host<'a> {
    pub(crate) fixture: Fixture,
    server: &'a S3Server,
    may_change: bool,
}

impl<'a> Host<'a> {
    pub(crate) fn new(server: &'a S3Server) -> Self {
        Self { fixture: Fixture::new(), server, may_change: true }
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.fixture.command(arguments);
        command.envs(self.server.environment());
        if !self.may_change {
            command.env("AWS_ACCESS_KEY_ID", READER);
        }
        command.output().expect("the program runs")
    }

    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{arguments:?}: {out}{err}");
        out
    }

    #[track_caller]
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        failed(&self.run(arguments), crate::fixture::failure_code(arguments), arguments)
    }

    /// Creates a pool and mounts it at `mnt`, with more arguments. Returns the folder.
    pub(crate) fn create_mounted(&self, arguments: &[&str]) -> PathBuf {
        self.ok(&["create", "--name", "tank", "--object-store", URL]);
        let folder = self.fixture.folder("mnt");
        self.ok(&[&["mount", URL, "mnt", "--daemon"], arguments].concat());
        folder
    }
}

pub(crate) fn kill(host: &Host<'_>) {
    let pid = host.fixture.processes()[0]["pid"].as_i64().expect("a pid") as i32;
    crate::fixture::signal(pid, libc::SIGKILL);
    wait_until("its end", || !Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_pool_on_a_store_is_created_used_killed_and_destroyed() {
    let server = S3Server::start();
    server.put("bucket/other");
    server.put("bucket/tanks/other");
    let host = Host::new(&server);
    let created =
        host.ok(&["create", "--name", "tank", "--object-store", URL, "--compression", "lz4"]);
    assert!(created.contains("mount it with `forebay mount s3://bucket/tank`"), "{created}");
    let again = host.fails(&["create", "--object-store", URL]);
    assert!(again.contains("is not empty"), "{again}");
    let folder = host.fixture.folder("mnt");
    host.ok(&["mount", URL, "mnt", "--daemon"]);
    std::fs::write(folder.join("kept"), vec![7; 3 << 20]).expect("written");
    let file = std::fs::File::open(folder.join("kept")).expect("there");
    file.sync_all().expect("an fsync");
    let status = host.ok(&["status", URL]);
    for wanted in [
        "store      s3://bucket/tank",
        "requests",
        " put (",
        "until all addresses",
        "objects    ",
        " of them live",
    ] {
        assert!(status.contains(wanted), "{wanted}: {status}");
    }
    let refused = host.fails(&["expand", "tank"]);
    assert!(refused.contains("grows by itself"), "{refused}");
    let used = host.fails(&["destroy", URL, "--yes"]);
    assert!(used.contains("in use"), "{used}");
    drop(file);

    // The process dies, and the pool comes back here.
    kill(&host);
    host.ok(&["umount", "mnt"]);
    host.ok(&["mount", URL, "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("kept")).expect("read"), vec![7; 3 << 20]);
    std::fs::remove_file(folder.join("kept")).expect("removed");
    host.ok(&["umount", "mnt"]);
    let inspected = host.ok(&["inspect", URL, "datasets"]);
    assert!(inspected.contains("main"), "{inspected}");
    let inspected = host.ok(&["inspect", URL, "txg"]);
    assert!(inspected.contains("space"), "{inspected}");
    let checked = host.ok(&["check", URL]);
    assert!(checked.contains("no problems"), "{checked}");
    host.ok(&["scrub", URL]);
    host.ok(&["trim", URL]);
    let refused = host.fails(&["offline", URL, URL]);
    assert!(refused.contains("no side of a mirror"), "{refused}");

    let destroyed = host.ok(&["destroy", URL, "--yes"]);
    assert!(destroyed.contains("destroyed pool tank"), "{destroyed}");
    assert_eq!(server.keys(""), ["bucket/other", "bucket/tanks/other"]);
    let gone = host.fails(&["mount", URL, "mnt"]);
    assert!(gone.contains("holds no pool"), "{gone}");
}

#[test]
fn writes_go_on_once_the_store_is_back() {
    let server = S3Server::start();
    let host = Host::new(&server);
    let folder = host.create_mounted(&["--memory", "96M"]);
    std::fs::write(folder.join("before"), vec![1; 1 << 20]).expect("written");
    server.set_away(true);
    // More than may be dirty, in another thread.
    let file = folder.join("meanwhile");
    let writer = std::thread::spawn(move || std::fs::write(file, vec![2; 64 << 20]));
    assert_eq!(std::fs::read(folder.join("before")).expect("in memory"), vec![1; 1 << 20]);
    wait_until("the outage in status", || {
        let output = host.run(&["status", URL]);
        let (text, _) = texts(&output);
        text.contains("degraded") && text.contains("has not answered")
    });
    assert!(!writer.is_finished(), "all of it fits in memory");
    server.set_away(false);
    writer.join().expect("no panic").expect("written");
    wait_until("health", || texts(&host.run(&["status", URL])).0.contains("health     online"));
    host.ok(&["umount", "mnt"]);
    host.ok(&["mount", URL, "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("meanwhile")).expect("read"), vec![2; 64 << 20]);
    host.ok(&["umount", "mnt"]);
}

/// The clock of the machine is wrong for a time, or that of the server.
#[test]
fn a_wrong_clock_loses_nothing_and_status_says_to_set_it() {
    let server = S3Server::start();
    let (writer, reader) = (Host::new(&server), Host::new(&server));
    let (from, to) = (writer.create_mounted(&OFTEN), reader.fixture.folder("mnt"));
    std::fs::write(from.join("file"), "before").expect("written");
    reader.ok(&[&FOLLOW[..], &["--follow-interval", "1"]].concat());
    while_writing(&from, "the first content", || to.join("file").exists());
    server.set_skewed(true);
    std::fs::write(from.join("file"), "meanwhile").expect("in memory");
    let file = std::fs::File::open(from.join("file")).expect("there");
    let syncing = std::thread::spawn(move || file.sync_all());
    for host in [&writer, &reader] {
        wait_until("what to do in status", || {
            let text = texts(&host.run(&["status", URL])).0;
            text.contains("RequestTimeTooSkewed") && text.contains("set the clock of this machine")
        });
    }
    assert!(!syncing.is_finished(), "nobody has stored it");
    assert!(to.join("file").exists(), "what is in memory is read");
    server.set_skewed(false);
    syncing.join().expect("no panic").expect("an fsync");
    for host in [&writer, &reader] {
        wait_until("health", || texts(&host.run(&["status", URL])).0.contains("health     online"));
    }
    while_writing(&from, "the content of meanwhile", || {
        std::fs::read_to_string(to.join("file")).is_ok_and(|text| text == "meanwhile")
    });
    wait_until("the pin", || !texts(&reader.run(&["status", URL])).0.contains("not pinned"));
    reader.ok(&["umount", "mnt"]);
    kill(&writer);
    writer.ok(&["umount", "mnt"]);
    writer.ok(&["mount", URL, "mnt", "--daemon"]);
    assert_eq!(std::fs::read_to_string(from.join("file")).expect("read"), "meanwhile");
    writer.ok(&["umount", "mnt"]);
}

/// Transaction groups are frequent, and what was freed is deleted soon.
pub(crate) const OFTEN: [&str; 4] = ["--retention", "1", "--tunable", "txg_timeout_ms=100"];

/// What `df` shows.
fn usage(at: &Path) -> libc::statvfs {
    let path = std::ffi::CString::new(at.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: plain numbers, for which zeros are valid.
    let mut usage: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and the result has room.
    let result = unsafe { libc::statvfs(path.as_ptr(), &mut usage) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    usage
}

pub(crate) const FOLLOW: [&str; 6] = ["mount", URL, "mnt", "--daemon", "--read-only", "--follow"];

/// Changes a file until `holds`: without changes there is no transaction group.
pub(crate) fn while_writing(folder: &Path, what: &str, mut holds: impl FnMut() -> bool) {
    let mut round = 0_u64;
    wait_until(what, || {
        round += 1;
        std::fs::write(folder.join("tick"), round.to_string()).expect("written");
        holds()
    });
}

#[test]
fn other_hosts_follow_a_pool_and_pin_what_they_read() {
    let server = S3Server::start();
    let (writer, reader) = (Host::new(&server), Host::new(&server));
    let (from, to) = (writer.create_mounted(&OFTEN), reader.fixture.folder("mnt"));
    std::fs::write(from.join("file"), "one").expect("written");
    reader.ok(&[&FOLLOW[..], &["--follow-interval", "1"]].concat());
    let shows = |text: &str| std::fs::read_to_string(to.join("file")).is_ok_and(|it| it == text);
    while_writing(&from, "the first content", || shows("one"));
    let open = std::fs::File::open(to.join("file")).expect("there");
    std::fs::write(from.join("file"), "two").expect("written");
    while_writing(&from, "the second content", || shows("two"));
    assert_eq!(std::io::read_to_string(&open).expect("read"), "one", "it was open");
    let refused = std::fs::write(to.join("file"), "three").expect_err("it is read-only");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let status = reader.ok(&["status", URL]);
    for wanted in ["read-only", "follow ", "writes it (epoch", " s old", "pinned"] {
        assert!(status.contains(wanted), "{wanted}: {status}");
    }
    assert!(!status.contains("not pinned"), "{status}");
    assert!(status.contains(" allocated by the datasets"), "{status}");
    assert_eq!(server.keys("bucket/tank/pins/").len(), 1);
    let usage = usage(&to);
    assert!(usage.f_blocks > usage.f_bfree, "{} free of {}", usage.f_bfree, usage.f_blocks);
    let refused = reader.fails(&["l2", "add", "tank", "l2.img", "--size", "64M"]);
    assert!(refused.contains("mount it with --l2"), "{refused}");

    // What it has read so far is counted also in the group after that.
    let lookups = || {
        let stats: Value = serde_json::from_str(&reader.ok(&["stats", "--json"])).expect("JSON");
        let of = |what: &str, name: &str| {
            let counters = &stats[0][what][0]["counters"];
            counters[name].as_u64().unwrap_or_else(|| panic!("{name} of {stats}"))
        };
        [("pools", "read_bytes.miss"), ("mounts", "files.operations.lookup")]
            .map(|(what, name)| of(what, name))
    };
    let before = lookups();
    assert!(before.iter().all(|count| *count > 0), "{before:?}");
    std::fs::write(from.join("next"), "").expect("written");
    while_writing(&from, "the next group", || {
        let now = lookups();
        assert!(now.iter().zip(&before).all(|(now, before)| now >= before), "{now:?}, {before:?}");
        to.join("next").exists()
    });

    // The owner dies. The follower shows what it had, and then what the next owner writes.
    kill(&writer);
    writer.ok(&["umount", "mnt"]);
    assert!(shows("two"));
    writer.ok(&[&["mount", URL, "mnt", "--daemon"][..], &OFTEN].concat());
    std::fs::write(from.join("file"), "three").expect("written");
    while_writing(&from, "the third content", || shows("three"));
    assert_eq!(std::io::read_to_string(&open).expect("read"), "", "at its end");
    drop(open);
    reader.ok(&["umount", "mnt"]);
    assert!(server.keys("bucket/tank/pins/").is_empty(), "it needs nothing any more");
    writer.ok(&["umount", "mnt"]);
    let checked = writer.ok(&["check", URL]);
    assert!(checked.contains("no problems"), "{checked}");
}

#[test]
fn a_host_that_may_only_read_follows_and_loses_what_is_freed() {
    let server = S3Server::start();
    let (writer, mut reader) = (Host::new(&server), Host::new(&server));
    reader.may_change = false;
    let (from, to) = (writer.create_mounted(&OFTEN), reader.fixture.folder("mnt"));
    let before = server.keys("bucket/tank/data/");
    // No two records are alike, so that none is compressed.
    let content: Vec<u8> =
        (0..1_u32 << 20).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(from.join("victim"), &content).expect("written");
    std::fs::File::open(from.join("victim")).expect("there").sync_all().expect("an fsync");
    let of_victim: Vec<String> =
        server.keys("bucket/tank/data/").into_iter().filter(|key| !before.contains(key)).collect();
    assert!(!of_victim.is_empty(), "it has objects");
    reader.ok(&[&FOLLOW[..], &["--follow-interval", "1"]].concat());
    // Groups end while it is written, so it may be shown before it has its content.
    while_writing(&from, "the whole file", || {
        std::fs::metadata(to.join("victim")).is_ok_and(|file| file.len() == content.len() as u64)
    });
    let status = reader.ok(&["status", URL]);
    assert!(
        status.contains("not pinned, so what was freed stays for a time only: 403"),
        "{status}"
    );
    let open = std::fs::File::open(to.join("victim")).expect("there");
    std::fs::remove_file(from.join("victim")).expect("removed");
    while_writing(&from, "the end of its objects", || {
        let keys = server.keys("bucket/tank/data/");
        of_victim.iter().all(|key| !keys.contains(key))
    });
    let mut part = [0; 4096];
    let error = std::os::unix::fs::FileExt::read_at(&open, &mut part, 2 << 20);
    assert_eq!(error.expect_err("it is gone").raw_os_error(), Some(libc::ESTALE));
    assert!(!to.join("victim").exists());
    // A group may end between the truncation of the file and its content.
    wait_until("what is live", || {
        !std::fs::read_to_string(to.join("tick")).expect("a file").is_empty()
    });
    drop(open);
    reader.ok(&["umount", "mnt"]);
    writer.ok(&["umount", "mnt"]);
}

#[test]
fn only_read_only_mounts_of_object_stores_follow() {
    let server = S3Server::start();
    let host = Host::new(&server);
    host.fixture.folder("mnt");
    let usage = texts(&host.run(&["mount", URL, "mnt", "--follow"])).1;
    assert!(usage.contains("--read-only"), "{usage}");
    host.ok(&["create", "tank.img", "--size", "64M"]);
    let refused = host.fails(&["mount", "tank.img", "mnt", "--read-only", "--follow"]);
    assert!(refused.contains("--follow is for pools on object stores"), "{refused}");
}

#[test]
fn fsyncs_go_to_a_log_device_in_front_of_the_store() {
    let server = S3Server::start();
    let host = Host::new(&server);
    host.ok(&["create", "--name", "tank", "--object-store", URL, "--log-device", "log.img"]);
    let folder = host.fixture.folder("mnt");
    host.ok(&["mount", "tank", "mnt", "--daemon"]);
    std::fs::write(folder.join("file"), [7; 4096]).expect("written");
    std::fs::File::open(folder.join("file")).expect("there").sync_all().expect("an fsync");
    kill(&host);
    host.ok(&["umount", "mnt"]);
    let refused = host.fails(&["mount", URL, "mnt"]);
    assert!(refused.contains("--discard-log"), "{refused}");
    let both = format!("{URL}:{}", host.fixture.path("log.img").display());
    let logged = ["--log", "info", "--log-file", "tank.log"];
    host.ok(&[&["mount", &both, "mnt", "--daemon"], &logged[..]].concat());
    assert_eq!(std::fs::read(folder.join("file")).expect("replayed"), [7; 4096]);
    // The process was killed, and the import without the log device has failed: both have ended.
    let log = std::fs::read_to_string(host.fixture.path("tank.log")).expect("a log");
    assert!(!log.contains("waiting until a former owner"), "{log}");
    host.ok(&["umount", "mnt"]);
    host.ok(&["create", "other.img", "--size", "64M"]);
    let wrong = format!("{URL}:{}", host.fixture.path("other.img").display());
    let refused = host.fails(&["destroy", &wrong, "--yes", "--force"]);
    assert!(refused.contains("is a device of pool other"), "{refused}");
    host.ok(&["check", "other.img"]);
    assert!(!server.keys("bucket/tank").is_empty(), "{refused}");
    host.ok(&["destroy", &both, "--yes"]);
    assert!(server.keys("bucket/tank").is_empty());
    let gone = host.fails(&["check", "log.img"]);
    assert!(gone.contains("log.img"), "{gone}");
}

/// Starts a command, and does not wait for it.
fn begin(host: &Host, server: &S3Server, arguments: &[&str]) -> Child {
    let mut command = host.fixture.command(arguments);
    let command = command.envs(server.environment()).stderr(Stdio::piped());
    command.spawn().expect("the program runs")
}

fn wait_for_outage(host: &Host) {
    wait_until("the outage in status", || {
        texts(&host.run(&["status", URL])).0.contains("has not answered")
    });
}

#[test]
fn a_forced_export_does_not_wait_for_a_store_that_is_away() {
    let server = S3Server::start();
    let host = Host::new(&server);
    let folder = host.create_mounted(&[]);
    std::fs::write(folder.join("kept"), b"kept").expect("written");
    std::fs::File::open(folder.join("kept")).and_then(|file| file.sync_all()).expect("synced");
    server.set_away(true);
    std::fs::write(folder.join("lost"), b"lost").expect("in memory");
    let mut waiting = begin(&host, &server, &["export", URL, "--lazy"]);
    wait_for_outage(&host);
    assert!(waiting.try_wait().expect("a child").is_none(), "it did not wait");
    let forced = host.fails(&["export", URL, "--force", "--lazy"]);
    assert!(forced.contains("changes since transaction group"), "{forced}");
    let waited = waiting.wait_with_output().expect("a child");
    let (_, waited_error) = texts(&waited);
    assert!(!waited.status.success(), "{waited_error}");
    assert!(waited_error.contains("changes since transaction group"), "{waited_error}");
    wait_until("the end of the daemon", || host.fixture.processes().is_empty());
    server.set_away(false);
    host.ok(&["mount", URL, "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("kept")).expect("read"), b"kept");
    host.ok(&["umount", "mnt"]);
}

#[test]
fn an_export_that_outlasts_an_outage_loses_nothing_and_holds_up_no_other_pool() {
    let server = S3Server::start();
    let host = Host::new(&server);
    host.ok(&["create", "--object-store", URL]);
    host.ok(&["dataset", "create", URL, "second"]);
    host.ok(&["create", "other.img", "--size", "64M"]);
    let folders = [host.fixture.folder("mnt"), host.fixture.folder("mnt2")];
    host.ok(&["import", URL]);
    host.ok(&["mount", URL, "mnt", "--daemon"]);
    host.ok(&["mount", URL, "mnt2", "--daemon", "--dataset", "second"]);
    server.set_away(true);
    for folder in &folders {
        std::fs::write(folder.join("file"), b"kept").expect("in memory");
    }
    wait_for_outage(&host);
    let mut waiting = begin(&host, &server, &["export", URL]);
    wait_until("the end of the mounts", || {
        let output = host.run(&["list", "--json"]);
        !texts(&output).0.contains("mnt2") && !folders[0].join("file").exists()
    });
    let other = host.fixture.folder("other");
    host.ok(&["mount", "other.img", "other", "--daemon"]);
    std::fs::write(other.join("file"), b"there").expect("written");
    host.ok(&["umount", "other"]);
    assert!(waiting.try_wait().expect("a child").is_none(), "it did not wait");
    server.set_away(false);
    let waited = waiting.wait_with_output().expect("a child");
    assert!(waited.status.success(), "{}", texts(&waited).1);
    for (dataset, folder) in [("main", "mnt"), ("second", "mnt2")] {
        host.ok(&["mount", URL, folder, "--daemon", "--dataset", dataset]);
        let file = host.fixture.path(folder).join("file");
        assert_eq!(std::fs::read(file).expect("read"), b"kept");
    }
    host.ok(&["umount", "mnt"]);
    host.ok(&["umount", "mnt2"]);
}

#[test]
fn a_forced_export_that_fails_forces_no_later_one() {
    let server = S3Server::start();
    let host = Host::new(&server);
    let folder = host.create_mounted(&["--log", "warn", "--log-file", "tank.log"]);
    let open = std::fs::File::create(folder.join("open")).expect("created");
    let busy = host.fails(&["export", URL, "--force"]);
    assert!(busy.contains("--lazy"), "{busy}");
    drop(open);
    server.set_away(true);
    std::fs::write(folder.join("file"), b"kept").expect("in memory");
    wait_for_outage(&host);
    let mut waiting = begin(&host, &server, &["export", URL]);
    wait_until("the end of the mount", || !folder.join("file").exists());
    // The watch over the export has seen the outage, and did not give up.
    wait_until("the watch over the export", || {
        let log = std::fs::read_to_string(host.fixture.path("tank.log"));
        log.is_ok_and(|log| log.contains("the export waits for a device"))
    });
    assert!(waiting.try_wait().expect("a child").is_none(), "it did not wait");
    server.set_away(false);
    let waited = waiting.wait_with_output().expect("a child");
    assert!(waited.status.success(), "{}", texts(&waited).1);
    host.ok(&["mount", URL, "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("file")).expect("read"), b"kept");
    host.ok(&["umount", "mnt"]);
}

#[test]
fn a_pool_that_was_created_or_destroyed_in_part_is_destroyed() {
    let server = S3Server::start();
    let host = Host::new(&server);
    // As the deletion of the first page of keys leaves it.
    host.ok(&["create", "--object-store", URL]);
    for key in server.keys("bucket/tank/").iter().filter(|key| !key.ends_with("/super")) {
        server.remove(key);
    }
    let destroyed = host.ok(&["destroy", URL, "--yes"]);
    assert!(destroyed.contains("destroyed what is left of a pool"), "{destroyed}");
    assert!(server.keys("").is_empty());
    // A store whose pool was not written yet.
    server.go_away_after("bucket/tank/super");
    let mut creation = host.fixture.command(&["create", "--object-store", URL]);
    let mut creation = creation.envs(server.environment()).spawn().expect("the program runs");
    wait_until("the owner record", || !server.keys("bucket/tank/super").is_empty());
    creation.kill().expect("killed");
    creation.wait().expect("a child");
    server.set_away(false);
    assert_eq!(server.keys(""), ["bucket/tank/super"]);
    let destroyed = host.ok(&["destroy", URL, "--yes"]);
    assert!(destroyed.contains("destroyed what is left of a pool"), "{destroyed}");
    assert!(server.keys("").is_empty());
}

#[test]
fn what_is_left_without_an_owner_record_is_destroyed() {
    let server = S3Server::start();
    let host = Host::new(&server);
    server.put("bucket/tank/theirs");
    let nothing = host.fails(&["destroy", URL, "--yes"]);
    assert!(nothing.contains("holds no pool"), "{nothing}");
    server.remove("bucket/tank/theirs");
    host.ok(&["create", "--object-store", URL]);
    server.put("bucket/tank/theirs");
    server.remove("bucket/tank/super");
    let asked = host.fails(&["destroy", URL]);
    assert!(asked.contains("use --yes"), "{asked}");
    let destroyed = host.ok(&["destroy", URL, "--yes"]);
    assert!(destroyed.contains("destroyed what is left of a pool"), "{destroyed}");
    assert_eq!(server.keys(""), ["bucket/tank/theirs"]);
}

#[test]
fn a_pool_in_a_store_is_found_by_its_name_without_its_log_device() {
    let server = S3Server::start();
    let host = Host::new(&server);
    host.ok(&["create", "--name", "tank", "--object-store", URL, "--log-device", "log.img"]);
    let folder = host.fixture.folder("mnt");
    host.ok(&["mount", "tank", "mnt", "--daemon"]);
    std::fs::write(folder.join("file"), [7; 4096]).expect("written");
    host.ok(&["umount", "mnt"]);
    std::fs::remove_file(host.fixture.path("log.img")).expect("removed");
    host.ok(&["mount", "tank", "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("file")).expect("it is there"), [7; 4096]);
    host.ok(&["umount", "mnt"]);
    host.ok(&["destroy", "tank", "--yes"]);
    assert!(server.keys("bucket/tank").is_empty());
}
