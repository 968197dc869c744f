//! A load that fsyncs and remembers what it was promised.
//!
//! Each writer works in a folder of its own, in four ways: new files, a file that is replaced by rename, one that is appended to, and
//! files that are removed. A promise is what was true when an `fsync` returned. After a crash, every promise must hold; what came later may be there or not.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Writers at a time.
pub(super) const WRITERS: u64 = 4;
/// The longest content of a file in bytes.
const LONGEST: u64 = 100_000;

/// What a writer was promised.
pub(super) struct Promises {
    folder: PathBuf,
    seed: u64,
    /// Files that are there, by number.
    made: BTreeMap<u64, u64>,
    /// Numbers of files that are gone.
    removed: Vec<u64>,
    /// The version of the file that is replaced.
    replaced: Option<u64>,
    /// Length of the file that is appended to.
    appended: u64,
    pub(super) count: u64,
}

/// A stream of numbers out of one.
fn mix(seed: u64) -> u64 {
    let mut value = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// What a file of this name and version holds.
fn content(seed: u64, version: u64) -> Vec<u8> {
    let first = mix(seed ^ mix(version));
    let length = (first % LONGEST) as usize;
    stream(first, 0, length)
}

/// Bytes `from..from + length` of an endless stream.
fn stream(seed: u64, from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64)
        .map(|at| mix(seed ^ (at / 8)).to_le_bytes()[(at % 8) as usize])
        .collect()
}

impl Promises {
    pub(super) fn new(at: &Path, writer: u64, seed: u64) -> io::Result<Self> {
        let folder = at.join(format!("writer{writer}"));
        fs::create_dir(&folder)?;
        File::open(at)?.sync_all()?;
        Ok(Self {
            folder,
            seed: mix(seed ^ mix(writer)),
            made: BTreeMap::new(),
            removed: Vec::new(),
            replaced: None,
            appended: 0,
            count: 0,
        })
    }

    /// Works until it is told to stop, or until the server is gone and everything fails.
    pub(super) fn work(&mut self, stop: &AtomicBool) {
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
        }
    }

    fn file(&self, number: u64) -> PathBuf {
        self.folder.join(format!("f{number}"))
    }

    fn make(&mut self, number: u64) -> io::Result<()> {
        // A number that a kill interrupted may be there already.
        let mut file = File::create(self.file(number))?;
        file.write_all(&content(self.seed, number))?;
        file.sync_all()?;
        self.made.insert(number, number);
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
        // What was appended without a promise is cut off first.
        file.set_len(self.appended)?;
        (&file).write_all(&stream(self.seed, self.appended, length))?;
        file.sync_data()?;
        self.appended += length as u64;
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        if self.made.len() < 20 {
            return Ok(());
        }
        let Some((number, _)) = self.made.pop_first() else { return Ok(()) };
        fs::remove_file(self.file(number))?;
        File::open(&self.folder)?.sync_all()?;
        self.removed.push(number);
        Ok(())
    }

    /// Checks every promise.
    pub(super) fn verify(&mut self) -> Result<(), String> {
        for number in self.made.keys() {
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
        let Some(promised) = self.replaced else { return Ok(()) };
        let found =
            fs::read(&path).map_err(|error| format!("{}: was fsynced: {error}", path.display()))?;
        let Some((version, rest)) = found.split_first_chunk::<8>() else {
            return Err(format!("{}: has only {} bytes", path.display(), found.len()));
        };
        let version = u64::from_le_bytes(*version);
        if version < promised || version > self.count {
            return Err(format!("{}: version {version}, {promised} was fsynced", path.display()));
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
        let promised = stream(self.seed, 0, self.appended as usize);
        if !found.starts_with(&promised) {
            let same = found.iter().zip(&promised).take_while(|(a, b)| a == b).count();
            let (there, length) = (found.len(), promised.len());
            return Err(format!(
                "{}: {length} bytes were fsynced, {there} are there, {same} agree",
                path.display()
            ));
        }
        Ok(())
    }
}
