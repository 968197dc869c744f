//! Verifies the labels of devices in use: a pool in use writes them, and reads them at import only.
//!
//! Of each label: that its configuration is sound and of this device, and that its ring has the
//! uberblock of the newest durable txg. Older uberblocks are not compared: a commit may have done
//! without single copies.

use super::config::{Config, VdevKind};
use super::label::{back_of, read_one, read_slot};
use super::{Devices, Leaf};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};

impl Devices {
    /// What is wrong with labels, a sentence each. `synced` is a txg that is durable. Unless the
    /// caller keeps others from writing labels, one that is being written may seem bad.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn bad_labels(
        &self,
        config: &Config,
        synced: u64,
        memory: &BlockCache,
    ) -> Result<Vec<String>> {
        let mut bad = Vec::new();
        for vdev in self.members().filter(|vdev| vdev.kind() != VdevKind::ObjectStore) {
            for (at, leaf) in vdev.used().filter(|(_, leaf)| !leaf.is_missing()) {
                let missed = vdev.status().missed(at);
                let misses = missed.is_some_and(|missed| missed.contains(synced));
                // What the log has instead of uberblocks may be older.
                let synced = (!vdev.is_log() && !misses).then_some(synced);
                for (end, offset) in [("front", 0), ("back", back_of(leaf.size_bytes()))] {
                    if let Some(why) = why_bad(leaf, offset, (config, synced), memory)? {
                        bad.push(format!("{}: the {end} label {why}", leaf.name()));
                    }
                }
            }
        }
        Ok(bad)
    }
}

fn why_bad(
    leaf: &Leaf,
    offset: u64,
    (config, synced): (&Config, Option<u64>),
    memory: &BlockCache,
) -> Result<Option<String>> {
    let said = |error: Error| match error.kind() {
        ErrorKind::NoMemory => Err(error),
        _ => Ok(Some(format!("cannot be read: {error}"))),
    };
    match read_one(&**leaf.device(), offset, memory) {
        Err(error) => return said(error),
        Ok(None) => return Ok(Some("is overwritten".to_owned())),
        Ok(Some(label)) => {
            let (pool_guid, guid) = (label.config.pool_guid, label.own().guid);
            if (pool_guid, guid) != (config.pool_guid, leaf.guid()) {
                return Ok(Some("is that of another device".to_owned()));
            }
        }
    }
    let Some(synced) = synced else { return Ok(None) };
    match read_slot(&**leaf.device(), offset, (config.pool_guid, synced), memory) {
        Err(error) => said(error),
        Ok(Some(txg)) if txg >= synced => Ok(None),
        Ok(_) => Ok(Some(format!("lacks the uberblock of transaction group {synced}"))),
    }
}
