//! A load that calls `fsync` and records the durable state.
//!
//! Each writer has a folder of its own. It creates files, replaces a file by rename, appends to a
//! file, and removes files. The durable state is the state when the last `fsync` returned. After a
//! crash the durable state must be there. Later changes may be there or not.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of concurrent writers.
pub(super) const WRITERS: u64 = 4;
/// The longest content of a file in bytes.
const LONGEST: u64 = 100_000;

/// A writer and its durable state.
pub(super) struct Writer {
    folder: PathBuf,
    seed: u64,
    /// Files that exist, by number.
    files: BTreeMap<u64, u64>,
    /// Numbers of removed files.
    removed: Vec<u64>,
    /// Version of the replaced file.
    replaced: Option<u64>,
    /// Length in bytes of the file that is appended to.
    appended: u64,
    pub(super) count: u64,
}

/// The SplitMix64 output for `seed`.
pub(super) fn mix(seed: u64) -> u64 {
    let mut value = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The content of a file of this seed and version.
pub(super) fn content(seed: u64, version: u64) -> Vec<u8> {
    let first = mix(seed ^ mix(version));
    let length = (first % LONGEST) as usize;
    stream(first, 0, length)
}

/// Bytes `from..from + length` of the infinite stream of `seed`.
pub(super) fn stream(seed: u64, from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64)
        .map(|at| mix(seed ^ (at / 8)).to_le_bytes()[(at % 8) as usize])
        .collect()
}

impl Writer {
    pub(super) fn new(at: &Path, writer: u64, seed: u64) -> io::Result<Self> {
        let folder = at.join(format!("writer{writer}"));
        fs::create_dir(&folder)?;
        File::open(at)?.sync_all()?;
        Ok(Self {
            folder,
            seed: mix(seed ^ mix(writer)),
            files: BTreeMap::new(),
            removed: Vec::new(),
            replaced: None,
            appended: 0,
            count: 0,
        })
    }

    /// Works until `stop` is set, or until an operation fails because the server is killed. Calls
    /// `acknowledged` after each operation.
    pub(super) fn work(&mut self, stop: &AtomicBool, acknowledged: impl Fn()) {
        let mut step = self.count;
        while !stop.load(Ordering::Relaxed) {
            let done = match mix(self.seed ^ mix(step)) % 4 {
                0 => self.make(step),
                1 => self.replace(step),
                2 => self.append(step),
                _ => self.remove(),
            };
            if done.is_err() {
                return;
            }
            step += 1;
            self.count = step;
            acknowledged();
        }
    }

    fn file(&self, number: u64) -> PathBuf {
        self.folder.join(format!("f{number}"))
    }

    fn make(&mut self, number: u64) -> io::Result<()> {
        // A file may exist already if a kill interrupted its creation.
        let mut file = File::create(self.file(number))?;
        file.write_all(&content(self.seed, number))?;
        file.sync_all()?;
        self.files.insert(number, number);
        Ok(())
    }

    fn replace(&mut self, version: u64) -> io::Result<()> {
        let (new, name) = (self.folder.join("new"), self.folder.join("replaced"));
        let mut file = File::create(&new)?;
        file.write_all(&version.to_le_bytes())?;
        file.write_all(&content(!self.seed, version))?;
        file.sync_all()?;
        fs::rename(&new, &name)?;
        File::open(&self.folder)?.sync_all()?;
        self.replaced = Some(version);
        Ok(())
    }

    fn append(&mut self, step: u64) -> io::Result<()> {
        let length = (mix(step) % 9000 + 1) as usize;
        let path = self.folder.join("log");
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        // Remove the bytes that an interrupted append may have left.
        file.set_len(self.appended)?;
        (&file).write_all(&stream(self.seed, self.appended, length))?;
        file.sync_data()?;
        self.appended += length as u64;
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        if self.files.len() < 20 {
            return Ok(());
        }
        let Some((number, _)) = self.files.pop_first() else { return Ok(()) };
        fs::remove_file(self.file(number))?;
        File::open(&self.folder)?.sync_all()?;
        self.removed.push(number);
        Ok(())
    }

    /// Checks the durable state.
    pub(super) fn verify(&mut self) -> Result<(), String> {
        for number in self.files.keys() {
            let path = self.file(*number);
            let found = fs::read(&path)
                .map_err(|error| format!("{}: was fsynced: {error}", path.display()))?;
            if found != content(self.seed, *number) {
                return Err(format!(
                    "{}: not the content that was fsynced ({} bytes)",
                    path.display(),
                    found.len()
                ));
            }
        }
        if let Some(number) = self.removed.iter().find(|number| self.file(**number).exists()) {
            return Err(format!(
                "{}: is back after its removal was fsynced",
                self.file(*number).display()
            ));
        }
        self.removed.clear();
        self.verify_replaced()?;
        self.verify_log()
    }

    fn verify_replaced(&self) -> Result<(), String> {
        let path = self.folder.join("replaced");
        let Some(synced) = self.replaced else { return Ok(()) };
        let found =
            fs::read(&path).map_err(|error| format!("{}: was fsynced: {error}", path.display()))?;
        let Some((version, rest)) = found.split_first_chunk::<8>() else {
            return Err(format!("{}: has only {} bytes", path.display(), found.len()));
        };
        let version = u64::from_le_bytes(*version);
        if version < synced || version > self.count {
            return Err(format!("{}: version {version}, {synced} was fsynced", path.display()));
        }
        if rest != content(!self.seed, version) {
            return Err(format!("{}: not the content of version {version}", path.display()));
        }
        Ok(())
    }

    fn verify_log(&self) -> Result<(), String> {
        if self.appended == 0 {
            return Ok(());
        }
        let path = self.folder.join("log");
        let mut found = Vec::new();
        let read = File::open(&path).and_then(|mut file| file.read_to_end(&mut found));
        read.map_err(|error| format!("{}: was fsynced: {error}", path.display()))?;
        let synced = stream(self.seed, 0, self.appended as usize);
        if !found.starts_with(&synced) {
            let same = found.iter().zip(&synced).take_while(|(a, b)| a == b).count();
            let (there, length) = (found.len(), synced.len());
            return Err(format!(
                "{}: {length} bytes were fsynced, {there} are there, {same} agree",
                path.display()
            ));
        }
        Ok(())
    }
}
