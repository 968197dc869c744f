//! Arguments of the commands that change the sides of mirrors, and devices of the log.

use std::path::PathBuf;

use clap::Args;

use super::POOL_HELP;
use crate::units::{parse_bytes, parse_sector};

/// Help of `forebay offline`.
pub(super) const OFFLINE_HELP: &str = "Examples:\n  forebay offline tank /dev/sdb\n\n\
    The other devices of the mirror go on. It stays offline across imports. The last device with all\n\
    blocks cannot be taken out of use.";
/// Help of `forebay detach`.
pub(super) const DETACH_HELP: &str = "Examples:\n  forebay detach tank /dev/sdb\n  \
    forebay detach tank 9a4f21c7d8e05b36     by its guid, if the device is missing\n\n\
    The other devices of the mirror go on; of two, one device without a mirror is left. The labels of the\n\
    removed device are erased. A missing one keeps them: do not import it alone later. The last device\n\
    with all blocks cannot be removed. `forebay attach` adds a device again.";

#[derive(Debug, Args)]
pub(crate) struct SideArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// A device of a mirror: its path, or its guid in hexadecimal
    pub(crate) device: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay online tank /dev/sdb\n  forebay online tank /dev/sdb --no-wait\n\n\
    Brings back a device that is offline or faulted. A resilver then reads the blocks that were\n\
    written without it, and writes them onto it; `forebay status` shows how far it is. It starts over\n\
    after an import. A missing device comes back by the path where it is, or with an import of all devices."
)]
pub(crate) struct OnlineArgs {
    #[command(flatten)]
    pub(crate) side: SideArgs,
    /// Do not wait for the end of the resilver; for an imported pool
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay attach tank /dev/sda /dev/sdb\n\n\
    A device that is not mirrored becomes a mirror with the new one; a mirror gets one more device. A\n\
    resilver then writes all blocks of the mirror to it. The new device must have at least the size of the others.\n\n\
    A log device becomes a mirror in the same way, and has all that counts when the command ends.")]
pub(crate) struct AttachArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// A device of the pool: its path, or its guid in hexadecimal
    pub(crate) device: String,
    /// The device that joins it
    pub(crate) new: PathBuf,
    #[command(flatten)]
    pub(crate) how: AttachFlags,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay replace tank /dev/sdb /dev/sdc\n  \
    forebay replace tank 9a4f21c7d8e05b36 /dev/sdc     by its guid, if the old one is missing\n\n\
    The new device is attached beside the old one, and a resilver writes all blocks to it. Then the old one is\n\
    detached; it may be faulted, offline or missing. After a crash the next import goes on. To give up,\n\
    detach the new device. A log device is replaced without a resilver.")]
pub(crate) struct ReplaceArgs {
    #[arg(help = POOL_HELP)]
    pub(crate) pool: String,
    /// A device of the pool: its path, or its guid in hexadecimal
    pub(crate) old: String,
    /// The device that takes its place
    pub(crate) new: PathBuf,
    #[command(flatten)]
    pub(crate) how: AttachFlags,
}

#[derive(Debug, Args)]
pub(crate) struct AttachFlags {
    /// Create the new device as a file of this size, in bytes or with a suffix K, M, G, T, if it
    /// does not exist
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,
    /// Sector size of the pool, for a device whose physical sectors are larger: a power cut can
    /// then damage data beside the one that is written
    #[arg(long, value_name = "BYTES", value_parser = parse_sector)]
    pub(crate) sector: Option<u32>,
    /// Use a device that is not empty; its content is lost
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not wait for the end of the resilver; for an imported pool
    #[arg(long)]
    pub(crate) no_wait: bool,
}
