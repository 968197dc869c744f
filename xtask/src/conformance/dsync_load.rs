//! A load of `O_DSYNC` writes: each write that has returned is durable.
//!
//! The writes overwrite blocks of one file in place, in a seeded order.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::fsync_load::{mix, stream};

/// `O_DSYNC` of Linux on all architectures that Forebay runs on.
const O_DSYNC: i32 = 0o10000;
/// Number of blocks of the file.
const BLOCKS: u64 = 32;
/// Bytes of a block. It is a page, so that the kernel's cache writes it whole.
const BLOCK: usize = 4096;

/// A file and the durable version of each of its blocks.
pub(super) struct Blocks {
    path: PathBuf,
    seed: u64,
    versions: [u64; BLOCKS as usize],
    /// The block and version of a write that has not returned.
    sent: Option<(usize, u64)>,
    pub(super) count: u64,
}

impl Blocks {
    pub(super) fn new(at: &Path, seed: u64) -> io::Result<Self> {
        let (path, versions) = (at.join("blocks"), [0; BLOCKS as usize]);
        let new = Self { path, seed: mix(!seed), versions, sent: None, count: 0 };
        let file = File::create(&new.path)?;
        for at in 0..BLOCKS {
            file.write_all_at(&new.block(at as usize, 0), at * BLOCK as u64)?;
        }
        file.sync_all()?;
        Ok(new)
    }

    fn block(&self, at: usize, version: u64) -> Vec<u8> {
        stream(mix(self.seed ^ mix(version ^ ((at as u64) << 32))), 0, BLOCK)
    }

    /// Works until `stop` is set, or until a write fails because the server is killed. Calls
    /// `acknowledged` after each write.
    pub(super) fn work(&mut self, stop: &AtomicBool, acknowledged: impl Fn()) {
        let file = OpenOptions::new().write(true).custom_flags(O_DSYNC).open(&self.path);
        let Ok(file) = file else { return };
        while !stop.load(Ordering::Relaxed) {
            let version = self.count + 1;
            let at = (mix(self.seed ^ version) % BLOCKS) as usize;
            self.sent = Some((at, version));
            if file.write_all_at(&self.block(at, version), (at * BLOCK) as u64).is_err() {
                return;
            }
            self.versions[at] = version;
            self.sent = None;
            self.count = version;
            acknowledged();
        }
    }

    /// Checks each block after a crash.
    pub(super) fn verify(&mut self) -> Result<(), String> {
        let path = self.path.display();
        let found = fs::read(&self.path).map_err(|error| format!("{path}: {error}"))?;
        if found.len() != BLOCK * BLOCKS as usize {
            return Err(format!("{path}: has {} bytes", found.len()));
        }
        for (at, block) in found.chunks_exact(BLOCK).enumerate() {
            let durable = self.versions[at];
            if block == self.block(at, durable) {
                continue;
            }
            match self.sent {
                Some((sent, version)) if sent == at && block == self.block(at, version) => {
                    self.versions[at] = version;
                }
                _ => {
                    let older = (0..durable).rev().find(|old| block == self.block(at, *old));
                    return Err(format!(
                        "{path}: block {at} was written with O_DSYNC as version {durable}, and \
                         is of version {older:?}"
                    ));
                }
            }
        }
        if let Some((_, version)) = self.sent.take() {
            self.count = version;
        }
        Ok(())
    }
}
