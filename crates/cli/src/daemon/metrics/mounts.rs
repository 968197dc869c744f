//! Metrics of a mount.

use forebay_fs::FsCounters;
use forebay_metrics::Snapshot;

use crate::daemon::MountedDataset;

/// Adds a mount. `pool` is the label of its pool.
pub(super) fn add(mount: &MountedDataset, pool: &str, paths: bool, out: &mut Snapshot) {
    let labels = [("pool", pool), ("dataset", &*mount.dataset)];
    let (files, served) = (mount.files_stats(), mount.mount_stats());
    out.counters("fuse", &served.counters, &labels);
    super::counters(out, "fs", FsCounters::ROWS, &files.counters, &labels);
    let help = "Inodes in memory.";
    out.gauge("forebay_fs_inodes", help, &labels, files.inodes as f64);
    let help = "Memory of inodes.";
    out.gauge("forebay_fs_inode_bytes", help, &labels, files.inode_bytes as f64);
    let help = "Unlinked inodes that are not destroyed yet.";
    out.gauge("forebay_fs_orphans", help, &labels, files.orphans as f64);
    let help = "Worker threads that run a job.";
    out.gauge("forebay_fs_workers_busy", help, &labels, files.workers_busy as f64);
    let help = "Jobs that wait for a worker thread.";
    out.gauge("forebay_fs_jobs_queued", help, &labels, files.jobs_queued as f64);
    if paths {
        let at = mount.current_at();
        let at = at.to_string_lossy();
        let labels = [labels[0], labels[1], ("mountpoint", &*at)];
        out.gauge("forebay_mount_info", "Mount point; the value is 1.", &labels, 1.0);
    }
}
