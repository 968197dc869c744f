//! `forebay demo`: what Forebay does, on real files, in a temporary place that is gone afterwards.
//!
//! A pool in a file, a cache smaller than the data, a mount by this process. A tree of files is copied in, read back and
//! compared; some of it, less than the cache, is then read again and again beside a scan of everything, which shows
//! whether the cache keeps what is in use; the pool is exported, imported and mounted again, and all is verified once more;
//! and at last every block is checked.

mod tree;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use forebay_pool::DatasetSettings;

use super::create::{New, create};
use crate::args::DemoArgs;
use crate::daemon::screen::Screen;
use crate::daemon::{Daemon, Event, MountRequest, MountedDataset, jobs, stats};
use crate::error::{Failure, Result};
use crate::flags::Flags;
use crate::memory::MemoryPlan;
use crate::output::Progress;
use crate::pools::ImportRequest;
use crate::{output, units};
use tree::Tree;

/// Room for the data twice over: what is copied is not compressed.
const SPARE_BYTES: u64 = 1 << 30;
/// The files in use come to this part of the cache.
const HOT_SHARE: u64 = 4;

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    forebay_fuse::available().map_err(|error| {
        Failure::from(error).doing("the demo mounts a pool through FUSE, which does not work here")
    })?;
    let plan = MemoryPlan::new(Some(args.memory), None)?;
    let progress = Progress::begin("looking around")?;
    let tree = Tree::find(args.tree.as_deref(), args.limit, &|| progress.is_stopped())?;
    drop(progress);
    let folder = temporary(args.temporary.as_deref())?;
    output::line(&format!(
        "{}: {} files, {}; the cache has {}; all of it is in {}, and gone afterwards",
        tree.root.display(),
        tree.files.len(),
        units::bytes(tree.bytes),
        units::bytes(plan.cache_bytes),
        folder.path.display()
    ));
    if tree.bytes <= plan.cache_bytes {
        output::line("the tree fits the cache: a larger one, or less --memory, shows more");
    }
    let mut demo = Demo { folder, plan, tree, rows: Vec::new() };
    let ended = demo.show();
    output::print(&units::table(
        &["STEP", ">FILES", ">BYTES", ">TIME", ">RATE", ">FROM MEMORY"],
        &demo.rows,
    ));
    let Demo { folder, .. } = demo;
    folder.remove()?;
    ended?;
    output::line("every file was the same every time, and the pool is sound; the folder is gone");
    Ok(())
}

struct Demo {
    folder: Folder,
    plan: MemoryPlan,
    tree: Tree,
    rows: Vec<Vec<String>>,
}

impl Demo {
    fn show(&mut self) -> Result<()> {
        let device = self.folder.path.join("demo.pool");
        let new = New {
            name: "demo",
            devices: std::slice::from_ref(&device),
            size_bytes: (2 * self.tree.bytes + SPARE_BYTES).next_multiple_of(1 << 20),
            dataset: "main",
            settings: DatasetSettings::default(),
            force: false,
        };
        create(&new)?.close()?;
        let at = self.folder.path.join("mnt");
        std::fs::create_dir(&at).map_err(|error| Failure::about(&at, "make the folder", &error))?;
        let (all, hot) = (self.tree.all(), self.tree.hot(self.plan.cache_bytes / HOT_SHARE));
        {
            let session = Session::begin(&self.plan, &device, &at)?;
            self.step(&session, "copied in", &all, &mut |tree, file| tree.copy(file, &at))?;
            self.step(&session, "read and compared", &all, &mut |tree, file| {
                tree.compare(file, &at)
            })?;
            self.step(&session, "some of it", &hot, &mut |tree, file| tree.compare(file, &at))?;
            self.step(&session, "the same again", &hot, &mut |tree, file| tree.compare(file, &at))?;
            self.step(&session, "everything (a scan)", &all, &mut |tree, file| {
                tree.compare(file, &at)
            })?;
            self.step(&session, "the same after it", &hot, &mut |tree, file| {
                tree.compare(file, &at)
            })?;
            session.end()?;
        }
        let session = Session::begin(&self.plan, &device, &at)?;
        self.step(&session, "verified after a remount", &all, &mut |tree, file| {
            tree.compare(file, &at)
        })?;
        self.check(&session)?;
        session.end()
    }

    /// Does something to each of these files, and notes what it took.
    fn step(
        &mut self,
        session: &Session,
        what: &str,
        files: &[usize],
        each: &mut dyn FnMut(&Tree, usize) -> Result<u64>,
    ) -> Result<()> {
        let progress = Progress::begin(what)?;
        let total: u64 = files.iter().map(|file| self.tree.files[*file].bytes).sum();
        let (before, started) = (stats::process(&session.daemon), Instant::now());
        let mut bytes = 0;
        for file in files {
            if progress.is_stopped() {
                return Err(Failure::new("the demo was interrupted; its folder is gone"));
            }
            bytes += each(&self.tree, *file)?;
            progress.show_bytes(bytes, total);
        }
        let (after, time) = (stats::process(&session.daemon), started.elapsed());
        let memory = after.memory_hits(Some(&before));
        self.note(what, files.len(), bytes, time, &units::percent(memory.found, memory.wanted));
        Ok(())
    }

    fn check(&mut self, session: &Session) -> Result<()> {
        let progress = Progress::begin("checking")?;
        let started = Instant::now();
        let pools = session.daemon.pools();
        let imported = pools.first().ok_or_else(|| Failure::new("the pool is gone"))?;
        let info = jobs::check(&imported.pool, &mut |info| progress.step(info))?;
        if info.problem_count > 0 {
            return Err(Failure::new(format!(
                "the pool has problems: {}",
                info.problems.join("; ")
            )));
        }
        if !info.complete {
            return Err(Failure::new("the demo was interrupted; its folder is gone"));
        }
        self.note("every block checked", 0, info.bytes, started.elapsed(), "-");
        Ok(())
    }

    fn note(&mut self, what: &str, files: usize, bytes: u64, time: Duration, found: &str) {
        let seconds = time.as_secs_f64();
        let rate = if seconds > 0.0 { (bytes as f64 / seconds) as u64 } else { 0 };
        self.rows.push(vec![
            what.to_owned(),
            if files == 0 { "-".to_owned() } else { files.to_string() },
            units::bytes(bytes),
            format!("{seconds:.2} s"),
            format!("{}/s", units::bytes(rate)),
            found.to_owned(),
        ]);
    }
}

/// The pool, mounted by this process.
struct Session {
    daemon: Arc<Daemon>,
    mount: Option<Arc<MountedDataset>>,
    /// Kept, so that the host has somebody to tell.
    _events: Receiver<Event>,
}

impl Session {
    fn begin(plan: &MemoryPlan, device: &Path, at: &Path) -> Result<Self> {
        let (events, heard) = channel();
        let daemon = Daemon::new(
            *plan,
            crate::daemon::DaemonMode::Foreground,
            Arc::new(Screen::silent()),
            events,
        )?;
        let import = ImportRequest::plain(vec![device.to_owned()], false);
        let wanted = MountRequest {
            dataset: "main".to_owned(),
            at: at.to_owned(),
            flags: Flags::default(),
            kernel_cache: false,
            allow_other: false,
            threads: None,
        };
        let mount = daemon.mount(&import, &wanted)?;
        Ok(Self { daemon, mount: Some(mount), _events: heard })
    }

    fn end(mut self) -> Result<()> {
        match self.mount.take() {
            Some(mount) => self.daemon.unmount(&mount, false),
            None => Ok(()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            // Another error is told.
            let _ = self.daemon.unmount(&mount, true);
        }
    }
}

/// A folder that is removed when it goes.
struct Folder {
    path: PathBuf,
    there: bool,
}

fn temporary(parent: Option<&Path>) -> Result<Folder> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    let seed = forebay_base::rng::seed_from_system();
    let path = parent.join(format!("forebay-demo-{seed:016x}"));
    std::fs::create_dir(&path)
        .map_err(|error| Failure::about(&path, "make the temporary folder", &error))?;
    Ok(Folder { path, there: true })
}

impl Folder {
    fn remove(mut self) -> Result<()> {
        self.there = false;
        std::fs::remove_dir_all(&self.path)
            .map_err(|error| Failure::about(&self.path, "remove the temporary folder", &error))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.there {
            // Another error is told.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
