//! Arguments of the commands that work on all blocks of a pool: `forebay scrub`, `check` and
//! `trim`.

use clap::Args;

use super::{JSON_HELP, POOL_HELP};
use crate::units::{parse_bytes, parse_every};

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
    /// Scrub the pool automatically, this long after the end of the previous scrub: 30d, 2w, 12h;
    /// `never` turns it off. The pool keeps the setting; the process that has it imported scrubs it
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
    /// Read at most this many bytes per second, until the scrub ends; 0 for the tunable
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
    use, or the check was interrupted, 2 if the pool cannot be used or does not answer.\n\
    If a device of a mirror is away and the pool is not in use, it writes nothing, as with --read-only.")]
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
