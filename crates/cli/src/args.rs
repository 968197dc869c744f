//! The command line: commands, options and their help.

mod insight;
mod l2;
mod log;
mod mirrors;
mod readers;
mod sides;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use insight::{
    AdviseArgs, EventsArgs, ExplainArgs, StatsArgs, TopArgs, TraceCommand, TraceFormat,
    TraceRecordArgs,
};
pub(crate) use l2::L2Command;
pub(crate) use log::LogCommand;
pub(crate) use readers::ReaderArgs;
pub(crate) use sides::{AttachArgs, AttachFlags, OnlineArgs, ReplaceArgs, SideArgs};

use mirrors::{LogDevices, Mirrors};

use crate::flags::Flags;
use crate::logging::LogArgs;
use crate::units::{pair, parse_address, parse_bytes, parse_every, parse_sector, parse_store};

/// How a pool is named, for the help of every command.
const POOL_HELP: &str = "Pool: the path of its device, the paths of all its devices joined by `:`, the URL of its object store, or its name";
/// How JSON output is described, for the help of every command.
const JSON_HELP: &str = "Print JSON";

/// Forebay: a copy-on-write storage pool behind an adaptive cache.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    about,
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        forebay mount                       create ./forebay.pool if it does not exist, mount it at ./forebay-mnt\n  \
        forebay demo                        measure the cache on real files, then clean up\n  \
        forebay create tank.img --size 20G  create a pool in a sparse file\n  \
        forebay mount tank.img /srv/tank --daemon\n  \
        forebay stats --watch\n  \
        forebay umount /srv/tank"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten, next_help_heading = "Log options")]
    pub(crate) log: LogArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a pool with one dataset
    Create(CreateArgs),
    /// Import a pool into the daemon without mounting it, or list those that could be imported
    Import(ImportArgs),
    /// Unmount all datasets of a pool, commit its last transaction group, and close its devices
    Export(ExportArgs),
    /// Use the added space of grown devices, or add devices
    Expand(ExpandArgs),
    /// Mount a dataset of a pool
    Mount(MountArgs),
    /// Unmount a dataset, or remove the dead mount of a killed process
    #[command(alias = "unmount")]
    Umount(UmountArgs),
    /// List imported pools and their mounts
    List(ListArgs),
    /// Show the devices, space, datasets, mounts and errors of a pool
    Status(StatusArgs),
    /// Destroy a pool; all data on it is lost
    Destroy(DestroyArgs),
    /// Verify every copy of every block of a pool, and rewrite bad copies from good ones
    Scrub(ScrubArgs),
    /// Show what has happened to pools: failed devices, scrubs, resilvers, suspensions
    Events(EventsArgs),
    /// Resume a suspended pool whose devices work again, and empty the error log of a pool
    Clear(ClearArgs),
    /// Take a device of a mirror out of use, until `online`
    Offline(SideArgs),
    /// Take a device of a mirror into use again, and bring what it has missed onto it
    Online(OnlineArgs),
    /// Add a device to a mirror, or make a mirror of a device
    Attach(AttachArgs),
    /// Remove a device from a mirror for good
    Detach(SideArgs),
    /// Replace a device: a new one gets its blocks, then the old one leaves
    Replace(ReplaceArgs),
    /// Verify every copy of every block of a pool, and compare allocated blocks with the space maps
    Check(CheckArgs),
    /// Give the free space of a pool back to its devices
    Trim(TrimArgs),
    /// Show on-disk structures, sound or damaged, of imported and exported pools
    Inspect(crate::inspect::InspectArgs),
    /// Empty the block cache of a daemon
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Add, remove and list the L2 devices of a pool
    #[command(subcommand)]
    L2(L2Command),
    /// Add and remove the log device of a pool
    #[command(subcommand)]
    Log(LogCommand),
    /// Create, change and list the datasets of a pool
    #[command(subcommand)]
    Dataset(DatasetCommand),
    /// Show and set tunables of an imported pool and of its cache
    #[command(subcommand)]
    Tunable(TunableCommand),
    /// Record the accesses to the blocks of a pool, and look into the record
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Show statistics of the daemons: cache, pools and mounts
    Stats(StatsArgs),
    /// Show hits, operations, devices and transaction groups over time, on a screen
    Top(TopArgs),
    /// Show what a smaller or larger cache would bring: hit ratio, reads and time saved
    Advise(AdviseArgs),
    /// Explain why reads did not find their block in memory, and what would help
    Explain(ExplainArgs),
    /// Measure the cache on real files in a temporary pool
    Demo(DemoArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Run a daemon; other commands start it
    #[command(name = crate::daemon::spawn::COMMAND, hide = true)]
    Serve(ServeArgs),
}

/// Settings of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct DatasetArgs {
    /// Record size of new files: a power of two from 4K to 1M [default of a new dataset: 128K]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) record_size: Option<u64>,
    /// Compression of data; metadata is always compressed [default of a new dataset: off]
    #[arg(long, value_enum)]
    pub(crate) compression: Option<CompressionName>,
    /// Copies of data: 1 or 2; metadata has 2 [default of a new dataset: 1]
    #[arg(long, value_name = "N")]
    pub(crate) copies: Option<u8>,
    /// What fsync waits for: a write to the intent log, or the whole transaction group [default of
    /// a new dataset: log]
    #[arg(long, value_enum)]
    pub(crate) sync: Option<SyncModeName>,
    /// What writes and fsyncs do while the pool is suspended, because a device fails: wait until
    /// `forebay clear`, or fail with EIO at once; reads go on in either case [default of a new
    /// dataset: wait]
    #[arg(long, value_enum)]
    pub(crate) failmode: Option<FailModeName>,
    /// Blocks of the dataset that the L2 devices of the pool may hold; see `forebay l2 add`
    /// [default of a new dataset: all]
    #[arg(long, value_enum)]
    pub(crate) l2: Option<L2ModeName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum L2ModeName {
    All,
    Metadata,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompressionName {
    Off,
    Lz4,
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailModeName {
    Wait,
    Continue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SyncModeName {
    Log,
    Txg,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay create tank.img                        a sparse file of 10 GiB\n  \
    forebay create tank.img --size 100G --compression lz4\n  \
    forebay create --name tank /dev/sdb /dev/sdc   two disks, striped\n  \
    forebay create --name tank --mirror /dev/sdb /dev/sdc\n  \
    forebay create --name tank --object-store s3://bucket/tank --l2-device /dev/sdb --log-device /dev/sdc")]
pub(crate) struct CreateArgs {
    /// Files or block devices; a file that does not exist is created, sparse
    #[arg(required_unless_present_any = ["mirror", "object_store"], value_name = "DEVICE")]
    pub(crate) devices: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) mirrors: Mirrors,
    #[command(flatten)]
    pub(crate) log: LogDevices,
    /// An object store in place of devices: `s3://BUCKET/PREFIX`, with an empty prefix. Endpoint
    /// and credentials are those of the AWS_* variables; see docs/object-store.md
    #[arg(
        long,
        value_name = "URL",
        value_parser = parse_store,
        conflicts_with_all = ["devices", "mirror", "size", "sector", "force"]
    )]
    pub(crate) object_store: Option<String>,
    /// Add an L2 device, as `forebay l2 add` does: a pool on an object store needs one to be fast
    #[arg(long, value_name = "DEVICE")]
    pub(crate) l2_device: Option<PathBuf>,
    /// Name of the pool [default: file name of the first device, without its extension]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Size of created files, in bytes or with a suffix K, M, G, T [default: 10G]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,
    /// Sector size of the pool, 512 to 4096 bytes [default: the physical sector of the devices, at
    /// least 4096]. With 512, a power cut can damage data beside the one that is written, unless
    /// the disk has physical sectors of 512 bytes
    #[arg(long, value_name = "BYTES", value_parser = parse_sector)]
    pub(crate) sector: Option<u32>,
    /// Name of the first dataset
    #[arg(long, default_value = "main")]
    pub(crate) dataset: String,
    #[command(flatten)]
    pub(crate) settings: DatasetArgs,
    /// Overwrite devices that are not empty; their content is lost
    #[arg(long)]
    pub(crate) force: bool,
}

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
    /// 127.0.0.1:9469; port 0 has a free port chosen. Each user of this machine can read them
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
#[command(after_help = "Examples:\n  forebay export tank\n  forebay export tank.img --lazy")]
pub(crate) struct ExportArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// Detach busy mounts; the pool is exported when their last file is closed
    #[arg(long)]
    pub(crate) lazy: bool,
    /// Do not wait for an object store that does not answer: what is not durable is lost. Also ends
    /// an export that waits already
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    truncate --size 40G tank.img && forebay expand tank.img\n  \
    forebay expand tank --add /dev/sdd\n  \
    forebay expand tank --add more.img --size 20G\n  \
    forebay expand tank --mirror /dev/sdd /dev/sde\n\n\
    Devices can be added to an imported pool. The size of a device is read at import: to use the space of a grown\n\
    device, export the pool, expand it, and mount it again.")]
pub(crate) struct ExpandArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// Add a device; may be repeated. A device cannot be removed from a pool
    #[arg(long, value_name = "DEVICE")]
    pub(crate) add: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) mirrors: Mirrors,
    /// Create an added file that does not exist with this size, in bytes or with a suffix K, M, G,
    /// T
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,
    /// Sector size of the pool, to add a device whose physical sectors are larger: a power cut can
    /// then damage data beside the one that is written
    #[arg(long, value_name = "BYTES", value_parser = parse_sector)]
    pub(crate) sector: Option<u32>,
    /// Add devices that are not empty; their content is lost
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
    /// most the memory of the machine or of the cgroup [default: a quarter of that]
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
    /// force, follow, rewind, txg=N, discard_log, tunable=NAME:VALUE, metrics=ADDRESS:PORT,
    /// metrics_allow_remote, metrics_names
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
    and the pool stays in use until that mount is unmounted too.")]
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

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay list\n  forebay list --json\n\n\
    Exit code: 0 if all pools in use are online, 1 if one is degraded or damaged, 2 if one is suspended\n\
    or a daemon does not answer.")]
pub(crate) struct ListArgs {
    #[arg(long, help = JSON_HELP)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay status tank\n  forebay status tank.img --json\n\n\
    Health: online; degraded (a device or an L2 device has failed, or a copy is bad); damaged (the error\n\
    log names lost data); suspended (nothing is written any more).\n\n\
    Exit code: 0 if the pool is online, 1 if it is degraded or damaged, 2 if it is suspended, cannot be\n\
    opened or does not answer.")]
pub(crate) struct StatusArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    #[arg(long, help = JSON_HELP)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay clear tank\n  forebay clear tank.img\n\n\
    A suspended pool goes on with the request that failed. The command returns once the transaction\n\
    group is durable, or with the error if a device still fails: then the pool stays suspended.\n\n\
    The error log keeps damage that reads, scrubs and checks have found, until a scrub finds it no\n\
    more. Clear it once damaged files are restored; damage that is still there is found again.")]
pub(crate) struct ClearArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay destroy tank.img\n  forebay destroy tank.img --yes --remove-files"
)]
pub(crate) struct DestroyArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    /// Remove the files of the pool
    #[arg(long)]
    pub(crate) remove_files: bool,
    /// Destroy the pool even if another host may use it, or devices are missing
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay scrub tank\n  forebay scrub tank --rate 100M --no-wait\n  forebay scrub tank --pause\n  forebay scrub tank --every 30d\n\n\
    A scrub goes on where it was paused or interrupted. Ctrl-C ends the wait for the scrub of an\n\
    imported pool, and pauses the scrub of another pool.\n\n\
    Exit code of a scrub that is waited for: 0 if no problems were found, 1 if problems were found, a\n\
    device of a mirror was not in use, or it did not end. The other forms exit with 0 if they succeed,\n\
    whatever the scrub has found. All exit with 2 if they fail, or if the pool cannot be used or does\n\
    not answer."
)]
pub(crate) struct ScrubArgs {
    #[command(flatten)]
    pub(crate) work: JobArgs,
    /// Scrub the pool by itself, so long after the end of the scrub before: 30d, 2w, 12h; `never`
    /// ends that. The pool keeps the setting; the process that has it imported scrubs it
    #[arg(long, value_name = "TIME", value_parser = parse_every,
        conflicts_with_all = ["pause", "stop", "status", "rate", "no_wait"])]
    pub(crate) every: Option<u64>,
    /// Pause the running scrub
    #[arg(long, conflicts_with_all = ["stop", "status", "rate", "no_wait"])]
    pub(crate) pause: bool,
    /// Stop the scrub for good: the next one starts from the beginning
    #[arg(long, conflicts_with_all = ["status", "rate", "no_wait"])]
    pub(crate) stop: bool,
    /// Show the running scrub, or the last one
    #[arg(long, conflicts_with_all = ["rate", "no_wait"])]
    pub(crate) status: bool,
    /// Read at most so many bytes per second, until the scrub ends; 0 for the tunable
    /// `scrub_rate_bytes`
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) rate: Option<u64>,
    /// Do not wait for the end; for an imported pool
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    #[arg(long, help = JSON_HELP)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay check tank\n  forebay check tank.img --read-only\n\n\
    Exit code: 0 if no problems were found, 1 if problems were found, a device of a mirror was not in\n\
    use, or the check was interrupted, 2 if the pool cannot be used or does not answer.")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) work: JobArgs,
    /// Do not write, not even to replay the intent log; for a pool that is not imported
    #[arg(long, visible_alias = "ro")]
    pub(crate) read_only: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay trim tank\n  forebay trim tank.img --json\n\n\
    Image files shrink, and SSDs learn what is unused. For files this happens in the background too,\n\
    see the tunables `trim_*`. Ctrl-C ends the trim.\n\n\
    Exit code: 0 if all free space was discarded, 1 if it was interrupted, a discard failed, or a\n\
    device does not support discards.")]
pub(crate) struct TrimArgs {
    #[command(flatten)]
    pub(crate) work: JobArgs,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  forebay cache flush\n  forebay cache flush tank")]
pub(crate) enum CacheCommand {
    /// Evict all blocks from the cache in memory; dirty data is kept
    #[command(after_help = "Examples:\n  forebay cache flush\n  forebay cache flush tank")]
    Flush {
        /// Pool whose daemon is emptied [default: all daemons]
        pool: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DatasetCommand {
    /// Create a dataset in a pool that is not imported
    #[command(after_help = "Examples:\n  forebay dataset create tank.img photos --record-size 1M")]
    Create {
        #[arg(help = POOL_HELP)]
        pool: String,
        /// Name of the dataset
        name: String,
        #[command(flatten)]
        settings: DatasetArgs,
    },
    /// Change the settings of a dataset for future writes, in a pool that is not imported
    #[command(after_help = "Examples:\n  forebay dataset set tank.img backups --l2 metadata\n  \
        forebay dataset set tank.img main --compression lz4 --sync txg")]
    Set {
        #[arg(help = POOL_HELP)]
        pool: String,
        /// Name of the dataset
        name: String,
        #[command(flatten)]
        settings: DatasetArgs,
    },
    /// List the datasets of a pool
    #[command(after_help = "Examples:\n  forebay dataset list tank")]
    List {
        #[arg(help = POOL_HELP)]
        pool: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TunableCommand {
    /// Show tunables with their values, defaults, ranges and units
    #[command(
        after_help = "Examples:\n  forebay tunable get tank\n  forebay tunable get tank txg_timeout_ms"
    )]
    Get {
        /// An imported pool
        pool: String,
        /// Show this tunable only, with its description
        name: Option<String>,
        #[arg(long, help = JSON_HELP)]
        json: bool,
    },
    /// Set a tunable until the pool is exported; `forebay mount --tunable` sets it at import
    #[command(after_help = "Examples:\n  forebay tunable set tank txg_timeout_ms 1000")]
    Set {
        /// An imported pool
        pool: String,
        /// Name of the tunable
        name: String,
        /// New value, in the unit of the tunable
        value: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay demo\n  forebay demo /usr/share/doc --memory 256M")]
pub(crate) struct DemoArgs {
    /// Directory tree to copy [default: libraries and documentation of the Rust toolchain]
    pub(crate) tree: Option<PathBuf>,
    /// Memory limit of the process, in bytes or with a suffix K, M, G, T; the tree should exceed
    /// the cache
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "192MiB")]
    pub(crate) memory: u64,
    /// Copy at most this much of the tree, in bytes or with a suffix K, M, G, T
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "512MiB")]
    pub(crate) limit: u64,
    /// Parent of the temporary directory [default: that of the system]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) temporary: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay completions bash > ~/.local/share/bash-completion/completions/forebay\n  \
    forebay completions zsh > ~/.zfunc/_forebay\n  \
    forebay completions fish > ~/.config/fish/completions/forebay.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell that the script is for
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[arg(long, value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    #[arg(long)]
    pub(crate) separate: bool,
}
