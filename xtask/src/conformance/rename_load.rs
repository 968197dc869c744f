//! A load that replaces files by rename without `fsync`.
//!
//! Two names are replaced in turn. After a crash each is a whole version, and their versions are
//! neighbours, because names become durable in their order and not before their content. Some steps
//! may sync another file, which makes all earlier renames durable.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::fsync_load::{content, mix};

/// With syncs, one step in this many has one.
const SYNC_ONE_IN: u64 = 8;

/// Two names and the number of renames.
pub(super) struct Replaced {
    folder: PathBuf,
    seed: u64,
    /// The newest rename that has returned, that was begun, and that is durable.
    pub(super) acknowledged: u64,
    sent: u64,
    durable: u64,
}

impl Replaced {
    pub(super) fn new(at: &Path, seed: u64) -> io::Result<Self> {
        let folder = at.join("renames");
        fs::create_dir(&folder)?;
        File::open(&folder)?.sync_all()?;
        Ok(Self { folder, seed: mix(seed ^ 0x5265), acknowledged: 0, sent: 0, durable: 0 })
    }

    fn path(&self, version: u64) -> PathBuf {
        self.folder.join(if version.is_multiple_of(2) { "even" } else { "odd" })
    }

    /// Works until `stop` is set, or until an operation fails because the server is killed. Calls
    /// `acknowledged` after each rename.
    pub(super) fn work(&mut self, stop: &AtomicBool, syncs: bool, acknowledged: impl Fn()) {
        while !stop.load(Ordering::Relaxed) {
            self.sent = self.acknowledged + 1;
            if self.replace(self.sent).is_err() {
                return;
            }
            self.acknowledged = self.sent;
            acknowledged();
            if syncs && mix(self.seed ^ self.sent).is_multiple_of(SYNC_ONE_IN) {
                let other = File::create(self.folder.join("other"));
                if other.and_then(|file| file.sync_all()).is_err() {
                    return;
                }
                self.durable = self.acknowledged;
            }
        }
    }

    fn replace(&self, version: u64) -> io::Result<()> {
        let new = self.folder.join("new");
        let mut file = File::create(&new)?;
        file.write_all(&version.to_le_bytes())?;
        file.write_all(&content(self.seed, version))?;
        drop(file);
        fs::rename(new, self.path(version))
    }

    /// Checks both names after a crash.
    pub(super) fn verify(&mut self) -> Result<(), String> {
        let [even, odd] = [self.version(0)?, self.version(1)?];
        let newest = even.max(odd);
        let Self { acknowledged, sent, durable, .. } = *self;
        if even.min(odd) != newest.saturating_sub(1) || newest < durable || newest > sent {
            return Err(format!(
                "{}: the names have versions {even} and {odd}; {acknowledged} renames were \
                 acknowledged, {sent} begun, {durable} synced",
                self.folder.display()
            ));
        }
        (self.acknowledged, self.durable) = (newest, newest);
        Ok(())
    }

    /// The version of the name for even or odd versions; 0 if there is none yet.
    fn version(&self, parity: u64) -> Result<u64, String> {
        let path = self.path(parity);
        let found = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            found => found.map_err(|error| format!("{}: {error}", path.display()))?,
        };
        let version = found.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
        match version {
            Some(version) if version % 2 == parity && found[8..] == content(self.seed, version) => {
                Ok(version)
            }
            _ => Err(format!(
                "{}: has {} bytes, which are not the content of version {version:?}",
                path.display(),
                found.len()
            )),
        }
    }
}
