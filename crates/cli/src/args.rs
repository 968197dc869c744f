//! The command line: commands, options and their help.

mod dataset;
mod insight;
mod l2;
mod log;
mod maintenance;
mod mirrors;
mod mount;
mod readers;
mod sides;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub(crate) use dataset::{
    CompressionName, DatasetArgs, DatasetCommand, FailModeName, L2ModeName, SyncModeName,
};
pub(crate) use insight::{
    AdviseArgs, EventsArgs, ExplainArgs, StatsArgs, TopArgs, TraceCommand, TraceFormat,
    TraceRecordArgs,
};
pub(crate) use l2::L2Command;
pub(crate) use log::LogCommand;
pub(crate) use maintenance::{CheckArgs, JobArgs, ScrubArgs, TrimArgs};
pub(crate) use mount::{
    ExportArgs, ImportArgs, ImportOptionArgs, MetricsArgs, MountArgs, UmountArgs,
};
pub(crate) use readers::ReaderArgs;
pub(crate) use sides::{AttachArgs, AttachFlags, OnlineArgs, ReplaceArgs, SideArgs};

use mirrors::{LogDevices, Mirrors};

use crate::logging::LogArgs;
use crate::units::{parse_bytes, parse_sector, parse_store};

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
    #[command(after_help = sides::OFFLINE_HELP)]
    Offline(SideArgs),
    /// Take a device of a mirror into use again, and bring what it has missed onto it
    Online(OnlineArgs),
    /// Add a device to a mirror, or make a mirror of a device
    Attach(AttachArgs),
    /// Remove a device from a mirror for good
    #[command(after_help = sides::DETACH_HELP)]
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

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay create tank.img                        a sparse file of 10 GiB\n  \
    forebay create tank.img --size 100G --compression zstd\n  \
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
    /// and credentials are those of the environment: AWS_* variables, a profile, or the role of the
    /// instance; see docs/object-store.md
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
    /// Add a device without a mirror to a pool of mirrors, and devices that are not empty; their
    /// content is lost
    #[arg(long)]
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
