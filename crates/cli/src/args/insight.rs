//! Arguments of the commands that show what a cache and its pools do: `stats`, `top`, `explain`,
//! `advise` and `trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::JSON_HELP;
use crate::units::{parse_bytes, parse_interval, parse_ratio, parse_time};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  forebay trace record tank -o tank.zst --seconds 60\n  \
    forebay trace info tank.zst\n  \
    forebay trace convert tank.zst --to oracle-general -o tank.oracleGeneral")]
pub(crate) enum TraceCommand {
    /// Record the accesses to the blocks of an imported pool: which block, when, hit or miss
    #[command(
        after_help = "Examples:\n  forebay trace record -o tank.zst                 until Ctrl-C\n  \
        forebay trace record tank -o tank.zst --seconds 60 --names\n\n\
        The file is readable for you alone. It has numbers of objects, and names of datasets. One trace at a time\n\
        runs on a pool. It ends with Ctrl-C, after --seconds, or when the pool is exported, and is complete then.\n\
        Accesses that come too fast are left out and counted."
    )]
    Record(TraceRecordArgs),
    /// Show what a trace has: accesses, blocks, hit ratios, and where most accesses were
    #[command(
        after_help = "Examples:\n  forebay trace info tank.zst\n  forebay trace info tank.zst --json"
    )]
    Info {
        /// A trace
        file: PathBuf,
        #[arg(long, help = JSON_HELP)]
        json: bool,
    },
    /// Write the accesses of a trace in another format; read-ahead is left out
    #[command(after_help = "Examples:\n  \
        forebay trace convert tank.zst --to oracle-general -o tank.oracleGeneral   for libCacheSim\n  \
        forebay trace convert tank.zst --to text -o tank.csv")]
    Convert {
        /// A trace
        file: PathBuf,
        /// The format: oracleGeneral of libCacheSim, or comma-separated values
        #[arg(long, value_enum)]
        to: TraceFormat,
        /// The file to write; readable for you alone
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Replace the file if it exists
        #[arg(long)]
        force: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    OracleGeneral,
    Text,
}

#[derive(Debug, Args)]
pub(crate) struct TraceRecordArgs {
    /// An imported pool [default: the only one]
    pub(crate) pool: Option<String>,
    /// The file to write, compressed with zstd
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// End after this many seconds [default: with Ctrl-C]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(crate) seconds: Option<u64>,
    /// Add the paths of the files and directories that were accessed
    #[arg(long)]
    pub(crate) names: bool,
    /// Replace the file if it exists
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay stats\n  forebay stats tank --watch\n  forebay stats --watch 5\n  \
    forebay stats --json        all counters"
)]
pub(crate) struct StatsArgs {
    /// Pool whose daemon is shown [default: all daemons]
    pub(crate) pool: Option<String>,
    /// Repeat every SECONDS with rates, until Ctrl-C [default: 1 if no value is given]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) watch: Option<u32>,
    /// Print JSON with all counters
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay events\n  forebay events tank --follow\n  forebay events --follow --json\n\n\
    A daemon keeps the newest 1,024 events of its pools in memory, until it ends; its log has older ones.\n\
    Events that repeat within a minute are one event with a count. Times are in UTC. With --follow, new\n\
    events are printed until Ctrl-C, or until the daemons end; an event that has repeated is printed again\n\
    with its count after a pause of two seconds."
)]
pub(crate) struct EventsArgs {
    /// Pool whose events are shown [default: all pools]
    pub(crate) pool: Option<String>,
    /// Go on with new events
    #[arg(long, short = 'f')]
    pub(crate) follow: bool,
    /// Print JSON, one event a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay top\n  forebay top tank --interval 5s\n  \
    forebay top --once          text, with rates of one second\n  \
    forebay top --json          all figures of one interval\n\n\
    Press ? on the screen for the keys. NO_COLOR turns colours off.")]
pub(crate) struct TopArgs {
    /// Pool that is shown first [default: the first one]; with --once and --json the only one
    /// [default: all]
    pub(crate) pool: Option<String>,
    /// Time between samples, in seconds or with a suffix ms, s, m
    #[arg(long, value_name = "TIME", value_parser = parse_interval, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Print the statistics of one interval as text
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the statistics of one interval as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay advise\n  forebay advise tank --target-hit-ratio 90%\n  \
    forebay advise --budget 4G      the smallest memory within 4 GiB that is about as good as 4 GiB\n  \
    forebay advise --plot curve.svg\n  forebay advise --json\n\n\
    The daemon simulates its cache at other sizes on sampled blocks, for the accesses of the last minutes.\n\
    CACHE is the memory for cached blocks, MEMORY the --memory of a daemon that has it. A * marks today's size.\n\
    Saved are reads of devices, against today: less than nothing for smaller sizes."
)]
pub(crate) struct AdviseArgs {
    /// Pool whose daemon is asked [default: all daemons]
    pub(crate) pool: Option<String>,
    /// Find the size that reaches this hit ratio: 0.9 or 90%
    #[arg(long, value_name = "H", value_parser = parse_ratio)]
    pub(crate) target_hit_ratio: Option<f64>,
    /// Find the best size within this memory, in bytes or with a suffix K, M, G, T
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) budget: Option<u64>,
    #[arg(long, help = JSON_HELP)]
    pub(crate) json: bool,
    /// Also write the curve to an SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay explain                    all pools, the last ten minutes\n  \
    forebay explain tank --since 1m\n  \
    forebay explain tank/main          a dataset\n  \
    forebay explain /srv/tank/mail     a directory or file: itself, not what is below it\n  \
    forebay explain --json")]
pub(crate) struct ExplainArgs {
    /// Pool, POOL/DATASET, mount point, or a path in a mount [default: all pools]
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// How far to look back, in seconds or with a suffix s, m, h; at most 20m are remembered
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "10m")]
    pub(crate) since: u64,
    #[arg(long, help = JSON_HELP)]
    pub(crate) json: bool,
}
