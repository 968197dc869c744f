//! The pages of `docs/` that are made from tables in the code: counters and tunables.
//!
//! The tables are the truth: parser, validation and help come from the same rows. `cargo xtask docs`
//! writes the pages, and a test here fails when a page is stale. A crate of its own, because it links
//! the whole product, which `cargo xtask tidy` must not wait for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use forebay_cache::counters::CacheCounters;
use forebay_cache::tunables::CacheTunables;
use forebay_fs::FsCounters;
use forebay_fuse::MountCounters;
use forebay_io::counters::IoCounters;
use forebay_io::fault::FaultCounters;
use forebay_io::tunables::IoTunables;
use forebay_l2::{LevelCounters, LevelTunables};
use forebay_pool::{
    L2DeviceTunables, LogCounters, LogTunables, PrefetchCounters, PrefetchTunables, SpaceCounters,
    StoreCounters, StoreTunables, TxgCounters, TxgTunables,
};

/// A file and what it must hold.
struct Generated {
    /// Relative to the workspace.
    path: &'static str,
    text: String,
}

const NOTICE: &str = "<!-- Made by `cargo xtask docs`. Edit the table in the code instead. -->\n";

const TUNABLES: &str = "# Tunables

What can be set, crate by crate. A tunable that is settable at `build` is fixed once the owner of
the table stands; one that is settable at `runtime` takes effect while it runs. A value outside of
the range is refused with an error that names the range. Sizes take a suffix, such as `64M` or
`1GiB`.
";

const COUNTERS: &str = "# Counters

What is counted, crate by crate. Every counter starts at zero and only grows. One that is split
counts each of the named parts by itself.
";

/// Makes all generated files.
fn generate() -> Vec<Generated> {
    let tunables = [
        ("forebay-cache", forebay_base::tunables::markdown(CacheTunables::ROWS)),
        ("forebay-io", forebay_base::tunables::markdown(IoTunables::ROWS)),
        ("forebay-l2", forebay_base::tunables::markdown(LevelTunables::ROWS)),
        ("forebay-pool: transaction groups", forebay_base::tunables::markdown(TxgTunables::ROWS)),
        ("forebay-pool: intent log", forebay_base::tunables::markdown(LogTunables::ROWS)),
        ("forebay-pool: prefetch", forebay_base::tunables::markdown(PrefetchTunables::ROWS)),
        ("forebay-pool: block store", forebay_base::tunables::markdown(StoreTunables::ROWS)),
        ("forebay-pool: cache devices", forebay_base::tunables::markdown(L2DeviceTunables::ROWS)),
    ];
    let counters = [
        ("forebay-cache", forebay_base::counters::markdown(CacheCounters::ROWS)),
        ("forebay-io", forebay_base::counters::markdown(IoCounters::ROWS)),
        ("forebay-io: fault injection", forebay_base::counters::markdown(FaultCounters::ROWS)),
        ("forebay-l2", forebay_base::counters::markdown(LevelCounters::ROWS)),
        ("forebay-pool: transaction groups", forebay_base::counters::markdown(TxgCounters::ROWS)),
        ("forebay-pool: intent log", forebay_base::counters::markdown(LogCounters::ROWS)),
        ("forebay-pool: prefetch", forebay_base::counters::markdown(PrefetchCounters::ROWS)),
        ("forebay-pool: block store", forebay_base::counters::markdown(StoreCounters::ROWS)),
        ("forebay-pool: space", forebay_base::counters::markdown(SpaceCounters::ROWS)),
        ("forebay-fs", forebay_base::counters::markdown(FsCounters::ROWS)),
        ("forebay-fuse", forebay_base::counters::markdown(MountCounters::ROWS)),
    ];
    vec![
        Generated { path: "docs/tunables.md", text: page(TUNABLES, &tunables) },
        Generated { path: "docs/counters.md", text: page(COUNTERS, &counters) },
    ]
}

/// A page: notice, introduction, then a heading and a table for each crate.
fn page(introduction: &str, tables: &[(&str, String)]) -> String {
    let mut text = format!("{NOTICE}{introduction}");
    for (name, table) in tables {
        text.push_str(&format!("\n## {name}\n\n{table}"));
    }
    text
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes all generated files.
fn write(root: &Path) -> io::Result<()> {
    for file in generate() {
        fs::write(root.join(file.path), file.text)?;
        println!("wrote {}", file.path);
    }
    Ok(())
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() != Some("write") {
        eprintln!("usage: forebay-docs write (`cargo xtask docs` does that)");
        return ExitCode::from(2);
    }
    match write(&root()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-docs: cannot write a page of docs/: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_not_stale() {
        for file in generate() {
            let text = fs::read_to_string(root().join(file.path)).unwrap_or_default();
            assert!(text == file.text, "{} is stale: run `cargo xtask docs`", file.path);
        }
    }

    #[test]
    fn every_row_has_its_line() {
        let files = generate();
        let lines = |at: usize| files[at].text.lines().filter(|l| l.starts_with("| `")).count();
        let pool = TxgTunables::ROWS.len()
            + LogTunables::ROWS.len()
            + PrefetchTunables::ROWS.len()
            + StoreTunables::ROWS.len()
            + L2DeviceTunables::ROWS.len();
        let level = LevelTunables::ROWS.len();
        let below = CacheTunables::ROWS.len() + IoTunables::ROWS.len() + level;
        assert_eq!(lines(0), below + pool);
        let io = IoCounters::ROWS.len() + FaultCounters::ROWS.len() + LevelCounters::ROWS.len();
        let pool = TxgCounters::ROWS.len()
            + LogCounters::ROWS.len()
            + PrefetchCounters::ROWS.len()
            + StoreCounters::ROWS.len()
            + SpaceCounters::ROWS.len();
        let mounts = FsCounters::ROWS.len() + MountCounters::ROWS.len();
        assert_eq!(lines(1), CacheCounters::ROWS.len() + io + pool + mounts);
    }
}
