//! Verifies what a crash left.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_fs::FileSystem;
use forebay_io::Device;
use forebay_io::record::{Image, RecordDevice, RecordOptions, Recording};

use super::Medium;
use super::found::{self, Found};
use super::images::{Bounds, Crash, crashes};
use super::oracle::{Log, Oracle};
use super::run::Run;
use crate::common::{ROOT, mkdir};

/// Crashes of an import that are verified.
const SECOND_CRASHES: usize = 2;

/// A crash of a run.
pub(super) struct Verification<'a> {
    pub(super) medium: &'a Medium,
    pub(super) run: &'a Run,
    pub(super) crash: &'a Crash,
}

impl Verification<'_> {
    /// Compares the state with the promises. Returns whether a log was replayed.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn compare(&self) -> Result<bool, String> {
        self.compare_image(&self.image())
    }

    /// As [`compare`](Self::compare). Also mounts without the log, which finds the state of a
    /// group; audits the file system, checks the pool, and changes it; and crashes the import.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self, rng: &mut SmallRng) -> Result<bool, String> {
        let image = self.image();
        let fs = self.medium.mount_with(Medium::device(&image), true, &[]);
        let state = found::read_all(&fs);
        Medium::unmount(fs);
        self.explain(&state, Log::Ignored)
            .map_err(|reason| format!("without its log: {reason}"))?;
        let options = RecordOptions { max_bytes: 64 << 20, base: Some(image.clone()) };
        let device = Arc::new(RecordDevice::new(Medium::device(&image), options));
        let fs = self.medium.mount(Arc::clone(&device) as Arc<dyn Device>);
        let import = device.recording();
        let state = found::read_all(&fs);
        self.explain(&state, Log::Replayed)?;
        let replayed = has_replayed(&fs);
        audit(&fs)?;
        // The file system still accepts changes, and keeps everything else.
        mkdir(&fs, ROOT, b"after the crash");
        Medium::unmount(fs);
        self.mount_again(device, &state)?;
        self.crash_import(&import, rng)?;
        Ok(replayed)
    }

    fn image(&self) -> Image {
        self.crash.image(&self.run.recording)
    }

    fn explain(&self, state: &BTreeMap<String, Found>, log: Log) -> Result<(), String> {
        Oracle { run: self.run, position: self.crash.position, log }.check(state)
    }

    fn compare_image(&self, image: &Image) -> Result<bool, String> {
        let fs = self.medium.mount(Medium::device(image));
        let state = found::read_all(&fs);
        let replayed = has_replayed(&fs);
        Medium::unmount(fs);
        self.explain(&state, Log::Replayed).map(|()| replayed)
    }

    /// Another mount finds the same state, and the new directory.
    fn mount_again(
        &self,
        device: Arc<dyn Device>,
        before: &BTreeMap<String, Found>,
    ) -> Result<(), String> {
        let fs = self.medium.mount(device);
        let mut again = found::read_all(&fs);
        Medium::unmount(fs);
        again.remove("after the crash").ok_or("a change after the crash is not there")?;
        let content = |state: &BTreeMap<String, Found>| {
            let content = state.iter().map(|(path, inode)| (path.clone(), inode.content.clone()));
            content.collect::<Vec<_>>()
        };
        match content(&again) == content(before) {
            true => Ok(()),
            false => Err("another mount finds another state".to_owned()),
        }
    }

    /// Crashes during the import keep the same promises.
    fn crash_import(&self, import: &Recording, rng: &mut SmallRng) -> Result<(), String> {
        let (mut known, mut all) = (HashSet::new(), Vec::new());
        let bounds = Bounds { cuts: 3, samples: 1 };
        crashes(import, (0, import.len()), bounds, rng, (&mut known, &mut all));
        for _ in 0..SECOND_CRASHES.min(all.len()) {
            let second = all.swap_remove(rng.below(all.len() as u64) as usize);
            self.compare_image(&second.image(import))
                .map_err(|reason| format!("a crash of the import, {second}: {reason}"))?;
        }
        Ok(())
    }
}

fn has_replayed(fs: &FileSystem) -> bool {
    fs.pool().stats().counters.iter().any(|row| row.0 == "replayed" && row.2 > 0)
}

/// Checks file system and pool.
fn audit(fs: &FileSystem) -> Result<(), String> {
    let report = fs.audit().expect("an audit");
    if !report.is_clean() || report.orphans > 0 {
        return Err(format!("the audit: {report}"));
    }
    let report = fs.pool().check(&mut |_| ControlFlow::Continue(())).expect("a check");
    match report.is_clean() {
        true => Ok(()),
        false => Err(format!("the check: {report}")),
    }
}
