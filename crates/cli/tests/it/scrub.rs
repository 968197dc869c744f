//! Scrubs of pools in the background: controlled, interrupted, resumed.

use std::os::unix::fs::FileExt;

use forebay_io::OpenOptions;
use forebay_pool::format::Compression;
use forebay_pool::inspect::{BlockOwner, Inspector, ObjsetName};
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, Pool, open_path,
};

use crate::fixture::{Fixture, failed, texts, wait_until};

/// A rate at which a scrub reads one block and then waits for hours.
const STALLED: [&str; 2] = ["--rate", "1"];

fn status(fixture: &Fixture, pool: &str) -> serde_json::Value {
    let shown = fixture.ok(&["scrub", pool, "--status", "--json"]);
    serde_json::from_str(&shown).expect("JSON")
}

#[test]
fn a_scrub_is_controlled_and_goes_on_after_an_import() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    assert_eq!(status(&fixture, "tank.img")["state"], "none");
    let refused = fixture.fails(&["scrub", "tank.img", "--no-wait"]);
    assert!(refused.contains("the pool is not imported"), "{refused}");
    fixture.misused(&["scrub", "tank.img", "--pause", "--stop"]);

    fixture.ok(&["import", "tank.img"]);
    let refused = fixture.fails(&["scrub", "tank", "--pause"]);
    assert!(refused.contains("no scrub is running"), "{refused}");
    let said = fixture.ok(&[&["scrub", "tank", "--no-wait"][..], &STALLED].concat());
    assert!(said.contains("scrubbing pool tank"), "{said}");
    assert_eq!(status(&fixture, "tank")["state"], "running");
    let shown = fixture.ok(&["status", "tank"]);
    assert!(shown.contains("scrub      running"), "{shown}");
    let said = fixture.ok(&["scrub", "tank", "--pause"]);
    assert!(said.contains("paused at"), "{said}");

    // A pause lasts, a running scrub goes on by itself.
    fixture.ok(&["export", "tank"]);
    assert_eq!(status(&fixture, "tank.img")["state"], "paused");
    fixture.ok(&["import", "tank.img"]);
    assert_eq!(status(&fixture, "tank")["state"], "paused");
    fixture.ok(&["scrub", "tank", "--no-wait"]);
    let before = status(&fixture, "tank");
    assert_eq!((&before["state"], &before["rate_bytes"]), (&"running".into(), &1.into()));
    fixture.ok(&["export", "tank"]);
    assert_eq!(status(&fixture, "tank.img")["state"], "interrupted");
    fixture.ok(&["import", "tank.img"]);
    let after = status(&fixture, "tank");
    assert_eq!((&after["state"], &after["started"]), (&"running".into(), &before["started"]));
    assert!(after["blocks"].as_u64() >= before["blocks"].as_u64());

    let said = fixture.ok(&["scrub", "tank", "--stop"]);
    assert!(said.contains("stopped at"), "{said}");
    let said = fixture.ok(&["scrub", "tank"]);
    assert!(said.contains("no problems found"), "{said}");
    let shown = fixture.ok(&["status", "tank"]);
    assert!(shown.contains("scrub      finished"), "{shown}");
    // Not that it is zero: a commit waits while a thread that scrubs is preempted with the lock.
    let stats = fixture.ok(&["stats", "--json"]);
    assert!(stats.contains("\"commits_waited_for_scrub\": "), "{stats}");
    fixture.ok(&["export", "tank"]);
}

#[test]
fn a_wait_tells_how_the_scrub_ended() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    for (change, says) in [("--pause", "the scrub was paused"), ("--stop", "the scrub was stopped")]
    {
        let waiting = fixture.start(&[&["scrub", "tank", "--json"][..], &STALLED].concat());
        wait_until("it runs", || status(&fixture, "tank")["state"] == "running");
        fixture.ok(&["scrub", "tank", change]);
        let output = waiting.wait();
        let said = failed(&output, 1, &["scrub"]);
        assert!(said.contains(says), "{change}: {said}");
        let report: serde_json::Value = serde_json::from_str(&texts(&output).0).expect("JSON");
        let state = if change == "--pause" { "paused" } else { "stopped" };
        assert_eq!((&report["state"], &report["complete"]), (&state.into(), &false.into()));
    }
    let started = [&["scrub", "tank", "--no-wait", "--json"][..], &STALLED].concat();
    let shown: serde_json::Value = serde_json::from_str(&fixture.ok(&started)).expect("JSON");
    assert_eq!(shown["state"], "running");
    fixture.ok(&["export", "tank"]);
}

/// A pool in `tank.img` with an object all of whose records are damaged.
fn damaged_pool(fixture: &Fixture) {
    const RECORDS: u64 = 50;
    let path = fixture.path("tank.img");
    let cache = BlockCache::new(BlockCacheOptions { bytes: 32 << 20, ..Default::default() });
    let options = CreateOptions::new("tank", cache.expect("memory"));
    let file = OpenOptions { create_bytes: Some(64 << 20), ..OpenOptions::default() };
    let device = open_path(&path, &file).expect("a file");
    let pool = Pool::create(vec![device], &options).expect("a pool");
    let settings = DatasetSettings {
        record_bytes: 8192,
        data_compression: Compression::Off,
        ..DatasetSettings::default()
    };
    let data = pool.create_dataset("data", &settings).expect("a dataset");
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    let object = data.object(number).expect("it");
    object.write(&tx, 0, &vec![7; RECORDS as usize * 8192]).expect("space");
    drop((tx, object, data));
    pool.export().expect("exported");
    let inspector = Inspector::open(&[&path]).expect("it opens");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    for record in 0..RECORDS {
        let owner = BlockOwner::Object(number);
        let block = inspector.block(ObjsetName::Dataset("data"), owner, (record, 0), None);
        let offset = block.expect("it").found.pointer.copies[0].offset;
        file.write_all_at(&[0xa5; 512], offset).expect("it is written");
    }
}

#[test]
fn an_interrupted_wait_tells_what_was_found() {
    let fixture = Fixture::new();
    damaged_pool(&fixture);
    fixture.ok(&["import", "tank.img"]);
    // Slow enough not to reach the end before it is stalled.
    let waiting = fixture.start(&["scrub", "tank", "--rate", "100K"]);
    let problems = || status(&fixture, "tank")["problem_count"].as_u64().expect("a number");
    wait_until("it finds problems", || problems() > 0);
    fixture.ok(&[&["scrub", "tank", "--no-wait"][..], &STALLED].concat());
    waiting.signal(libc::SIGINT);
    let output = waiting.wait();
    let (out, _) = texts(&output);
    assert!(out.contains("lost: dataset data: object"), "{out}");
    assert!(!out.contains("no problems"), "{out}");
    let said = failed(&output, 1, &["scrub"]);
    assert!(said.contains("so far") && said.contains("goes on in the background"), "{said}");
    assert_eq!(status(&fixture, "tank")["state"], "running");
    fixture.ok(&["export", "tank"]);
}

#[test]
fn a_schedule_lives_with_the_pool_and_the_daemon_carries_it_out() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let due = |json: &str| -> serde_json::Value {
        let parsed: serde_json::Value = serde_json::from_str(json).expect("JSON");
        parsed["due"].clone()
    };
    assert!(due(&fixture.ok(&["scrub", "tank.img", "--status", "--json"])).is_null());
    let set = fixture.ok(&["scrub", "tank.img", "--every", "30d"]);
    assert!(set.contains("every 30 d 0 h, the next now, or when the pool is imported"), "{set}");
    // There was none, so the daemon starts one without being asked.
    fixture.ok(&["import", "tank.img"]);
    wait_until("it is scrubbed", || {
        fixture.ok(&["events", "tank"]).contains("scrub ended: finished")
    });
    let status = fixture.ok(&["status", "tank"]);
    assert!(status.contains("every 30 d 0 h, the next in "), "{status}");
    let shown = fixture.ok(&["scrub", "tank", "--status", "--json"]);
    let parsed: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let seconds = |name: &str| parsed[name].as_u64().expect("a number");
    assert_eq!(seconds("due"), seconds("ended") + 30 * 86_400);
    fixture.ok(&["export", "tank"]);
    let kept = fixture.ok(&["scrub", "tank.img", "--status"]);
    assert!(kept.contains("every 30 d 0 h"), "{kept}");
    // A scrub by hand keeps the setting, and `never` ends it.
    fixture.ok(&["scrub", "tank.img"]);
    let kept = fixture.ok(&["scrub", "tank.img", "--status"]);
    assert!(kept.contains("every 30 d 0 h"), "{kept}");
    let never = fixture.ok(&["scrub", "tank.img", "--every", "never"]);
    assert!(!never.contains("every"), "{never}");
    fixture.misused(&["scrub", "tank.img", "--every", "30"]);
    fixture.misused(&["scrub", "tank.img", "--every", "30d", "--pause"]);
}
