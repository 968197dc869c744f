//! `forebay mount --follow --l2`, on the command line.

use std::path::Path;

use serde_json::Value;

use crate::fixture::{texts, wait_until};
use crate::object_store::{FOLLOW, Host, OFTEN, URL, kill, while_writing};
use crate::s3::S3Server;

/// What a follower adds to its mount.
const L2: [&str; 6] = ["--l2", "ssd.l2", "--l2-size", "64M", "--follow-interval", "1"];

/// A number of the first L2 device.
fn number(host: &Host<'_>, name: &str) -> u64 {
    let devices: Value = serde_json::from_str(&host.ok(&["l2", "list", "--json"])).expect("JSON");
    devices[0][name].as_u64().unwrap_or_else(|| panic!("{name} of {devices}"))
}

/// Bytes that no compression makes smaller.
fn content(seed: u32) -> Vec<u8> {
    let word = |at: u32| (at ^ seed).wrapping_mul(2_654_435_761).rotate_left(seed % 31);
    (0..1_u32 << 20).flat_map(|at| word(at).to_le_bytes()).collect()
}

fn read(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("file")).unwrap_or_default()
}

#[test]
fn a_follower_with_an_l2_is_warm_after_a_crash_and_has_it_for_itself() {
    let server = S3Server::start();
    let (writer, reader) = (Host::new(&server), Host::new(&server));
    let (from, to) = (writer.create_mounted(&OFTEN), reader.fixture.folder("mnt"));
    std::fs::write(from.join("file"), content(1)).expect("written");
    writer.ok(&["umount", "mnt"]);
    let missing = reader.fails(&[&FOLLOW[..], &L2[..2]].concat());
    assert!(missing.contains("--l2-size"), "{missing}");
    reader.ok(&[&FOLLOW[..], &L2[..], &["--memory", "96M"]].concat());
    assert!(read(&to) == content(1));
    // Also without an end in order.
    wait_until("the file on the L2", || number(&reader, "written_bytes") > 4 << 20);
    let status = reader.ok(&["status", URL]);
    assert!(status.contains("ssd.l2"), "{status}");

    // Another follower of this machine cannot have it, too.
    let other = Host::new(&server);
    other.fixture.folder("mnt");
    let l2 = reader.fixture.path("ssd.l2");
    let taken = other.fails(&[&FOLLOW[..], &["--l2", l2.to_str().expect("text")]].concat());
    assert!(taken.contains("ssd.l2"), "{taken}");
    let without = other.fixture.path("other.l2");
    let failed = ["mount", "s3://bucket/none", "mnt", "--daemon", "--read-only", "--follow"];
    other.fails(&[&failed[..], &["--l2", "other.l2", "--l2-size", "64M"]].concat());
    assert!(!without.exists(), "it was made in vain");

    kill(&reader);
    reader.ok(&["umount", "mnt"]);
    // What a warm-up has loaded would be no hit.
    reader.ok(&[&FOLLOW[..], &L2[..], &["--tunable", "l2_warm_up=false"]].concat());
    wait_until("the index", || number(&reader, "records") > 0);
    assert!(read(&to) == content(1));
    assert!(number(&reader, "hits") >= 16, "most of 32 records were fetched again");
    reader.ok(&["umount", "mnt"]);
}

#[test]
fn an_l2_of_a_pool_that_is_no_more_serves_nothing_of_it() {
    let server = S3Server::start();
    let (writer, reader) = (Host::new(&server), Host::new(&server));
    let (from, to) = (writer.create_mounted(&OFTEN), reader.fixture.folder("mnt"));
    std::fs::write(from.join("file"), content(1)).expect("written");
    writer.ok(&["umount", "mnt"]);
    let copy = server.copy();
    let logged = ["--log", "info", "--log-file", "reader.log"];
    let follow = || {
        reader.ok(&[&FOLLOW[..], &L2[..], &logged].concat());
        let read = read(&to);
        reader.ok(&["umount", "mnt"]);
        let log = std::fs::read_to_string(reader.fixture.path("reader.log")).expect("a log");
        std::fs::remove_file(reader.fixture.path("reader.log")).expect("removed");
        (read, log)
    };
    let write = |seed: u32| {
        writer.ok(&[&["mount", URL, "mnt", "--daemon"][..], &OFTEN].concat());
        std::fs::write(from.join("file"), content(seed)).expect("written");
        writer.ok(&["umount", "mnt"]);
    };
    write(2);
    let (found, log) = follow();
    assert!(found == content(2) && !log.contains("begins anew"), "{log}");
    let (found, log) = follow();
    assert!(found == content(2) && !log.contains("begins anew"), "{log}");

    // The bucket is set back, and the pool goes on from there.
    server.set_back(&copy);
    write(3);
    write(4);
    let (found, log) = follow();
    assert!(found == content(4), "it is older, or of the history before");
    assert!(log.contains("the L2 begins anew"), "{log}");

    // The pool is destroyed, and another one is created in its place.
    writer.ok(&["destroy", URL, "--yes"]);
    writer.ok(&["create", "--name", "tank", "--object-store", URL]);
    write(5);
    let (found, log) = follow();
    assert!(found == content(5), "it is older, or of the pool before");
    assert!(log.contains("it was of another pool"), "{log}");
    let (found, log) = follow();
    assert!(found == content(5) && !log.contains("begins anew"), "{log}");
}

#[test]
fn l2_devices_of_the_writer_and_of_followers_are_told_apart() {
    let server = S3Server::start();
    let (writer, reader) = (Host::new(&server), Host::new(&server));
    let to = reader.fixture.folder("mnt");
    let from = writer.create_mounted(&OFTEN);
    writer.ok(&["l2", "add", URL, "own.l2", "--size", "64M"]);
    std::fs::write(from.join("file"), content(1)).expect("written");
    writer.ok(&["umount", "mnt"]);
    writer.ok(&["dataset", "create", URL, "second"]);
    let own = writer.fixture.path("own.l2");
    let refused = reader.fails(&[&FOLLOW[..], &["--l2", own.to_str().expect("text")]].concat());
    assert!(refused.contains("an L2 device") && refused.contains("of the pool"), "{refused}");
    // By mount(8), and a second mount, which need not name it.
    let options = format!("ro,follow,l2={},l2_size=64M", reader.fixture.path("ssd.l2").display());
    reader.ok(&["mount", URL, "mnt", "--daemon", "-o", &options]);
    assert!(read(&to) == content(1));
    reader.fixture.folder("mnt2");
    let second =
        ["mount", URL, "mnt2", "--daemon", "--read-only", "--follow", "--dataset", "second"];
    let another = reader.fails(&[&second[..], &["--l2", "other.l2", "--l2-size", "64M"]].concat());
    assert!(another.contains("ssd.l2 as L2"), "{another}");
    reader.ok(&second);
    reader.ok(&["umount", "mnt2"]);
    reader.ok(&["umount", "mnt"]);
    let ssd = reader.fixture.path("ssd.l2");
    let refused = writer.fails(&["l2", "add", URL, ssd.to_str().expect("text")]);
    assert!(refused.contains("the L2 of another owner"), "{refused}");
    let usage = texts(&reader.run(&["mount", URL, "mnt", "--read-only", "-o", "l2=ssd.l2"])).1;
    assert!(usage.contains("is for --follow"), "{usage}");
    let usage = texts(&reader.run(&[&FOLLOW[..], &["-o", "l2_size=64M"]].concat())).1;
    assert!(usage.contains("which is not given"), "{usage}");
    // The writer's device serves it as before.
    writer.ok(&[&["mount", URL, "mnt", "--daemon"][..], &OFTEN].concat());
    wait_until("its index", || number(&writer, "records") > 0);
    while_writing(&from, "the file", || read(&from) == content(1));
    writer.ok(&["umount", "mnt"]);
}

/// The bucket is set back under a follower that is mounted. The new history ends at a transaction
/// group of the same number.
#[test]
fn a_mounted_follower_goes_over_to_the_history_of_a_bucket_that_was_set_back() {
    let server = S3Server::start();
    let (writer, reader) = (Host::new(&server), Host::new(&server));
    let (from, to) = (writer.create_mounted(&[]), reader.fixture.folder("mnt"));
    std::fs::write(from.join("file"), content(1)).expect("written");
    writer.ok(&["umount", "mnt"]);
    let copy = server.copy();
    // No transaction group ends by itself, so both histories have as many.
    let seldom = ["--tunable", "txg_timeout_ms=600000"];
    let write = |seed: u32| {
        writer.ok(&[&["mount", URL, "mnt", "--daemon"][..], &seldom].concat());
        std::fs::write(from.join("file"), content(seed)).expect("written");
        writer.ok(&["umount", "mnt"]);
    };
    let shown = || {
        let status = reader.ok(&["status", URL, "--json"]);
        let status: Value = serde_json::from_str(&status).expect("JSON");
        status["txg"].as_u64().unwrap_or_else(|| panic!("{status}"))
    };
    write(2);
    reader.ok(&[&FOLLOW[..], &["--follow-interval", "1"]].concat());
    assert!(read(&to) == content(2));
    let before = shown();

    server.set_back(&copy);
    write(3);
    wait_until("the new history", || read(&to) == content(3));
    assert_eq!(shown(), before, "the test is of equal numbers");
    reader.ok(&["umount", "mnt"]);
}
