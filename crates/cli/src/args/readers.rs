//! Arguments about the readers of a pool on an object store.

use std::path::PathBuf;

use clap::Args;

use crate::error::Result;
use crate::units::{self, parse_bytes};

/// How a pool is followed, and what is kept for those who follow it.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ReaderArgs {
    /// With --read-only, for a pool on an object store: show what another host writes, transaction
    /// group by transaction group
    #[arg(long, requires = "read_only")]
    pub(crate) follow: bool,
    /// Seconds between two looks for a new transaction group
    #[arg(long, value_name = "SECONDS", requires = "follow", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) follow_interval: u32,
    /// With --follow: keep what is read on an SSD of this host, in this file or on this block
    /// device of at least 16 MiB. It is warm after a restart. Nobody else can use it meanwhile
    #[arg(long, value_name = "FILE")]
    pub(crate) l2: Option<PathBuf>,
    /// Create the file of --l2 with this size if there is none, in bytes or with a suffix K, M, G,
    /// T
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) l2_size: Option<u64>,
    /// Seconds for which an object store keeps what was freed, for readers [default: 600]
    #[arg(long, value_name = "SECONDS", conflicts_with = "read_only")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=7 * 24 * 3600))]
    pub(crate) retention: Option<u32>,
}

impl ReaderArgs {
    /// Takes an option of `-o`. Returns false if it has no value that it needs, or one that it does
    /// not take.
    ///
    /// # Errors
    /// If the value is wrong.
    pub(crate) fn take(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        match (name, value) {
            ("follow", None) => self.follow = true,
            ("l2", Some(value)) => self.l2 = Some(value.into()),
            ("l2_size", Some(value)) => {
                self.l2_size = Some(units::usage(parse_bytes(value))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Time between two looks, if the pool is followed.
    pub(crate) fn follow_ms(&self) -> Option<u64> {
        self.follow.then_some(u64::from(self.follow_interval.max(1)) * 1000)
    }

    /// How long the store keeps what was freed.
    pub(crate) fn retention_ms(&self) -> Option<u64> {
        self.retention.map(|seconds| u64::from(seconds) * 1000)
    }
}
