//! The keys and types of `forebay inspect --json`, which scripts depend on. Most keys are the names
//! of fields in Rust, so that renaming a field must fail a test.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use serde_json::{Map, Value, json};

use crate::fixture::Fixture;

/// The value with the name of its type for each number, flag and text, and with one element for the
/// equal ones that follow each other in an array.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => "flag".into(),
        Value::Number(_) => "number".into(),
        Value::String(text) => {
            let is_hex = text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_hex { "hex" } else { "text" }.into()
        }
        Value::Array(elements) => {
            let mut shapes: Vec<Value> = elements.iter().map(shape).collect();
            shapes.dedup();
            shapes.into()
        }
        Value::Object(fields) => {
            let shaped = fields.iter().map(|(name, value)| match &**name {
                // Some hosts are named by hexadecimal digits.
                "host_name" => (name.clone(), "text".into()),
                _ => (name.clone(), shape(value)),
            });
            shaped.collect::<Map<_, _>>().into()
        }
    }
}

/// The shape of a structure that is sound or damaged.
#[track_caller]
fn shown(fixture: &Fixture, arguments: &[&str]) -> Value {
    let output = fixture.run(&[&["inspect", "tank.img", "--json"], arguments].concat());
    let value = serde_json::from_slice(&output.stdout);
    shape(&value.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}")))
}

fn pointer() -> Value {
    json!({
        "kind": "text",
        "level": "number",
        "copies": [{ "device": "number", "offset": "number" }],
        "logical_bytes": "number",
        "physical_bytes": "number",
        "compression": "text",
        "gang": "flag",
        "birth_txg": "number",
        "fill": "number",
        "checksum": "hex",
        "preallocated": "flag",
        "objection": null,
    })
}

fn set() -> Value {
    json!({
        "objects": "number",
        "allocated_bytes": "number",
        "dnode_blocks": "number",
        "levels": "number",
        "root": pointer(),
    })
}

fn dataset() -> Value {
    let properties = json!({ "compression": "text", "copies": "number" });
    json!({
        "name": "text",
        "number": "number",
        "guid": "hex",
        "created_txg": "number",
        "root_object": "number",
        "flavour": "number",
        "record_bytes": "number",
        "data": properties,
        "metadata": properties,
        "cache": "text",
        "l2": "text",
        "sync": "text",
        "fail_mode": "text",
        "set": set(),
    })
}

fn undamaged() -> Value {
    json!({ "count": "number", "listed": [] })
}

fn seen(found: Value) -> Value {
    json!({ "as_of_txg": "number", "notices": [], "found": found })
}

#[test]
fn labels_and_uberblocks_have_their_keys() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let file = OpenOptions::new().read(true).write(true).open(fixture.path("tank.img"));
    let file = file.expect("it");
    // A byte of the front label, and one of an uberblock in the ring behind it.
    for offset in [100, (128 << 10) + 4096 + 100] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("a byte");
        file.write_all_at(&[byte[0] ^ 1], offset).expect("flipped");
    }
    let label = json!({
        "version": "number",
        "pool_guid": "hex",
        "pool_name": "text",
        "device_guid": "hex",
        "vdev_number": "number",
        "vdev_count": "number",
        "generation": "number",
        "txg": "number",
        "state": "text",
        "host_id": "hex",
        "host_name": "text",
        "sector_bytes": "number",
        "features": [{ "name": "text", "uses": "number" }],
        "devices": [{
            "vdev": "number",
            "mirror": "flag",
            "missed_from": "number",
            "guid": "hex",
            "size_bytes": "number",
        }],
        "objection": null,
    });
    let labels = json!([{
        "device": "text",
        "size_bytes": "number",
        "labels": [
            { "offset": "number", "state": "text", "why": "text" },
            { "offset": "number", "state": "text", "label": label },
        ],
        "l2_device": null,
    }]);
    assert_eq!(shown(&fixture, &["label"]), labels);

    let uberblocks = shown(&fixture, &["uberblocks"]);
    let newest = json!({
        "txg": "number",
        "previous_txg": "number",
        "time_ns": "number",
        "pool_guid": "hex",
        "vdev_count": "number",
        "rings": "number",
        "root": pointer(),
        "root_problem": null,
    });
    assert_eq!(uberblocks["found"][0], newest);
    assert_eq!(uberblocks["rings"], "number");
    let damaged = json!([{ "device": "text", "offset": "number", "problem": "text" }]);
    assert_eq!(uberblocks["damaged"], damaged);
}

#[test]
fn a_txg_and_its_datasets_have_their_keys() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let txg = json!({
        "txg": "number",
        "time_ns": "number",
        "root": pointer(),
        "own": set(),
        "directory": "number",
        "space": {
            "allocated_bytes": "number",
            "sector_bytes": "number",
            "metaslabs": "number",
            "log_blocks": "number",
            "log_entries": "number",
            "log": pointer(),
            "index": [pointer()],
        },
        "log": {
            "guid": "hex",
            "generation": "number",
            "txg": "number",
            "head_offset": "number",
            "head_sequence": "number",
            "extents": [{ "device": "number", "offset": "number", "bytes": "number" }],
        },
        "scrub": {
            "state": "text",
            "is_active": "flag",
            "txg": "number",
            "started": "number",
            "ended": "number",
            "every_s": "number",
            "blocks": "number",
            "bytes": "number",
            "total_bytes": "number",
            "healed": "number",
            "lost": "number",
            "rate_bytes": "number",
            "active_ns": "number",
        },
        "datasets": [dataset()],
        "damage": undamaged(),
    });
    assert_eq!(shown(&fixture, &["txg"]), seen(txg));
    let datasets = json!({ "datasets": [dataset()], "damage": undamaged() });
    assert_eq!(shown(&fixture, &["datasets"]), seen(datasets));
}

#[test]
fn objects_directories_and_blocks_have_their_keys() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let dnodes = shown(&fixture, &["block", "main", "dnodes", "0"]);
    let block = json!({
        "block": "number",
        "pointer": pointer(),
        "copies": [
            { "device": "number", "side": "number", "offset": "number", "problem": null },
        ],
        "content": "hex",
    });
    assert_eq!(dnodes, seen(block));
    let bytes = json!({ "device": "text", "offset": "number", "seems": "text", "bytes": "hex" });
    assert_eq!(shown(&fixture, &["block", "0:0:4096"]), bytes);

    // The directory of datasets lies in its dnode, so its root is a hole.
    let object = json!({
        "number": "number",
        "kind": "text",
        "size_bytes": "number",
        "record_bytes": "number",
        "blocks": "number",
        "allocated_bytes": "number",
        "created_txg": "number",
        "attributes": "text",
        "inline": "hex",
        "tree_levels": "number",
        "root": null,
        "levels": [],
        "first": [],
        "damage": undamaged(),
    });
    let txg = fixture.ok(&["inspect", "tank.img", "txg", "--json"]);
    let txg: Value = serde_json::from_str(&txg).expect("JSON");
    let number = txg["found"]["directory"].to_string();
    assert_eq!(shown(&fixture, &["object", "-", &number]), seen(object));
    let stats = json!({
        "entries": "number",
        "micro_bytes": "number",
        "leaves": "number",
        "depth": "number",
        "buffered": "number",
        "pages": "number",
        "page_bytes": "number",
        "filter_blocks": "number",
        "filter_bytes": "number",
        "used_bytes": "number",
        "stored_bytes": "number",
        "full_bytes": "number",
        "fill": "number",
        "bytes_per_entry": "number",
        "collisions": "number",
        "leaves_by_stored_fill_tenths": ["number"],
        "leaves_by_fill_tenths": ["number"],
        "leaves_by_depth": ["number"],
        "leaves_by_pointers": [],
        "leaves_by_entries_log2": ["number"],
        "entries_by_24_bytes": ["number"],
        "entries_by_distance_log2": ["number"],
    });
    let directory = json!({
        "number": "number",
        "allocated_bytes": "number",
        "stats": stats,
        "header_entries": "number",
        "header_leaves": "number",
        "damage": undamaged(),
    });
    assert_eq!(shown(&fixture, &["zap", "-", &number]), seen(directory));
}
