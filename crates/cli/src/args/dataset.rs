//! Arguments of `forebay dataset`, and the settings of a dataset.

use clap::{Args, Subcommand, ValueEnum};

use super::POOL_HELP;
use crate::units::parse_bytes;

/// Settings of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct DatasetArgs {
    /// Record size of new files: a power of two from 4K to 1M [default of a new dataset: 128K]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) record_size: Option<u64>,
    /// Compression of data; metadata is always compressed; lz4 leaves data alone that it does not
    /// make much smaller [default of a new dataset: lz4]
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
    /// `forebay clear`, or fail with EIO at once. Reads go on, unless no device answers that could
    /// have the block: then they do the same [default of a new dataset: wait]
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
        forebay dataset set tank.img main --compression zstd --sync txg")]
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
