//! Arguments about the readers of a pool on an object store.

use clap::Args;

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
    /// Seconds for which an object store keeps what was freed, for readers [default: 600]
    #[arg(long, value_name = "SECONDS", conflicts_with = "read_only")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=7 * 24 * 3600))]
    pub(crate) retention: Option<u32>,
}

impl ReaderArgs {
    /// Time between two looks, if the pool is followed.
    pub(crate) fn follow_ms(&self) -> Option<u64> {
        self.follow.then_some(u64::from(self.follow_interval.max(1)) * 1000)
    }

    /// How long the store keeps what was freed.
    pub(crate) fn retention_ms(&self) -> Option<u64> {
        self.retention.map(|seconds| u64::from(seconds) * 1000)
    }
}
