//! The health of pools, their damaged files, and the exit codes for monitors.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use forebay_fs::{Caller, FileKind, FileSystem, FsOptions, Ino, NewNode, Owner};
use forebay_io::OpenOptions;
use forebay_pool::inspect::{BlockOwner, Inspector, ObjsetName};
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, ImportOptions, Pool, open_path,
};
use serde_json::Value;

use crate::fixture::{Fixture, failed, texts, wait_until};

const RECORD: u64 = 128 << 10;
const ME: Caller = Caller { uid: 0, gid: 0, pid: 0 };

fn cache() -> Arc<BlockCache> {
    BlockCache::new(BlockCacheOptions { bytes: 32 << 20, ..Default::default() }).expect("memory")
}

/// A pool in `tank.img` with the file `/perl/Tar.pm` of three records and a bit. The first two are
/// damaged. Returns its inode number.
fn damaged_file(fixture: &Fixture) -> u64 {
    let path = fixture.path("tank.img");
    let options = CreateOptions::new("tank", cache());
    let file = OpenOptions { create_bytes: Some(64 << 20), ..OpenOptions::default() };
    let pool = Pool::create(vec![open_path(&path, &file).expect("a file")], &options);
    let pool = Arc::new(pool.expect("a pool"));
    let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
    FileSystem::create_in(&pool, "main", &DatasetSettings::default(), owner).expect("files");
    let files = FileSystem::open_in(Arc::clone(&pool), "main", &FsOptions::default());
    let files = files.expect("files");
    let node = NewNode { kind: FileKind::Directory, mode: 0o755, rdev: 0, target: None };
    let perl = files.make(Ino::ROOT, b"perl", &node, ME).expect("a directory").attr.ino;
    let (tar, handle) = files.create(perl, b"Tar.pm", 0o644, ME).expect("a file");
    let write = forebay_fs::Write::default();
    files
        .write(tar.attr.ino, handle, 0, &vec![7; 3 * RECORD as usize + 100], write)
        .expect("space");
    files.release(handle);
    files.close().expect("closed");
    drop(files);
    Arc::into_inner(pool).expect("the last reference").export().expect("exported");
    let inspector = Inspector::open(&[&path]).expect("it opens");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    for record in 0..2 {
        let owner = BlockOwner::Object(tar.attr.ino.0 - 2);
        let block = inspector.block(ObjsetName::Dataset("main"), owner, (record, 0), None);
        let offset = block.expect("it").found.pointer.copies[0].offset;
        file.write_all_at(&[0xa5; 512], offset).expect("it is written");
    }
    tar.attr.ino.0
}

/// Runs a command that must exit with this code, without a message; what it printed.
#[track_caller]
fn exits(fixture: &Fixture, code: i32, arguments: &[&str]) -> String {
    let output = fixture.run(arguments);
    let (out, err) = texts(&output);
    assert_eq!((output.status.code(), &*err), (Some(code), ""), "{arguments:?}: {out}");
    out
}

#[track_caller]
fn json(fixture: &Fixture, code: i32, arguments: &[&str]) -> Value {
    let out = exits(fixture, code, &[arguments, &["--json"]].concat());
    serde_json::from_str(&out).expect("JSON")
}

#[test]
fn damaged_files_are_told_by_path_and_bytes_until_they_are_cleared() {
    let fixture = Fixture::new();
    let inode = damaged_file(&fixture);
    let log = ["--log", "info", "--log-file", "tank.log"];
    fixture.ok(&[&["import", "tank.img"], &log[..]].concat());
    // Nobody has looked yet.
    assert!(exits(&fixture, 0, &["status", "tank"]).contains("health     online\n"));
    assert!(exits(&fixture, 0, &["list"]).contains("online"));

    let text = format!("dataset main: /perl/Tar.pm (inode {inode}), bytes 0-262144: no good copy");
    let output = fixture.run(&["scrub", "tank"]);
    let (out, _) = texts(&output);
    assert!(out.starts_with(&format!("lost: {text}\n")), "{out}");
    assert!(failed(&output, 1, &["scrub"]).contains("2 problems"), "{out}");
    let output = fixture.run(&["check", "tank", "--json"]);
    let report: Value = serde_json::from_str(&texts(&output).0).expect("JSON");
    assert_eq!(report["problems"], serde_json::json!([format!("damaged: {text}")]));
    assert_eq!(report["problem_count"], 2);
    let found = &report["damage"][0];
    assert_eq!((&found["path"], &found["inode"]), (&"/perl/Tar.pm".into(), &inode.into()));
    assert_eq!((&found["first_byte"], &found["end_byte"]), (&0.into(), &262_144.into()));

    // Here and after an export, the pool says so.
    let shown = exits(&fixture, 1, &["status", "tank"]);
    assert!(shown.contains("health     damaged: 2 ranges of blocks"), "{shown}");
    assert!(shown.contains(&format!("damage     {text}\n")), "{shown}");
    assert!(!shown.contains("Some(") && !shown.contains("Phys"), "debug output: {shown}");
    assert!(exits(&fixture, 1, &["list"]).contains("damaged"));
    assert_eq!(json(&fixture, 1, &["list"])[0]["pools"][0]["health"], "damaged");
    assert!(fixture.ok(&["stats"]).contains("damaged"));
    assert!(fixture.ok(&["stats", "--json"]).contains("\"health\": \"damaged\""));
    let events = std::fs::read_to_string(fixture.path("tank.log")).expect("the log");
    let lines: Vec<&str> = events.lines().filter(|line| line.contains("damaged block")).collect();
    assert_eq!(lines.len(), 2, "{events}");
    assert!(lines.iter().all(|line| line.contains("ERROR") && line.contains("pool=\"tank\"")));
    fixture.ok(&["export", "tank"]);
    let status = json(&fixture, 1, &["status", "tank.img"]);
    assert_eq!(
        (&status["health"], &status["damage"][0]["text"]),
        (&"damaged".into(), &text.into())
    );

    fixture.ok(&["import", "tank.img"]);
    assert!(fixture.ok(&["clear", "tank"]).contains("cleared the errors of pool tank"));
    assert!(exits(&fixture, 0, &["status", "tank"]).contains("health     online\n"));
    assert!(exits(&fixture, 0, &["list"]).contains("online"));
    fixture.ok(&["export", "tank"]);
    assert_eq!(json(&fixture, 0, &["status", "tank.img"])["damage"], serde_json::json!([]));
    let output = fixture.run(&["check", "tank.img"]);
    assert!(failed(&output, 1, &["check"]).contains("2 problems"));
    exits(&fixture, 1, &["status", "tank.img"]);
    fixture.ok(&["clear", "tank.img"]);
    exits(&fixture, 0, &["status", "tank.img"]);
}

#[test]
fn a_removed_file_is_shown_as_such_until_a_scrub() {
    let fixture = Fixture::new();
    let inode = damaged_file(&fixture);
    failed(&fixture.run(&["check", "tank.img"]), 1, &["check"]);
    let path = fixture.path("tank.img");
    let device = open_path(&path, &OpenOptions::default()).expect("the file");
    let pool = Arc::new(Pool::import(vec![device], &ImportOptions::new(cache())).expect("it"));
    let files = FileSystem::open_in(Arc::clone(&pool), "main", &FsOptions::default());
    let files = files.expect("files");
    let perl = files.lookup(Ino::ROOT, b"perl").expect("it").attr.ino;
    files.unlink(perl, b"Tar.pm").expect("it is there");
    files.forget(perl, 1);
    files.wait_for_reclaim();
    files.close().expect("closed");
    drop(files);
    Arc::into_inner(pool).expect("the last reference").export().expect("exported");
    let shown = exits(&fixture, 1, &["status", "tank.img"]);
    assert!(shown.contains("no longer in use; a scrub forgets it"), "{shown}");
    assert!(!shown.contains("Tar.pm") && !shown.contains(&format!("inode {inode}")), "{shown}");
    assert!(exits(&fixture, 0, &["scrub", "tank.img"]).contains("no problems found"));
    exits(&fixture, 0, &["status", "tank.img"]);
}

#[test]
fn a_pool_that_cannot_be_used_exits_with_two() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("no-pool.img"), vec![0; 32 << 20]).expect("a file");
    for command in ["status", "check", "scrub"] {
        for pool in ["missing", "missing.img", "no-pool.img"] {
            failed(&fixture.run(&[command, pool]), 2, &[command, pool]);
        }
    }
    assert!(exits(&fixture, 0, &["list"]).contains("no pools are in use"));
}

#[test]
fn a_missing_l2_device_degrades_a_pool() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    fixture.ok(&["l2", "add", "tank", "l2.img", "--size", "32M"]);
    exits(&fixture, 0, &["status", "tank"]);
    fixture.ok(&["export", "tank"]);
    wait_until("the daemon ends", || fixture.processes().is_empty());
    std::fs::remove_file(fixture.path("l2.img")).expect("it is there");
    // A look at the pool uses no L2 device.
    exits(&fixture, 0, &["status", "tank.img"]);
    fixture.ok(&["import", "tank.img"]);
    let shown = exits(&fixture, 1, &["status", "tank"]);
    assert!(shown.contains("health     degraded: L2 device "), "{shown}");
    assert!(exits(&fixture, 1, &["list"]).contains("degraded"));
    fixture.ok(&["export", "tank"]);
    fixture.ok(&["import", "tank.img", "--no-l2"]);
    exits(&fixture, 0, &["list"]);
    fixture.ok(&["export", "tank"]);
}
