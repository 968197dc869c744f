//! Arguments of `forebay l2`.

use std::path::PathBuf;

use clap::Subcommand;

use super::{JSON_HELP, POOL_HELP};
use crate::units::parse_bytes;

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  \
    forebay l2 add tank /dev/nvme0n1p3\n  \
    forebay l2 list\n  \
    forebay l2 remove tank /dev/nvme0n1p3")]
pub(crate) enum L2Command {
    /// Add an L2 device: a fast device that keeps blocks evicted from memory, also across restarts
    #[command(after_help = "Examples:\n  \
        forebay l2 add tank /dev/nvme0n1p3\n  \
        forebay l2 add tank.img cache.img --size 20G\n\n\
        The pool may be imported. An L2 device holds copies only, so no data is lost with it: it can be removed at any\n\
        time, and a pool is imported without an L2 device that is missing. Its index takes about 24 bytes of memory\n\
        for each block that it holds.")]
    Add {
        #[arg(help = POOL_HELP)]
        pool: String,
        /// File or block device of at least 16 MiB
        device: PathBuf,
        /// Create a file that does not exist with this size, in bytes or with a suffix K, M, G, T
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
        size: Option<u64>,
        /// Use a device that is not empty; its content is lost
        #[arg(long)]
        force: bool,
    },
    /// Remove an L2 device; the pool may be imported
    #[command(after_help = "Examples:\n  \
        forebay l2 remove tank /dev/nvme0n1p3\n  \
        forebay l2 remove tank 5f3a9c0e12d4b687     by its number in `forebay l2 list`, if the device is gone")]
    Remove {
        #[arg(help = POOL_HELP)]
        pool: String,
        /// Path or number of the L2 device
        device: String,
    },
    /// List the L2 devices of a pool, or of all imported pools
    #[command(after_help = "Examples:\n  forebay l2 list\n  forebay l2 list tank --json")]
    List {
        /// Pool whose L2 devices are listed [default: all imported pools]
        pool: Option<String>,
        #[arg(long, help = JSON_HELP)]
        json: bool,
    },
}
