//! Arguments of `forebay log`.

use std::path::PathBuf;

use clap::Subcommand;

use super::POOL_HELP;
use crate::units::parse_bytes;

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  \
    forebay log add tank /dev/nvme0n1p4\n  \
    forebay log remove tank")]
pub(crate) enum LogCommand {
    /// Move the intent log of a pool to a device of its own, or to a mirror of several
    #[command(after_help = "Examples:\n  forebay log add tank /dev/nvme0n1p4\n  \
        forebay log add tank /dev/nvme0n1p4 /dev/nvme1n1p4     a mirror\n\n\
        The pool may be imported. An fsync then waits for no other device. If the device fails, the log goes on without\n\
        it, and nothing is lost. If it is lost together with a crash of the system, what was fsynced since the\n\
        last transaction group is lost: the next import says so, and needs --discard-log. `forebay attach`,\n\
        `detach` and `replace` change its devices.")]
    Add {
        #[arg(help = POOL_HELP)]
        pool: String,
        /// File or block device of at least 16 MiB; several mirror each other
        #[arg(required = true, value_name = "DEVICE")]
        devices: Vec<PathBuf>,
        /// Create a file that does not exist with this size, in bytes or with a suffix K, M, G, T
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
        size: Option<u64>,
        /// Use a device that is not empty; its content is lost
        #[arg(long)]
        force: bool,
    },
    /// Move the intent log back to the other devices of a pool, and remove its own
    Remove {
        #[arg(help = POOL_HELP)]
        pool: String,
    },
}
