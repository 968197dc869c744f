//! Arguments of `forebay import`, `export`, `mount` and `umount`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::POOL_HELP;
use super::readers::ReaderArgs;
use crate::flags::Flags;
use crate::units::{pair, parse_address, parse_bytes};

/// Options of an import.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ImportOptionArgs {
    /// Import read-only; the intent log is not replayed, so changes that only it holds are not
    /// visible
    #[arg(long, visible_alias = "ro")]
    pub(crate) read_only: bool,
    /// Import a pool that another host had last and did not export. A pool that another host uses
    /// is refused in any case
    #[arg(long)]
    pub(crate) force: bool,
    /// If the newest transaction group is damaged, go back to one of the two before; later changes
    /// are lost
    #[arg(long)]
    pub(crate) rewind: bool,
    /// Go back to this transaction group (see `forebay inspect DEVICE uberblocks`); later changes
    /// are lost
    #[arg(long, value_name = "N", conflicts_with = "rewind")]
    pub(crate) txg: Option<u64>,
    /// Discard the intent log instead of replaying it; changes that only it holds are lost
    #[arg(long)]
    pub(crate) discard_log: bool,
    /// Import without the L2 devices of the pool
    #[arg(long)]
    pub(crate) no_l2: bool,
    #[command(flatten)]
    pub(crate) readers: ReaderArgs,
    /// Set a tunable of the pool at import (see `forebay tunable get`); may be repeated
    #[arg(long = "tunable", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) tunables: Vec<(String, String)>,
}

/// Metrics of the daemon over HTTP.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct MetricsArgs {
    /// Serve metrics for Prometheus and a page with live plots over HTTP at this address, such as
    /// 127.0.0.1:9469; with port 0 the system chooses a free port. Each user of this machine can
    /// read them
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Allow another address than a loopback address for --metrics: other hosts can read the
    /// metrics, without a password or encryption
    #[arg(long, requires = "metrics")]
    pub(crate) metrics_allow_remote: bool,
    /// Include paths of devices and mount points in the metrics
    #[arg(long, requires = "metrics")]
    pub(crate) metrics_names: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay import                      list the pools that could be imported\n  \
    forebay import tank                 by name; or by its number, if several have the name\n  \
    forebay import --dir /srv/images tank\n  \
    forebay import --show tank.img      print the labels and the options that an import needs\n  \
    forebay import /dev/sdb /dev/sdc --force\n  \
    forebay import s3://bucket/tank\n\n\
    Pools are looked for on block devices, in the files of the current folder and of those given by\n\
    --dir, and where they were last.")]
pub(crate) struct ImportArgs {
    /// All devices of the pool, or its name [default: list the pools that are found]
    #[arg(value_name = "DEVICE|POOL")]
    pub(crate) devices: Vec<PathBuf>,
    /// Look for pools in the files of this folder too; may be repeated
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Vec<PathBuf>,
    /// Print the labels of the devices without importing
    #[arg(long, requires = "devices")]
    pub(crate) show: bool,
    #[command(flatten)]
    pub(crate) options: ImportOptionArgs,
    /// Memory of the daemon in bytes, if this command starts it [default: a quarter of the memory
    /// or of the cgroup limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay export tank\n  forebay export tank.img --lazy\n\n\
    A suspended pool is not exported: its newest changes are in memory only, and programs wait for them.\n\
    `forebay clear` saves them once the device works. With --force they are lost, and programs that wait\n\
    get errors.")]
pub(crate) struct ExportArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// Detach busy mounts; the pool is exported when their last file is closed
    #[arg(long)]
    pub(crate) lazy: bool,
    /// Give up what is not durable: export a suspended pool, and do not wait for an object store
    /// that does not answer. Also ends an export that waits already
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Memory: --memory limits the whole process. 24 MiB are reserved for the program, 2 MiB for the buffers of\n\
    each thread, and one sixteenth each for waiting writes (at most 16 MiB), for inodes, and for objects, transaction\n\
    groups and the intent log. An eighth (at most 64 MiB) is for I/O in flight. The cache, including dirty data, gets\n\
    four fifths of the rest. If other parts need more than this, such as the indexes of L2 devices, blocks give way.\n\n\
    Examples:\n  \
    forebay mount                                    ./forebay.pool at ./forebay-mnt, both created if missing\n  \
    forebay mount tank.img /srv/tank                 in the foreground; Ctrl-C unmounts\n  \
    forebay mount tank.img /srv/tank --daemon --memory 2G\n  \
    forebay mount /dev/sdb:/dev/sdc /srv/tank --kernel-cache\n  \
    mount -t forebay tank.img /srv/tank -o ro,memory=1G   with packaging/mount.forebay in /sbin"
)]
pub(crate) struct MountArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: Option<String>,
    /// An empty directory [default: ./NAME-mnt, named after the file of the pool and created]
    #[arg(value_name = "MOUNTPOINT")]
    pub(crate) at: Option<PathBuf>,
    /// Dataset to mount
    #[arg(long, default_value = "main")]
    pub(crate) dataset: String,
    /// Memory limit of the whole process, in bytes or with a suffix K, M, G, T; at least 64M, at
    /// most the memory of the machine or of the cgroup [default: a quarter of that]. A daemon that
    /// runs already keeps its limit
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Also cache file content in the page cache of the kernel; faster, but content may be in
    /// memory twice
    #[arg(long)]
    pub(crate) kernel_cache: bool,
    /// Mount in the background; one daemon serves all pools of a user
    #[arg(long)]
    pub(crate) daemon: bool,
    /// With --daemon: start a separate daemon with its own cache
    #[arg(long, requires = "daemon")]
    pub(crate) separate: bool,
    /// Allow access by other users [default for root]
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Do not update access times; the same as -o noatime
    #[arg(long)]
    pub(crate) no_atime: bool,
    /// Threads that serve FUSE requests [default: one per CPU, 2 to 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    #[command(flatten)]
    pub(crate) import: ImportOptionArgs,
    /// Comma-separated options of mount(8): ro, nosuid, nodev, noexec, noatime, nodiratime,
    /// relatime (default), strictatime and their opposites; remount with any of these, for an
    /// existing mount; dataset=NAME, memory=BYTES, kernel_cache, allow_other, threads=N, separate,
    /// force, follow, l2=FILE, l2_size=BYTES, rewind, txg=N, discard_log, tunable=NAME:VALUE,
    /// metrics=ADDRESS:PORT, metrics_allow_remote, metrics_names
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Mount flags parsed from -o.
    #[arg(skip)]
    pub(crate) flags: Flags,
    /// Names of the mount flags in the order of -o.
    #[arg(skip)]
    pub(crate) flag_names: Vec<String>,
    /// True if -o contains `remount`.
    #[arg(skip)]
    pub(crate) remount: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay umount forebay-mnt\n  \
    forebay umount tank          unmount all datasets of the pool\n  \
    forebay umount /srv/tank     also works if the process that served it was killed\n\n\
    While a bind mount or another mount namespace keeps the file system, it fails after ten seconds,\n\
    and the pool stays in use until that mount is unmounted too.\n\n\
    The mounts of a suspended pool are not unmounted, also not with --lazy: see `forebay export --help`.")]
pub(crate) struct UmountArgs {
    /// Mount point, or a pool to unmount all its datasets
    #[arg(value_name = "MOUNTPOINT|POOL")]
    pub(crate) target: String,
    /// Detach the mount even if it is busy; it ends when its last file is closed
    #[arg(long, short = 'l')]
    pub(crate) lazy: bool,
    /// Called by umount(8): print nothing, and leave mounts of other processes to umount(8)
    #[arg(long, hide = true)]
    pub(crate) helper: bool,
    /// As `umount -f`
    #[arg(long, hide = true, requires = "helper")]
    pub(crate) force: bool,
}
