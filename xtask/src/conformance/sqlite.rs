//! SQLite under kills of the server: each acknowledged transaction is there afterwards, whole.
//!
//! Each journal mode has a database and an `sqlite3` process. A transaction adds a row and changes
//! the row of the total. The process prints the number of the transaction once it has committed,
//! which makes it acknowledged. Then the server is killed at a random moment.
//!
//! `synchronous` is `EXTRA`. With `FULL`, SQLite does not sync the folder after it has removed the
//! rollback journal, so a crash may bring the journal back, and with it the state before the
//! newest transaction.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::fixture::{Fixture, TestMount};
use super::suites::packaged;
use super::{Failure, Outcome};

/// The longest time from the first transaction of each database to the kill, in milliseconds.
const LONGEST_MS: u64 = 800;
/// The longest time until each database has a transaction.
const BEGIN_TIME: Duration = Duration::from_secs(60);
/// The content of row `n`: its length differs, so that rows span pages of the database.
const CONTENT: &str = "printf('%0*d', 100 + n * 977 % 9000, n)";

/// A database and its acknowledged transactions.
pub(super) struct Database {
    path: PathBuf,
    pub(super) journal_mode: &'static str,
    /// The newest transaction that was acknowledged, and the newest that was sent.
    pub(super) acknowledged: u64,
    sent: u64,
}

impl Database {
    pub(super) fn new(at: &Path, journal_mode: &'static str) -> Self {
        let path = at.join(format!("{journal_mode}.db"));
        Self { path, journal_mode, acknowledged: 0, sent: 0 }
    }

    /// From now on its folder is another one, which has the same content.
    pub(super) fn moved(&mut self, at: &Path) {
        self.path = at.join(format!("{}.db", self.journal_mode));
    }

    /// Runs SQL to its end, and returns what it prints.
    fn query(&self, sql: &str) -> Result<String, Failure> {
        let output = Command::new("sqlite3").arg("-bail").arg(&self.path).arg(sql).output();
        let output = output.map_err(|error| format!("sqlite3: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let error = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {sql}: {}", self.path.display(), error.trim()))
    }

    pub(super) fn create(&self) -> Result<(), Failure> {
        let mode = self.journal_mode;
        self.query(&format!(
            "PRAGMA journal_mode = {mode};
             CREATE TABLE rows (n INTEGER PRIMARY KEY, content TEXT);
             CREATE TABLE total (n INTEGER); INSERT INTO total VALUES (0);"
        ))
        .map(drop)
    }

    /// Commits transactions until `stop` is set, or until one fails because the server is killed.
    /// Calls `acknowledged` after each transaction, and drops it at the end.
    pub(super) fn work(
        &mut self,
        stop: &AtomicBool,
        acknowledged: impl Fn(),
    ) -> Result<(), Failure> {
        let failed = |error: std::io::Error| format!("sqlite3: {error}");
        let mut command = Command::new("sqlite3");
        // Without `-bail` it would print the number of a transaction that failed.
        command.arg("-bail").arg(&self.path).stderr(Stdio::null());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        if let Some((mut input, output)) = pipes {
            let mut lines = BufReader::new(output).lines();
            let _ = writeln!(input, "PRAGMA synchronous = EXTRA;");
            while !stop.load(Ordering::Relaxed) {
                self.sent = self.acknowledged + 1;
                let n = self.sent;
                let transaction = format!(
                    "BEGIN; UPDATE total SET n = {n}; INSERT INTO rows SELECT n, {CONTENT} \
                     FROM total; COMMIT; SELECT {n};"
                );
                let printed = writeln!(input, "{transaction}").ok().and_then(|()| lines.next());
                match printed {
                    // `stop` is set before the kill. After it a commit may succeed that is not
                    // durable: SQLite does not sync a folder that it cannot open.
                    Some(Ok(line)) if line == n.to_string() && !stop.load(Ordering::SeqCst) => {
                        self.acknowledged = n;
                    }
                    _ => break,
                }
                acknowledged();
            }
        }
        child.wait().map_err(failed).map(drop)
    }

    /// Checks that all acknowledged transactions are there, and no part of another one.
    pub(super) fn verify(&mut self) -> Result<(), Failure> {
        let found = self.query(&format!(
            "PRAGMA integrity_check; SELECT n FROM total; SELECT count(*) FROM rows;
             SELECT coalesce(max(n), 0) FROM rows;
             SELECT count(*) FROM rows WHERE content IS NOT {CONTENT}; PRAGMA journal_mode;"
        ))?;
        let words: Vec<&str> = found.lines().collect();
        let Self { acknowledged, sent, journal_mode, .. } = *self;
        let newest = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
        let number = newest.to_string();
        if words != ["ok", &number, &number, &number, "0", journal_mode]
            || newest < acknowledged
            || newest > sent
        {
            return Err(format!(
                "{}: {acknowledged} transactions were acknowledged, {sent} sent; the check, the \
                 total, the number of rows, the newest row, the number of wrong rows and the \
                 journal mode are {words:?}",
                self.path.display()
            ));
        }
        self.acknowledged = newest;
        Ok(())
    }
}

/// The outcome if `sqlite3` is not installed.
pub(super) fn missing() -> Option<Outcome> {
    let why = "sqlite3 is not installed; install the package sqlite3";
    (!packaged("sqlite3", "sqlite3")).then(|| Outcome::Skipped("sqlite3", why.to_owned()))
}

/// Runs the load, kills the server after so many milliseconds, clears the dead mount, checks the
/// pool, mounts again and verifies the databases.
pub(super) fn crash(
    mounted: &mut TestMount,
    databases: &mut [Database; 2],
    after: u64,
    kernel_cache: bool,
) -> Result<(), Failure> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let working = databases.each_mut().map(|it| {
            let (sender, begun) = mpsc::channel();
            let acknowledged = move || {
                let _ = sender.send(());
            };
            (scope.spawn(move || it.work(stop, acknowledged)), begun)
        });
        // A busy machine may take long to begin, so the time counts from here on.
        let begun = working.each_ref().map(|(_, begun)| begun.recv_timeout(BEGIN_TIME));
        std::thread::sleep(Duration::from_millis(after));
        stop.store(true, Ordering::SeqCst);
        mounted.kill();
        working.into_iter().try_for_each(|(thread, _)| {
            thread.join().unwrap_or_else(|_| Err("a thread of the load panicked".to_owned()))
        })?;
        match begun.iter().all(Result::is_ok) {
            true => Ok(()),
            false => Err("a database acknowledged no transaction".to_owned()),
        }
    })?;
    mounted.clear()?;
    mounted.check()?;
    mounted.mount(kernel_cache)?;
    databases.iter_mut().try_for_each(Database::verify)
}

/// Runs rounds of [`crash`], each killed after a random time. Alternates both modes of the mount.
pub(super) fn crashes(
    mounted: &mut TestMount,
    databases: &mut [Database; 2],
    rounds: u64,
    seed: u64,
) -> Result<(), Failure> {
    for round in 0..rounds {
        let after = super::fsync_load::mix(seed ^ round) % LONGEST_MS;
        crash(mounted, databases, after, round % 2 == 0).map_err(|why| {
            format!("round {round} of seed {seed}, killed after {after} ms: {why}")
        })?;
    }
    Ok(())
}

/// Creates both databases in a folder.
pub(super) fn databases(at: &Path) -> Result<[Database; 2], Failure> {
    let databases = ["delete", "wal"].map(|mode| Database::new(at, mode));
    databases.iter().try_for_each(Database::create)?;
    Ok(databases)
}

pub(super) fn run(fixture: &Fixture) -> Result<Outcome, Failure> {
    if let Some(skipped) = missing() {
        return Ok(skipped);
    }
    let rounds = if fixture.full { 100 } else { 4 };
    let seed = fixture.seed;
    let mut mounted = fixture.mounted("sqlite", false)?;
    let mut databases = databases(&mounted.at)?;
    crashes(&mut mounted, &mut databases, rounds, seed)?;
    let counts = databases.each_ref().map(|it| format!("{} {}", it.acknowledged, it.journal_mode));
    mounted.end()?;
    let counts = counts.join(", ");
    Ok(Outcome::Passed(format!("{rounds} kills, transactions: {counts}; none lost, seed {seed}")))
}
