//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::flags::Flags;
use crate::units::{pair, parse_bytes};

/// What a pool may be called, for every command's help.
const POOL_HELP: &str = "The pool: the path of its device, the paths of all its devices joined by `:`, or the name of one in use";

/// Forebay: a copy-on-write storage pool behind an adaptive cache.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    about,
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        forebay mount                       make ./forebay.pool if there is none, and mount it at ./forebay-mnt\n  \
        forebay demo                        see the cache at work on real files, and clean up\n  \
        forebay create tank.img --size 20G  make a pool in a sparse file\n  \
        forebay mount tank.img /srv/tank --daemon\n  \
        forebay stats --watch\n  \
        forebay umount /srv/tank"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a pool, with a file system in it
    Create(CreateArgs),
    /// Have the background process take a pool without mounting it, or show what devices hold
    Import(ImportArgs),
    /// Unmount all of a pool, commit it, and let go of its devices
    Export(ExportArgs),
    /// Use what a pool's devices have grown by, or add devices
    Expand(ExpandArgs),
    /// Mount a pool's files
    Mount(MountArgs),
    /// Unmount, or clear what a killed process left mounted
    #[command(alias = "unmount")]
    Umount(UmountArgs),
    /// List pools in use, and their mounts
    List(ListArgs),
    /// Show all that is known of a pool
    Status(StatusArgs),
    /// Destroy a pool: its devices hold none any more
    Destroy(DestroyArgs),
    /// Read every copy of every block of a pool, and heal what has a good twin
    Scrub(JobArgs),
    /// Read every copy of every block of a pool, and compare what they take with what is known of space
    Check(CheckArgs),
    /// Look at what lies on devices, whole or damaged, in use or not
    Inspect(crate::inspect::InspectArgs),
    /// Work on the block cache of running processes
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Add, remove and list the L2 devices of a pool
    #[command(subcommand)]
    L2(L2Command),
    /// Make and list datasets of a pool
    #[command(subcommand)]
    Dataset(DatasetCommand),
    /// Look at and set tunables of a pool in use, and of its cache
    #[command(subcommand)]
    Tunable(TunableCommand),
    /// Show figures of the processes that have pools
    Stats(StatsArgs),
    /// Show on real files what Forebay does, in a temporary place
    Demo(DemoArgs),
    /// Print a shell's completions
    Completions(CompletionsArgs),
    /// Serve pools in the background; other commands start it
    #[command(name = crate::daemon::spawn::COMMAND, hide = true)]
    Serve(ServeArgs),
    /// Mount the null file system, the ceiling of what FUSE can do here
    #[command(hide = true)]
    NullMount(NullMountArgs),
}

/// How a dataset keeps its data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct DatasetArgs {
    /// Record size of new files: a power of two from 4K to 1M
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) record_size: Option<u64>,
    /// Compression of data (metadata is always compressed)
    #[arg(long, value_enum)]
    pub(crate) compression: Option<CompressionName>,
    /// Copies of data: 1 or 2 (metadata has two)
    #[arg(long, value_name = "N")]
    pub(crate) copies: Option<u8>,
    /// When an fsync returns: with the intent log, or with the whole transaction group
    #[arg(long, value_enum)]
    pub(crate) sync: Option<SyncModeName>,
    /// What the pool's L2 devices hold of it (see `forebay l2 add`)
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
pub(crate) enum SyncModeName {
    Log,
    Txg,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay create tank.img                        a sparse file of 10 GiB\n  \
    forebay create tank.img --size 100G --compression lz4\n  \
    forebay create --name tank /dev/sdb /dev/sdc   two disks, striped")]
pub(crate) struct CreateArgs {
    /// Files or block devices; a file that is not there is made, sparse
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<PathBuf>,
    /// The pool's name; else that of the first device without its ending
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Size of files that are made; 10 GiB if nothing is said
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,
    /// Name of the dataset for files
    #[arg(long, default_value = "main")]
    pub(crate) dataset: String,
    #[command(flatten)]
    pub(crate) settings: DatasetArgs,
    /// Overwrite devices that are not empty: what they hold is lost
    #[arg(long)]
    pub(crate) force: bool,
}

/// How a pool is imported.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ImportOptionArgs {
    /// Change nothing; what only the intent log has is not seen
    #[arg(long, visible_alias = "ro")]
    pub(crate) read_only: bool,
    /// Take it even if another host may have it
    #[arg(long)]
    pub(crate) force: bool,
    /// If the newest transaction group is damaged, go back to an older one: what was changed since is lost
    #[arg(long)]
    pub(crate) rewind: bool,
    /// Do not replay the intent log: what only it has is lost
    #[arg(long)]
    pub(crate) discard_log: bool,
    /// Do without the pool's L2 devices this time
    #[arg(long)]
    pub(crate) no_l2: bool,
    /// Set a tunable of the pool from the start (see `forebay tunable get`); can be given several times
    #[arg(long = "tunable", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) tunables: Vec<(String, String)>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay import --show tank.img      what it holds, and what an import would need\n  \
    forebay import tank.img\n  \
    forebay import /dev/sdb /dev/sdc --force")]
pub(crate) struct ImportArgs {
    /// All devices of the pool
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<PathBuf>,
    /// Only show what the devices hold
    #[arg(long)]
    pub(crate) show: bool,
    #[command(flatten)]
    pub(crate) options: ImportOptionArgs,
    /// Memory of the background process, if this starts it
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay export tank\n  forebay export tank.img --lazy")]
pub(crate) struct ExportArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// Take busy mounts out of sight; the pool is exported when their last user lets go
    #[arg(long)]
    pub(crate) lazy: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    truncate --size 40G tank.img && forebay expand tank.img\n  \
    forebay expand tank --add /dev/sdd\n  \
    forebay expand tank --add more.img --size 20G\n\n\
    Devices are added to a pool in use as well. That a device has grown is seen only when a pool is taken into use:\n\
    export it first, expand it, and mount it again.")]
pub(crate) struct ExpandArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// Add a device; can be given several times. It cannot be taken out again
    #[arg(long, value_name = "DEVICE")]
    pub(crate) add: Vec<PathBuf>,
    /// Size of an added file that is not there yet
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,
    /// Add devices that are not empty: what they hold is lost
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Memory: --memory bounds the whole process. 40 MiB are for the program, 2 MiB for each thread's buffers,\n\
    a sixteenth for inodes, another for what is kept of objects and transaction groups; of the rest, four fifths less\n\
    51 MiB are the cache's, dirty data included.\n\n\
    Examples:\n  \
    forebay mount                                    ./forebay.pool at ./forebay-mnt, made if they are not there\n  \
    forebay mount tank.img /srv/tank                 in the foreground; Ctrl-C unmounts\n  \
    forebay mount tank.img /srv/tank --daemon --memory 2G\n  \
    forebay mount /dev/sdb:/dev/sdc /srv/tank --kernel-cache\n  \
    mount -t forebay tank.img /srv/tank -o ro,memory=1G   with packaging/mount.forebay in /sbin"
)]
pub(crate) struct MountArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: Option<String>,
    /// An empty folder; else ./NAME-mnt after the pool's file, which is made
    #[arg(value_name = "MOUNTPOINT")]
    pub(crate) at: Option<PathBuf>,
    /// The dataset
    #[arg(long, default_value = "main")]
    pub(crate) dataset: String,
    /// What the whole process may use; else a quarter of the machine's memory or of the control group's limit
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Let the kernel cache file content as well: fast, and memory is used twice
    #[arg(long)]
    pub(crate) kernel_cache: bool,
    /// Go to the background once it is mounted; one process there serves all pools of a user
    #[arg(long)]
    pub(crate) daemon: bool,
    /// With --daemon: a process of its own, with a cache of its own
    #[arg(long, requires = "daemon")]
    pub(crate) separate: bool,
    /// Let other users in (root's default)
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Do not keep times of access (the same as -o noatime)
    #[arg(long)]
    pub(crate) no_atime: bool,
    /// Threads that serve requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) import: ImportOptionArgs,
    /// Options as mount(8) writes them, with commas between: ro, nosuid, nodev, noexec, noatime,
    /// nodiratime, relatime (the default), strictatime and their opposites; remount with any of these for
    /// what is mounted already; dataset=NAME, memory=BYTES, kernel_cache, allow_other, threads=N, separate,
    /// force, rewind, discard_log, tunable=NAME:VALUE
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Flags by -o
    #[arg(skip)]
    pub(crate) flags: Flags,
    /// Their names, in order
    #[arg(skip)]
    pub(crate) flag_names: Vec<String>,
    /// -o has said remount
    #[arg(skip)]
    pub(crate) remount: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay umount forebay-mnt\n  \
    forebay umount tank          all mounts of the pool\n  \
    forebay umount /srv/tank     also if the process that served it was killed")]
pub(crate) struct UmountArgs {
    /// A mount point, or a pool
    #[arg(value_name = "MOUNTPOINT|POOL")]
    pub(crate) what: String,
    /// Take it out of sight even if it is busy; it ends when its last user lets go
    #[arg(long, short = 'l')]
    pub(crate) lazy: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay list\n  forebay list --json")]
pub(crate) struct ListArgs {
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay status tank\n  forebay status tank.img --json")]
pub(crate) struct StatusArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay destroy tank.img\n  forebay destroy tank.img --yes --remove-files"
)]
pub(crate) struct DestroyArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// Do not ask
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    /// Remove the files that it lay in
    #[arg(long)]
    pub(crate) remove_files: bool,
    /// Even if another host may have it, or devices are missing
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay scrub tank\n  forebay scrub tank.img --json")]
pub(crate) struct JobArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay check tank\n  forebay check tank.img --read-only\n\n\
    Exit code: 0 if nothing is wrong, 1 if something is, or if it was interrupted.")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) work: JobArgs,
    /// Change nothing, not even by replaying the intent log (for a pool that is not in use)
    #[arg(long, visible_alias = "ro")]
    pub(crate) read_only: bool,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  forebay cache flush\n  forebay cache flush tank")]
pub(crate) enum CacheCommand {
    /// Evict all clean blocks from memory
    #[command(after_help = "Examples:\n  forebay cache flush\n  forebay cache flush tank")]
    Flush {
        /// A pool, whose process is meant; else all processes
        pool: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  \
    forebay l2 add tank /dev/nvme0n1p3\n  \
    forebay l2 list\n  \
    forebay l2 remove tank /dev/nvme0n1p3")]
pub(crate) enum L2Command {
    /// Have a pool keep on a fast device what memory lets go of, also over restarts
    #[command(after_help = "Examples:\n  \
        forebay l2 add tank /dev/nvme0n1p3\n  \
        forebay l2 add tank.img cache.img --size 20G\n\n\
        The pool may be in use. Nothing is ever lost with an L2 device: it can be removed at any time, and a pool is\n\
        mounted without one that is missing. It costs memory: about 24 bytes for each block that it holds.")]
    Add {
        #[arg(help = POOL_HELP)]
        pool: String,
        /// A file or block device, of 16 MiB at least
        device: PathBuf,
        /// Size of a file that is not there yet, which is made
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
        size: Option<u64>,
        /// Use a device that is not empty: what it holds is lost
        #[arg(long)]
        force: bool,
    },
    /// Do without an L2 device; the pool may be in use
    #[command(after_help = "Examples:\n  \
        forebay l2 remove tank /dev/nvme0n1p3\n  \
        forebay l2 remove tank 5f3a9c0e12d4b687     also if its device is gone, by its number in `forebay l2 list`")]
    Remove {
        #[arg(help = POOL_HELP)]
        pool: String,
        /// Its path, or its number
        device: String,
    },
    /// List the L2 devices of a pool, or of all pools in use
    #[command(after_help = "Examples:\n  forebay l2 list\n  forebay l2 list tank --json")]
    List {
        /// A pool; else all that are in use
        pool: Option<String>,
        /// For machines
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DatasetCommand {
    /// Make a dataset with a file system in a pool that is not in use
    #[command(after_help = "Examples:\n  forebay dataset create tank.img photos --record-size 1M")]
    Create {
        #[arg(help = POOL_HELP)]
        pool: String,
        /// Its name
        name: String,
        #[command(flatten)]
        settings: DatasetArgs,
    },
    /// Change how a dataset keeps what is written from now on, in a pool that is not in use
    #[command(after_help = "Examples:\n  forebay dataset set tank.img backups --l2 metadata\n  \
        forebay dataset set tank.img main --compression lz4 --sync txg")]
    Set {
        #[arg(help = POOL_HELP)]
        pool: String,
        /// Its name
        name: String,
        #[command(flatten)]
        settings: DatasetArgs,
    },
    /// List a pool's datasets
    #[command(after_help = "Examples:\n  forebay dataset list tank")]
    List {
        #[arg(help = POOL_HELP)]
        pool: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TunableCommand {
    /// Show tunables
    #[command(
        after_help = "Examples:\n  forebay tunable get tank\n  forebay tunable get tank txg_timeout_ms"
    )]
    Get {
        /// A pool in use
        pool: String,
        /// Only this one, with what it does
        name: Option<String>,
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// Set a tunable until the pool is exported; `forebay mount --tunable` sets it from the start
    #[command(after_help = "Examples:\n  forebay tunable set tank txg_timeout_ms 1000")]
    Set {
        /// A pool in use
        pool: String,
        /// Its name
        name: String,
        /// Its value
        value: String,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay stats\n  forebay stats tank --watch\n  forebay stats --watch 5\n  \
    forebay stats --json        all counters"
)]
pub(crate) struct StatsArgs {
    /// A pool, whose process is meant; else all processes
    pub(crate) pool: Option<String>,
    /// Anew every so many seconds, with rates, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) watch: Option<u32>,
    /// For machines, with all counters
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay demo\n  forebay demo /usr/share/doc --memory 256M")]
pub(crate) struct DemoArgs {
    /// A tree of files to copy; else the libraries and documentation of the Rust toolchain
    pub(crate) tree: Option<PathBuf>,
    /// What the process may use; the tree is larger than its cache, or it is said
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "192MiB")]
    pub(crate) memory: u64,
    /// At most so much of the tree is copied
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "512MiB")]
    pub(crate) limit: u64,
    /// Where the temporary folder is made; else the system's place for that
    #[arg(long, value_name = "FOLDER")]
    pub(crate) temporary: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay completions bash > ~/.local/share/bash-completion/completions/forebay\n  \
    forebay completions zsh > ~/.zfunc/_forebay\n  \
    forebay completions fish > ~/.config/fish/completions/forebay.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
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

#[derive(Debug, Args)]
pub(crate) struct NullMountArgs {
    pub(crate) at: PathBuf,
    #[arg(long)]
    pub(crate) kernel_cache: bool,
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}
