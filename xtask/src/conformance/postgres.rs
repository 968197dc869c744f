//! PostgreSQL under kills of the server: each acknowledged commit is there afterwards, whole.
//!
//! Each round has another `wal_sync_method`, and with or without archiving, which decides whether
//! PostgreSQL writes its log with direct I/O. Two clients commit transactions: each adds a row and
//! changes the total of its table. A client prints the number of a transaction once it has
//! committed, which makes it acknowledged. Then Forebay is killed at a random moment.
//!
//! PostgreSQL refuses to run as root, so it runs as a system user. Each step has a time limit.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::fixture::{Fixture, TestMount, wait_for};
use super::{Failure, Outcome};

/// The users as which PostgreSQL may run.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// How PostgreSQL makes its log durable.
const SYNC_METHODS: [&str; 3] = ["fdatasync", "open_datasync", "open_sync"];
/// Clients, each with a table.
const CLIENTS: usize = 2;
/// The longest time from the first commit of each client to the kill, in milliseconds.
const LONGEST_MS: u64 = 800;
/// The longest time of each step: the creation of the cluster, its start with recovery, the first
/// commit of each client, a query.
const STEP_TIME: Duration = Duration::from_secs(120);
/// The content of row `n`: its length differs, so that rows span pages.
const CONTENT: &str = "repeat(md5(n::text), (1 + n % 40)::int)";

/// The programs of PostgreSQL, and the user as which they run.
struct Programs {
    folder: PathBuf,
    uid: u32,
    gid: u32,
}

impl Programs {
    /// Finds them; the error says what is missing.
    fn find() -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let packaged = versions.map(|version| version.path().join("bin"));
        let mut folders = std::env::split_paths(&path).chain(packaged);
        let has_all = |folder: &PathBuf| {
            ["postgres", "initdb", "psql"].iter().all(|program| folder.join(program).is_file())
        };
        let folder = folders.find(has_all).ok_or("postgres, initdb and psql are not installed")?;
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let ids = |user: &str| {
            let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
            let of_user = fields.into_iter().find(|fields| fields[0] == user)?;
            Some((of_user.get(2)?.parse().ok()?, of_user.get(3)?.parse().ok()?))
        };
        let user = USERS.iter().find_map(|user| ids(user));
        let (uid, gid) = user.ok_or("there is no user postgres or nobody")?;
        Ok(Self { folder, uid, gid })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.join(program));
        command.uid(self.uid).gid(self.gid).current_dir("/").env_clear();
        command.env("PATH", &self.folder).env("LC_ALL", "C").env("PGCONNECT_TIMEOUT", "10");
        command
    }
}

/// A database cluster on the mount.
struct Cluster {
    programs: Programs,
    data: PathBuf,
    /// The folder of the socket, outside the mount.
    socket: PathBuf,
    server: Option<Child>,
}

impl Cluster {
    fn create(programs: Programs, mounted: &TestMount) -> Result<Self, Failure> {
        let (data, socket) = (mounted.at.join("pg"), mounted.scratch_path("pg"));
        for folder in [&data, &socket] {
            let made = fs::create_dir(folder)
                .and_then(|()| chown(folder, Some(programs.uid), Some(programs.gid)))
                .and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(0o700)));
            made.map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let mut init = programs.command("initdb");
        init.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--wal-segsize=1", "-D"]);
        let created = Self { programs, data, socket, server: None };
        init.arg(&created.data);
        mounted.run_for(init, STEP_TIME)?;
        Ok(created)
    }

    /// Starts the server, and waits until it has recovered.
    fn start(
        &mut self,
        mounted: &TestMount,
        sync_method: &str,
        archives: bool,
    ) -> Result<(), Failure> {
        // A killed server leaves it. No process of that server is left.
        let _ = fs::remove_file(self.data.join("postmaster.pid"));
        let mut command = self.programs.command("postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.socket);
        let settings = [
            "listen_addresses=".to_owned(),
            format!("wal_sync_method={sync_method}"),
            format!("wal_level={}", if archives { "replica" } else { "minimal" }),
            format!("max_wal_senders={}", if archives { 4 } else { 0 }),
            // So that kills hit checkpoints and the reuse of the log's files.
            "min_wal_size=2MB".to_owned(),
            "max_wal_size=4MB".to_owned(),
            "shared_buffers=1MB".to_owned(),
        ];
        for setting in settings {
            command.arg("-c").arg(setting);
        }
        let (out, err) = mounted.outputs()?;
        let server = command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn();
        self.server = Some(server.map_err(|error| format!("postgres: {error}"))?);
        let begun = Instant::now();
        while self.query("SELECT 1").is_err() {
            if begun.elapsed() > STEP_TIME {
                return Err(format!("postgres does not answer in time{}", mounted.tail()));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn psql(&self) -> Command {
        let mut command = self.programs.command("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-h"]);
        command.arg(&self.socket).process_group(0);
        command
    }

    /// Runs SQL to its end, and returns what it prints.
    fn query(&self, sql: &str) -> Result<String, Failure> {
        let failed = |error: std::io::Error| format!("psql: {error}");
        let mut command = self.psql();
        command.args(["-c", sql]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed)?;
        match wait_for(&mut child, STEP_TIME) {
            Some(true) => {}
            Some(false) => return Err(format!("psql failed: {sql}")),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("psql did not end in time: {sql}"));
            }
        }
        // What it prints fits a pipe.
        let output = child.wait_with_output().map_err(failed)?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Kills the server and its children, each of which has a session of its own. All of them have
    /// the folder of the cluster as working directory.
    fn kill(&mut self) -> Result<(), Failure> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let _ = server.kill();
        let begun = Instant::now();
        loop {
            // An ending process has no working directory, and until it is waited for, the next
            // server finds its number in the lock of the socket and does not start.
            let has_ended = matches!(server.try_wait(), Ok(Some(_)));
            let left = processes_in(&self.data);
            if left.is_empty() && has_ended {
                return Ok(());
            }
            if begun.elapsed() > STEP_TIME {
                return Err(format!("processes of postgres do not end: {left:?}"));
            }
            let pids = left.iter().map(u32::to_string);
            let _ = Command::new("kill").arg("-9").args(pids).stderr(Stdio::null()).status();
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server in order.
    fn stop(&mut self) -> Result<(), Failure> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        // SIGINT is its fast shutdown.
        let pid = server.id().to_string();
        let _ = Command::new("kill").args(["-2", &pid]).status();
        match wait_for(&mut server, STEP_TIME) {
            Some(true) => Ok(()),
            ended => {
                self.server = Some(server);
                Err(format!("postgres did not end in order: {ended:?}"))
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The processes whose working directory is `folder`.
fn processes_in(folder: &Path) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_there = |pid: &u32| {
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.as_path() == folder)
    };
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.filter(is_there).collect()
}

/// A client, and its commits.
struct Client {
    number: usize,
    /// The newest transaction that was acknowledged, and the newest that was sent.
    acknowledged: u64,
    sent: u64,
}

impl Client {
    fn create(&self, cluster: &Cluster) -> Result<(), Failure> {
        let n = self.number;
        let tables = format!(
            "CREATE TABLE rows_{n} (n bigint PRIMARY KEY, content text);
             CREATE TABLE total_{n} (n bigint); INSERT INTO total_{n} VALUES (0);"
        );
        cluster.query(&tables).map(drop)
    }

    /// Commits transactions until one fails because the server is gone.
    fn work(&mut self, child: &mut Child, begun: &Sender<()>) {
        let pipes = child.stdin.take().zip(child.stdout.take());
        let Some((mut input, output)) = pipes else { return };
        let mut lines = BufReader::new(output).lines();
        let number = self.number;
        loop {
            self.sent = self.acknowledged + 1;
            let n = self.sent;
            let transaction = format!(
                "BEGIN; UPDATE total_{number} SET n = {n}; INSERT INTO rows_{number} \
                 SELECT n, {CONTENT} FROM total_{number}; COMMIT; SELECT {n};"
            );
            let printed = writeln!(input, "{transaction}").ok().and_then(|()| lines.next());
            match printed {
                Some(Ok(line)) if line == n.to_string() => self.acknowledged = n,
                _ => return,
            }
            let _ = begun.send(());
        }
    }

    /// Checks that all acknowledged transactions are there, and no part of another one.
    fn verify(&mut self, cluster: &Cluster) -> Result<(), Failure> {
        let Self { number, acknowledged, sent } = *self;
        let found = cluster.query(&format!(
            "SELECT (SELECT n FROM total_{number}), count(*), coalesce(max(n), 0),
             count(*) FILTER (WHERE content IS DISTINCT FROM {CONTENT}) FROM rows_{number}"
        ))?;
        let newest: u64 =
            found.split('|').next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
        if found != format!("{newest}|{newest}|{newest}|0")
            || newest < acknowledged
            || newest > sent
        {
            return Err(format!(
                "client {number}: {acknowledged} transactions were acknowledged, {sent} sent; the \
                 total, the number of rows, the newest row and the number of wrong rows are {found}"
            ));
        }
        (self.acknowledged, self.sent) = (newest, newest);
        Ok(())
    }
}

/// Runs the clients, and kills Forebay and then PostgreSQL after a time.
fn crash(
    cluster: &mut Cluster,
    clients: &mut [Client],
    mounted: &mut TestMount,
    after: Duration,
) -> Result<(), Failure> {
    let mut children = Vec::new();
    for _ in 0..clients.len() {
        let mut command = cluster.psql();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        children.push(command.spawn().map_err(|error| format!("psql: {error}"))?);
    }
    let pids: Vec<String> = children.iter().map(|child| child.id().to_string()).collect();
    thread::scope(|scope| {
        let mut first_commits = Vec::new();
        for (client, child) in clients.iter_mut().zip(&mut children) {
            let (begun, first_commit) = mpsc::channel();
            first_commits.push(first_commit);
            scope.spawn(move || client.work(child, &begun));
        }
        // A busy machine may take long to begin, so the time counts from here on.
        let began = first_commits.iter().all(|first| first.recv_timeout(STEP_TIME).is_ok());
        thread::sleep(after);
        mounted.kill();
        let killed = cluster.kill();
        // They end with their connections, unless a process of the server is left.
        let _ = Command::new("kill").arg("-9").args(pids).stderr(Stdio::null()).status();
        killed?;
        match began {
            true => Ok(()),
            false => Err("a client committed nothing".to_owned()),
        }
    })?;
    children.iter_mut().for_each(|child| drop(child.wait()));
    Ok(())
}

/// Runs rounds: run the clients, kill both servers, clear the dead mount, check the pool, mount
/// again, let PostgreSQL recover, and verify.
pub(super) fn run(fixture: &Fixture) -> Result<Outcome, Failure> {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(why) => return Ok(Outcome::Skipped("postgresql", why)),
    };
    let rounds = if fixture.full { 60 } else { 6 };
    let seed = fixture.seed;
    let mut mounted = fixture.mounted("postgresql", false)?;
    let mut cluster = Cluster::create(programs, &mounted)?;
    let method = |round: u64| SYNC_METHODS[(round % 3) as usize];
    let archives = |round: u64| round / 3 % 2 == 1;
    cluster.start(&mounted, method(0), archives(0))?;
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|number| Client { number, acknowledged: 0, sent: 0 }).collect();
    clients.iter().try_for_each(|client| client.create(&cluster))?;
    for round in 0..rounds {
        let after = super::fsync_load::mix(seed ^ round) % LONGEST_MS;
        let in_round = |why: String| {
            let method = method(round);
            format!("round {round} of seed {seed}, {method}, killed after {after} ms: {why}")
        };
        crash(&mut cluster, &mut clients, &mut mounted, Duration::from_millis(after))
            .map_err(in_round)?;
        mounted.clear().map_err(in_round)?;
        mounted.check().map_err(in_round)?;
        mounted.mount(round % 2 == 0).map_err(in_round)?;
        let next = round + 1;
        cluster.start(&mounted, method(next), archives(next)).map_err(in_round)?;
        clients.iter_mut().try_for_each(|client| client.verify(&cluster)).map_err(in_round)?;
    }
    cluster.stop()?;
    let commits: u64 = clients.iter().map(|client| client.acknowledged).sum();
    mounted.end()?;
    Ok(Outcome::Passed(format!("{rounds} kills, {commits} commits, none lost, seed {seed}")))
}
