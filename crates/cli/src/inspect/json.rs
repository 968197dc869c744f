//! JSON output of `forebay inspect`.

use forebay_pool::ZapStats;
use forebay_pool::inspect::{
    BlockInfo, BlockPtrInfo, Damage, DatasetInfo, DeviceBytes, DeviceLabelsInfo, DirectoryInfo,
    DnodeInfo, Inspected, LabelCopyInfo, LabelState, ObjsetInfo, TxgInfo, UberblocksInfo,
};
use serde_json::{Value, json};

pub(super) fn seen<T>(seen: &Inspected<T>, found: Value) -> Value {
    json!({ "as_of_txg": seen.txg, "notices": seen.notices, "found": found })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn guid(guid: u64) -> String {
    format!("{guid:016x}")
}

fn damage(damage: &Damage) -> Value {
    json!({ "count": damage.count, "listed": damage.listed })
}

fn pointer(ptr: &BlockPtrInfo) -> Value {
    if ptr.is_hole() {
        return Value::Null;
    }
    let copies =
        ptr.copies.iter().map(|(device, offset)| json!({ "device": device, "offset": offset }));
    json!({
        "kind": ptr.kind,
        "level": ptr.level,
        "copies": copies.collect::<Vec<_>>(),
        "logical_bytes": ptr.logical_bytes,
        "physical_bytes": ptr.physical_bytes,
        "compression": ptr.compression,
        "gang": ptr.gang,
        "birth_txg": ptr.birth_txg,
        "fill": ptr.fill,
        "checksum": ptr.checksum,
        "objection": ptr.objection,
    })
}

fn label(label: &LabelCopyInfo) -> Value {
    let devices = label.devices.iter().map(
        |(device_guid, size_bytes)| json!({ "guid": guid(*device_guid), "size_bytes": size_bytes }),
    );
    json!({
        "version": label.version,
        "pool_guid": guid(label.pool_guid),
        "pool_name": label.pool_name,
        "device_guid": guid(label.device_guid),
        "device_number": label.device_number,
        "device_count": label.device_count,
        "generation": label.generation,
        "txg": label.txg,
        "state": label.state,
        "host_id": guid(label.host_id),
        "host_name": label.host_name,
        "sector_bytes": label.sector_bytes,
        "features": label.features,
        "devices": devices.collect::<Vec<_>>(),
        "objection": label.objection,
    })
}

pub(super) fn labels(devices: &[DeviceLabelsInfo]) -> Value {
    let one = |device: &DeviceLabelsInfo| {
        let labels = device.labels.iter().map(|(offset, state)| match state {
            LabelState::Sound(sound) => {
                json!({ "offset": offset, "state": "sound", "label": label(sound) })
            }
            LabelState::Damaged(why) => json!({ "offset": offset, "state": "damaged", "why": why }),
            LabelState::Unreadable(why) => {
                json!({ "offset": offset, "state": "unreadable", "why": why })
            }
        });
        json!({
            "device": device.name,
            "size_bytes": device.size_bytes,
            "labels": labels.collect::<Vec<_>>(),
            "l2_device": device.l2_device,
        })
    };
    devices.iter().map(one).collect()
}

pub(super) fn uberblocks(look: &UberblocksInfo) -> Value {
    let found = look.found.iter().map(|one| {
        json!({
            "txg": one.txg,
            "time_ns": one.time_ns,
            "pool_guid": guid(one.pool_guid),
            "device_count": one.device_count,
            "rings": one.rings,
            "root": pointer(&one.root),
            "root_problem": one.root_problem,
        })
    });
    let damaged = look.damaged.iter().map(
        |slot| json!({ "device": slot.device, "offset": slot.offset, "problem": slot.problem }),
    );
    json!({
        "rings": look.rings,
        "found": found.collect::<Vec<_>>(),
        "damaged": damaged.collect::<Vec<_>>(),
    })
}

fn set(set: &ObjsetInfo) -> Value {
    json!({
        "objects": set.objects,
        "allocated_bytes": set.allocated_bytes,
        "dnode_blocks": set.dnode_blocks,
        "levels": set.levels,
        "root": pointer(&set.root),
    })
}

fn dataset(dataset: &DatasetInfo) -> Value {
    json!({
        "name": dataset.name,
        "number": dataset.number,
        "guid": guid(dataset.guid),
        "created_txg": dataset.created_txg,
        "root_object": dataset.root_object,
        "flavour": dataset.flavour,
        "record_bytes": dataset.record_bytes,
        "data": { "compression": dataset.data.0, "copies": dataset.data.1 },
        "metadata": { "compression": dataset.metadata.0, "copies": dataset.metadata.1 },
        "cache": dataset.cache,
        "l2": dataset.l2,
        "sync": dataset.sync,
        "set": set(&dataset.set),
    })
}

pub(super) fn datasets(group: &TxgInfo) -> Value {
    let datasets: Vec<Value> = group.datasets.iter().map(dataset).collect();
    json!({ "datasets": datasets, "damage": damage(&group.damage) })
}

pub(super) fn group(group: &TxgInfo) -> Value {
    let (space, log) = (&group.space, &group.log);
    let extents = log.extents.iter().map(
        |(device, offset, bytes)| json!({ "device": device, "offset": offset, "bytes": bytes }),
    );
    json!({
        "txg": group.txg,
        "time_ns": group.time_ns,
        "root": pointer(&group.root),
        "own": set(&group.own),
        "directory": group.directory,
        "space": {
            "allocated_bytes": space.allocated_bytes,
            "sector_bytes": space.sector_bytes,
            "metaslabs": space.metaslabs,
            "log_blocks": space.log_blocks,
            "log_entries": space.log_entries,
            "log": pointer(&space.log),
            "index": space.index.iter().map(pointer).collect::<Vec<_>>(),
        },
        "scrub": {
            "state": format!("{:?}", group.scrub.state).to_lowercase(),
            "txg": group.scrub.txg,
            "blocks": group.scrub.blocks,
            "bytes": group.scrub.bytes,
            "healed": group.scrub.healed,
            "lost": group.scrub.lost,
        },
        "log": {
            "guid": guid(log.guid),
            "generation": log.generation,
            "txg": log.txg,
            "head_offset": log.head_offset,
            "head_sequence": log.head_sequence,
            "extents": extents.collect::<Vec<_>>(),
        },
        "datasets": group.datasets.iter().map(dataset).collect::<Vec<_>>(),
        "damage": damage(&group.damage),
    })
}

pub(super) fn object(object: &DnodeInfo) -> Value {
    let levels = object.levels.iter().map(|level| {
        json!({
            "level": level.level,
            "blocks": level.blocks,
            "logical_bytes": level.logical_bytes,
            "physical_bytes": level.physical_bytes,
            "allocated_bytes": level.allocated_bytes,
            "compressed": level.packed,
            "gangs": level.gangs,
            "oldest_birth": level.births.0,
            "newest_birth": level.births.1,
        })
    });
    let first =
        object.first.iter().map(|(block, ptr)| json!({ "block": block, "pointer": pointer(ptr) }));
    json!({
        "number": object.number,
        "kind": object.kind,
        "size_bytes": object.size_bytes,
        "record_bytes": object.record_bytes,
        "blocks": object.blocks,
        "allocated_bytes": object.allocated_bytes,
        "created_txg": object.created_txg,
        "attributes": hex(&object.attributes),
        "inline": hex(&object.inline),
        "tree_levels": object.tree_levels,
        "root": pointer(&object.root),
        "levels": levels.collect::<Vec<_>>(),
        "first": first.collect::<Vec<_>>(),
        "damage": damage(&object.damage),
    })
}

fn stats(stats: &ZapStats) -> Value {
    let pointers = stats
        .by_pointers()
        .into_iter()
        .map(|(pointers, leaves)| json!({ "pointers": pointers, "leaves": leaves }));
    json!({
        "entries": stats.entries,
        "micro_bytes": stats.micro_bytes,
        "leaves": stats.leaves,
        "depth": stats.depth,
        "used_bytes": stats.used_bytes,
        "stored_bytes": stats.stored_bytes,
        "full_bytes": stats.full_bytes,
        "fill": stats.fill(),
        "bytes_per_entry": stats.bytes_per_entry(),
        "collisions": stats.collisions,
        "leaves_by_stored_fill_tenths": stats.by_stored_fill,
        "leaves_by_fill_tenths": stats.by_fill,
        "leaves_by_depth": stats.by_depth,
        "leaves_by_pointers": pointers.collect::<Vec<_>>(),
        "leaves_by_entries_log2": stats.by_entries,
        "entries_by_24_bytes": stats.entries_by_bytes,
        "entries_by_distance_log2": stats.entries_by_distance,
    })
}

pub(super) fn directory(directory: &DirectoryInfo) -> Value {
    json!({
        "number": directory.number,
        "allocated_bytes": directory.allocated_bytes,
        "stats": stats(&directory.stats),
        "header_entries": directory.header.0,
        "header_leaves": directory.header.1,
        "damage": damage(&directory.damage),
    })
}

pub(super) fn block(block: &BlockInfo) -> Value {
    let copies = block.copies.iter().map(
        |copy| json!({ "device": copy.device, "offset": copy.offset, "problem": copy.problem }),
    );
    json!({
        "block": block.block,
        "pointer": pointer(&block.pointer),
        "copies": copies.collect::<Vec<_>>(),
        "content": block.content.as_deref().map(hex),
    })
}

pub(super) fn bytes(bytes: &DeviceBytes) -> Value {
    json!({
        "device": bytes.device,
        "offset": bytes.offset,
        "seems": bytes.seems,
        "bytes": hex(&bytes.bytes),
    })
}
