//! L2 devices of pools, in use and not.

use serde_json::Value;

use crate::fixture::{Fixture, texts, wait_until};

fn listed(fixture: &Fixture, pool: &str) -> Vec<Value> {
    let listed = fixture.ok(&["l2", "list", pool, "--json"]);
    serde_json::from_str(&listed).expect("it is JSON")
}

#[test]
fn a_pool_that_is_not_in_use_gets_one_and_loses_it() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    assert!(listed(&fixture, "tank.img").is_empty());
    let missing = fixture.fails(&["l2", "add", "tank.img", "fast.img"]);
    assert!(missing.contains("give --size to create a file"), "{missing}");
    let small = fixture.fails(&["l2", "add", "tank.img", "fast.img", "--size", "1M"]);
    assert!(small.contains("give at least"), "{small}");
    assert!(!fixture.path("fast.img").exists());
    let said = fixture.ok(&["l2", "add", "tank.img", "fast.img", "--size", "32M"]);
    assert!(said.contains("to pool tank, 32.0 MiB"), "{said}");

    let all = listed(&fixture, "tank.img");
    assert_eq!((all.len(), all[0]["state"].as_str()), (1, Some("unavailable")));
    assert!(all[0]["why"].as_str().unwrap().contains("not in use"), "{all:?}");
    let shown = fixture.ok(&["status", "tank.img"]);
    assert!(shown.contains("fast.img, 32.0 MiB, unavailable"), "{shown}");
    let own = fixture.fails(&["l2", "add", "tank.img", "tank.img"]);
    assert!(own.contains("is a device of this pool"), "{own}");
    fixture.ok(&["check", "tank.img"]);

    std::fs::write(fixture.path("notes.txt"), vec![b'x'; 20 << 20]).unwrap();
    let foreign = fixture.fails(&["l2", "add", "tank.img", "notes.txt"]);
    assert!(foreign.contains("force"), "{foreign}");
    fixture.pool("other.img");
    let pools = fixture.fails(&["l2", "add", "tank.img", "other.img"]);
    assert!(pools.contains("holds pool \"other\"") && pools.contains("--force"), "{pools}");
    fixture.ok(&["check", "other.img"]);

    let unknown = fixture.fails(&["l2", "remove", "tank.img", "notes.txt"]);
    assert!(unknown.contains("`forebay l2 list tank` lists them"), "{unknown}");
    fixture.ok(&["l2", "remove", "tank.img", "fast.img"]);
    assert!(listed(&fixture, "tank.img").is_empty());
    // What was removed is empty, and can be added again.
    fixture.ok(&["l2", "add", "tank.img", "fast.img"]);
}

#[test]
fn a_pool_in_use_gets_one_and_loses_it() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    fixture.ok(&["l2", "add", "tank", "fast.img", "--size", "32M"]);
    let label = fixture.ok(&["inspect", "fast.img", "label"]);
    assert!(label.contains("is an L2 device (") && label.contains("of the pool "), "{label}");
    let again = fixture.fails(&["l2", "add", "tank", "fast.img"]);
    assert!(again.contains("is an L2 device of this pool already"), "{again}");
    let again = fixture.fails(&["l2", "add", "tank", "fast.img", "--force"]);
    assert!(again.contains("is an L2 device of this pool already"), "{again}");
    let state = || listed(&fixture, "tank")[0]["state"].as_str().unwrap().to_owned();
    assert_eq!(state(), "active");
    let table = fixture.ok(&["l2", "list"]);
    for part in ["L2 DEVICE", "fast.img", "active", "32.0 MiB"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let shown = fixture.ok(&["stats"]);
    assert!(shown.contains("L2 DEVICE") && shown.contains("fast.img"), "{shown}");

    fixture.ok(&["export", "tank"]);
    wait_until("the process ends", || fixture.processes().is_empty());
    let status = fixture.ok(&["status", "tank.img"]);
    assert!(status.contains("unavailable: the pool is not in use"), "{status}");
    fixture.ok(&["import", "tank.img"]);
    wait_until("the L2 device is known", || state() == "active");
    let number = listed(&fixture, "tank")[0]["number"].as_str().unwrap().to_owned();
    fixture.ok(&["export", "tank"]);
    wait_until("the process ends", || fixture.processes().is_empty());

    // Without it, or not wanted, the pool is used all the same, and says so.
    fixture.ok(&["import", "tank.img", "--no-l2"]);
    assert_eq!(state(), "unavailable");
    fixture.ok(&["export", "tank"]);
    wait_until("the process ends", || fixture.processes().is_empty());
    std::fs::rename(fixture.path("fast.img"), fixture.path("slow.img")).unwrap();
    let (why, state) = ("fast.img", listed(&fixture, "tank.img"));
    assert!(state[0]["why"].as_str().unwrap().contains(why), "{state:?}");
    // Who imports it is told, and what to do.
    let import = |wanted: &str| {
        let output = fixture.run(&["import", "tank.img"]);
        let (out, err) = crate::fixture::texts(&output);
        assert!(output.status.success(), "{out}{err}");
        let told = err.contains("pool tank runs without its L2 device") && err.contains(wanted);
        assert!(told && err.contains(&format!("`forebay l2 remove tank {number}`")), "{err}");
    };
    std::fs::write(fixture.path("fast.img"), vec![1; 32 << 20]).unwrap();
    assert!(listed(&fixture, "tank.img")[0]["why"].as_str().unwrap().contains("holds no L2"));
    import("holds no L2");
    fixture.ok(&["export", "tank"]);
    wait_until("the process ends", || fixture.processes().is_empty());
    std::fs::remove_file(fixture.path("fast.img")).unwrap();
    import("fast.img");
    let (shown, _) = texts(&fixture.run(&["status", "tank"]));
    assert!(shown.contains("fast.img, 32.0 MiB, unavailable: "), "{shown}");
    fixture.ok(&["l2", "remove", "tank", &number]);
    assert!(listed(&fixture, "tank").is_empty());
    fixture.ok(&["export", "tank"]);
    fixture.ok(&["check", "tank.img"]);
}

#[test]
fn datasets_say_what_l2_devices_hold() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["dataset", "create", "tank.img", "backups", "--l2", "none"]);
    let listed = || fixture.ok(&["dataset", "list", "tank.img"]);
    let line = |name: &str| {
        let all = listed();
        all.lines().find(|line| line.starts_with(name)).expect("it is listed").to_owned()
    };
    assert!(line("backups ").trim_end().ends_with("none"), "{}", listed());
    assert!(line("main ").trim_end().ends_with("all"), "{}", listed());
    fixture.ok(&["dataset", "set", "tank.img", "main", "--l2", "metadata", "--sync", "txg"]);
    let main = line("main ");
    assert!(main.contains("txg") && main.trim_end().ends_with("metadata"), "{main}");
    let nothing = fixture.run(&["dataset", "set", "tank.img", "main"]);
    assert!(!nothing.status.success());
    fixture.fails(&["dataset", "set", "tank.img", "nobody", "--l2", "all"]);
}
