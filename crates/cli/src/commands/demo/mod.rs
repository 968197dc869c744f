//! `forebay demo`: measures the cache on real files in a temporary pool.
//!
//! The demo creates a pool in a file, mounts it with a cache smaller than the data, copies a
//! directory tree into it, and compares the copy. It then reads a working set smaller than the
//! cache before and after a scan of all files, which shows whether the cache keeps the working set.
//! It exports the pool, mounts it again, verifies all files, and checks every block. The temporary
//! directory is removed at the end.

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
use crate::discover::known;
use crate::error::{Failure, Result};
use crate::flags::Flags;
use crate::memory::MemoryPlan;
use crate::output::Progress;
use crate::pools::ImportRequest;
use crate::{output, units};
use tree::Tree;

/// Free space of the pool beyond twice the size of the data.
const SPARE_BYTES: u64 = 1 << 30;
/// Divisor of the cache size that gives the size of the working set.
const WORKING_SET_SHARE: u64 = 4;

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    forebay_fuse::available().map_err(|error| {
        Failure::from(error).doing("cannot run the demo: it mounts a pool through FUSE")
    })?;
    let plan = MemoryPlan::new(Some(args.memory), None)?;
    let progress = Progress::begin("listing files")?;
    let tree = Tree::find(args.tree.as_deref(), args.limit, &|| progress.is_stopped())?;
    drop(progress);
    let directory = temporary(args.temporary.as_deref())?;
    output::line(&format!(
        "{}: {} files, {}; cache size {}; temporary directory {}",
        tree.root.display(),
        tree.files.len(),
        units::bytes(tree.bytes),
        units::bytes(plan.cache_bytes),
        directory.path.display()
    ));
    if tree.bytes <= plan.cache_bytes {
        output::line(
            "the tree fits in the cache; use a larger tree or a smaller --memory to see evictions",
        );
    }
    let mut demo = Demo { directory, plan, tree, guid: 0, rows: Vec::new() };
    let ended = demo.show();
    output::print(&units::table(
        &["STEP", ">FILES", ">BYTES", ">TIME", ">RATE", ">FROM MEMORY"],
        &demo.rows,
    ));
    let Demo { directory, guid, .. } = demo;
    directory.remove()?;
    known::forget(guid);
    ended?;
    output::line(
        "all files were read back unchanged, and the pool has no problems; the temporary directory is removed",
    );
    Ok(())
}

struct Demo {
    directory: TemporaryDirectory,
    plan: MemoryPlan,
    tree: Tree,
    /// That of its pool.
    guid: u64,
    rows: Vec<Vec<String>>,
}

impl Demo {
    fn show(&mut self) -> Result<()> {
        let device = self.directory.path.join("demo.pool");
        let new = New {
            name: "demo",
            devices: std::slice::from_ref(&device),
            mirrors: &[],
            logs: &[],
            size_bytes: (2 * self.tree.bytes + SPARE_BYTES).next_multiple_of(1 << 20),
            dataset: "main",
            settings: DatasetSettings::default(),
            force: false,
            sector: None,
        };
        let pool = create(&new)?;
        self.guid = pool.guid();
        pool.close()?;
        let at = self.directory.path.join("mnt");
        std::fs::create_dir(&at)
            .map_err(|error| Failure::about(&at, "create the directory", &error))?;
        let (all, hot) =
            (self.tree.all(), self.tree.hot(self.plan.cache_bytes / WORKING_SET_SHARE));
        {
            let session = Session::begin(&self.plan, &device, &at)?;
            self.step(&session, "copy", &all, &mut |tree, file| tree.copy(file, &at))?;
            self.step(&session, "read and compare", &all, &mut |tree, file| {
                tree.compare(file, &at)
            })?;
            self.step(&session, "working set, first read", &hot, &mut |tree, file| {
                tree.compare(file, &at)
            })?;
            self.step(&session, "working set, again", &hot, &mut |tree, file| {
                tree.compare(file, &at)
            })?;
            self.step(&session, "all files (scan)", &all, &mut |tree, file| {
                tree.compare(file, &at)
            })?;
            self.step(&session, "working set, after the scan", &hot, &mut |tree, file| {
                tree.compare(file, &at)
            })?;
            session.end()?;
        }
        let session = Session::begin(&self.plan, &device, &at)?;
        self.step(&session, "verify after a remount", &all, &mut |tree, file| {
            tree.compare(file, &at)
        })?;
        self.check(&session)?;
        session.end()
    }

    /// Runs an operation on each file, and records its time.
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
                return Err(Failure::new(
                    "the demo was interrupted; its temporary directory is removed",
                ));
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
        let progress = Progress::begin("check")?;
        let started = Instant::now();
        let pools = session.daemon.pools();
        let imported = pools
            .first()
            .ok_or_else(|| Failure::new("the pool of the demo was exported by another command"))?;
        let report = jobs::check(&imported.pool(), &mut |state| progress.step(state))?;
        if report.problem_count > 0 {
            return Err(Failure::new(format!(
                "the check of the demo pool found problems: {}; please report this as a bug",
                report.problems.join("; ")
            )));
        }
        if !report.complete {
            return Err(Failure::new(
                "the demo was interrupted; its temporary directory is removed",
            ));
        }
        self.note("check all blocks", 0, report.bytes, started.elapsed(), "-");
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

/// The demo pool, mounted by this process.
struct Session {
    daemon: Arc<Daemon>,
    mount: Option<Arc<MountedDataset>>,
    /// Kept, so that the host has somebody to tell.
    _events: Receiver<Event>,
}

impl Session {
    fn begin(plan: &MemoryPlan, device: &Path, at: &Path) -> Result<Self> {
        let (events, receiver) = channel();
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
        Ok(Self { daemon, mount: Some(mount), _events: receiver })
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
            // An earlier error is reported.
            let _ = self.daemon.unmount(&mount, true);
        }
    }
}

/// A temporary directory, removed on drop.
struct TemporaryDirectory {
    path: PathBuf,
    exists: bool,
}

fn temporary(parent: Option<&Path>) -> Result<TemporaryDirectory> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    let seed = forebay_base::rng::seed_from_system();
    let path = parent.join(format!("forebay-demo-{seed:016x}"));
    std::fs::create_dir(&path)
        .map_err(|error| Failure::about(&path, "create the temporary directory", &error))?;
    Ok(TemporaryDirectory { path, exists: true })
}

impl TemporaryDirectory {
    fn remove(mut self) -> Result<()> {
        self.exists = false;
        std::fs::remove_dir_all(&self.path)
            .map_err(|error| Failure::about(&self.path, "remove the temporary directory", &error))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if self.exists {
            // An earlier error is reported.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
