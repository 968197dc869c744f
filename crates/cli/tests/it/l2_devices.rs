//! Cache devices of pools, in use and not.

use serde_json::Value;

use crate::place::{Place, wait_until};

fn listed(place: &Place, pool: &str) -> Vec<Value> {
    let listed = place.ok(&["cache", "list", pool, "--json"]);
    serde_json::from_str(&listed).expect("it is JSON")
}

#[test]
fn a_pool_that_is_not_in_use_gets_one_and_loses_it() {
    let place = Place::new();
    place.pool("tank.img");
    assert!(listed(&place, "tank.img").is_empty());
    let missing = place.fails(&["cache", "add", "tank.img", "fast.img"]);
    assert!(missing.contains("--size makes a file"), "{missing}");
    let small = place.fails(&["cache", "add", "tank.img", "fast.img", "--size", "1M"]);
    assert!(small.contains("give at least"), "{small}");
    assert!(!place.path("fast.img").exists());
    let said = place.ok(&["cache", "add", "tank.img", "fast.img", "--size", "32M"]);
    assert!(said.contains("is a cache device of pool tank now, 32.0 MiB"), "{said}");

    let all = listed(&place, "tank.img");
    assert_eq!((all.len(), all[0]["state"].as_str()), (1, Some("away")));
    assert!(all[0]["why"].as_str().unwrap().contains("not in use"), "{all:?}");
    let shown = place.ok(&["status", "tank.img"]);
    assert!(shown.contains("fast.img, 32.0 MiB, away"), "{shown}");
    let own = place.fails(&["cache", "add", "tank.img", "tank.img"]);
    assert!(own.contains("is a device of this pool"), "{own}");
    place.ok(&["check", "tank.img"]);

    std::fs::write(place.path("notes.txt"), vec![b'x'; 20 << 20]).unwrap();
    let foreign = place.fails(&["cache", "add", "tank.img", "notes.txt"]);
    assert!(foreign.contains("force"), "{foreign}");
    place.pool("other.img");
    let pools = place.fails(&["cache", "add", "tank.img", "other.img"]);
    assert!(pools.contains("holds pool \"other\"") && pools.contains("--force"), "{pools}");
    place.ok(&["check", "other.img"]);

    let unknown = place.fails(&["cache", "remove", "tank.img", "notes.txt"]);
    assert!(unknown.contains("`forebay cache list tank` lists them"), "{unknown}");
    place.ok(&["cache", "remove", "tank.img", "fast.img"]);
    assert!(listed(&place, "tank.img").is_empty());
    // What was removed is empty, and can be added again.
    place.ok(&["cache", "add", "tank.img", "fast.img"]);
}

#[test]
fn a_pool_in_use_gets_one_and_loses_it() {
    let place = Place::new();
    place.pool("tank.img");
    place.ok(&["import", "tank.img"]);
    place.ok(&["cache", "add", "tank", "fast.img", "--size", "32M"]);
    let label = place.ok(&["inspect", "fast.img", "label"]);
    assert!(label.contains("is a cache device (") && label.contains("of the pool "), "{label}");
    let again = place.fails(&["cache", "add", "tank", "fast.img"]);
    assert!(again.contains("is a cache device of this pool already"), "{again}");
    let again = place.fails(&["cache", "add", "tank", "fast.img", "--force"]);
    assert!(again.contains("is a cache device of this pool already"), "{again}");
    let state = || listed(&place, "tank")[0]["state"].as_str().unwrap().to_owned();
    assert_eq!(state(), "active");
    let table = place.ok(&["cache", "list"]);
    for part in ["CACHE DEVICE", "fast.img", "active", "32.0 MiB"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let shown = place.ok(&["stats"]);
    assert!(shown.contains("CACHE DEVICE") && shown.contains("fast.img"), "{shown}");

    place.ok(&["export", "tank"]);
    wait_until("the process ends", || place.processes().is_empty());
    place.ok(&["import", "tank.img"]);
    wait_until("the cache device is known", || state() == "active");
    let number = listed(&place, "tank")[0]["number"].as_str().unwrap().to_owned();
    place.ok(&["export", "tank"]);
    wait_until("the process ends", || place.processes().is_empty());

    // Without it, or not wanted, the pool is used all the same, and says so.
    place.ok(&["import", "tank.img", "--no-cache-devices"]);
    assert_eq!(state(), "away");
    place.ok(&["export", "tank"]);
    wait_until("the process ends", || place.processes().is_empty());
    std::fs::rename(place.path("fast.img"), place.path("slow.img")).unwrap();
    let (why, state) = ("fast.img", listed(&place, "tank.img"));
    assert!(state[0]["why"].as_str().unwrap().contains(why), "{state:?}");
    // Who imports it is told, and what to do.
    let import = |wanted: &str| {
        let output = place.run(&["import", "tank.img"]);
        let (out, err) = crate::place::texts(&output);
        assert!(output.status.success(), "{out}{err}");
        let told = err.contains("pool tank does without its cache device") && err.contains(wanted);
        assert!(told && err.contains(&format!("`forebay cache remove tank {number}`")), "{err}");
    };
    std::fs::write(place.path("fast.img"), vec![1; 32 << 20]).unwrap();
    assert!(listed(&place, "tank.img")[0]["why"].as_str().unwrap().contains("no L2"));
    import("holds no L2");
    place.ok(&["export", "tank"]);
    wait_until("the process ends", || place.processes().is_empty());
    std::fs::remove_file(place.path("fast.img")).unwrap();
    import("fast.img");
    let shown = place.ok(&["status", "tank"]);
    assert!(shown.contains("fast.img, 32.0 MiB, away: "), "{shown}");
    place.ok(&["cache", "remove", "tank", &number]);
    assert!(listed(&place, "tank").is_empty());
    place.ok(&["export", "tank"]);
    place.ok(&["check", "tank.img"]);
}

#[test]
fn datasets_say_what_cache_devices_hold() {
    let place = Place::new();
    place.pool("tank.img");
    place.ok(&["dataset", "create", "tank.img", "backups", "--second", "none"]);
    let listed = || place.ok(&["dataset", "list", "tank.img"]);
    let line = |name: &str| {
        let all = listed();
        all.lines().find(|line| line.starts_with(name)).expect("it is listed").to_owned()
    };
    assert!(line("backups ").trim_end().ends_with("none"), "{}", listed());
    assert!(line("main ").trim_end().ends_with("all"), "{}", listed());
    place.ok(&["dataset", "set", "tank.img", "main", "--second", "metadata", "--sync", "group"]);
    let main = line("main ");
    assert!(main.contains("group") && main.trim_end().ends_with("metadata"), "{main}");
    let nothing = place.run(&["dataset", "set", "tank.img", "main"]);
    assert!(!nothing.status.success());
    place.fails(&["dataset", "set", "tank.img", "nobody", "--second", "all"]);
}
