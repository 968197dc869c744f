//! The client side of the control socket.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::sync::thread::spawn_named;
use serde::de::DeserializeOwned;

use super::messages::{EventInfo, JobProgress, MountInfo, PoolInfo, ProcessInfo};
use super::{
    ANSWER_BYTES_MAX, Answer, Envelope, RAW_BYTES_MAX, Request, VERSION, peer, read_line, run_dir,
};
use crate::error::{Failure, Result};
use crate::{discover, pools};

/// Time limit for the answer to [`Request::Hello`].
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a daemon that closes the connection is asked, and the pause between.
const HELLO_ATTEMPTS: u32 = 20;
const HELLO_PAUSE: Duration = Duration::from_millis(100);

/// Interval at which a waiting command checks its stop flag.
const STOP_PERIOD: Duration = Duration::from_millis(50);

/// A daemon as seen by a command.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    socket: PathBuf,
    pub(crate) info: ProcessInfo,
}

/// A daemon that does not answer. Its pools are not known.
pub(crate) struct SilentDaemon {
    /// `None` if the run directory cannot be read: there may be daemons.
    pub(crate) pid: Option<u32>,
    /// Why it does not answer.
    pub(crate) failure: Failure,
}

/// The daemons of this user.
#[derive(Default)]
pub(crate) struct Daemons {
    pub(crate) answering: Vec<Process>,
    pub(crate) silent: Vec<SilentDaemon>,
}

impl Daemons {
    /// # Errors
    /// If a daemon does not answer: it may have what was not found.
    pub(crate) fn check_all_answer(mut self) -> Result<()> {
        match self.silent.is_empty() {
            true => Ok(()),
            false => Err(self.silent.swap_remove(0).failure),
        }
    }
}

/// All daemons of this user. Sockets of dead processes are removed.
pub(crate) fn daemons() -> Daemons {
    let mut found = Daemons::default();
    let sockets = match run_dir::sockets() {
        Ok(sockets) => sockets,
        Err(failure) => {
            return Daemons { silent: vec![SilentDaemon { pid: None, failure }], ..found };
        }
    };
    for (pid, socket) in sockets {
        let mut is_silent = |failure| {
            found.silent.push(SilentDaemon { pid: Some(pid), failure });
        };
        match greet(pid, &socket) {
            Ok(Outcome::Answer(info)) => found.answering.push(Process { socket, info }),
            // A new process with the same id may be about to listen: remove the socket only if no
            // such process exists.
            Ok(Outcome::NoListener) if !is_alive(pid) => {
                let _ = std::fs::remove_file(&socket);
            }
            Ok(Outcome::Closed) if is_alive(pid) => is_silent(hung_up(pid)),
            Ok(Outcome::Busy(why)) => is_silent(busy(pid, &why)),
            Ok(Outcome::NoListener | Outcome::Closed) => {}
            Err(error) => is_silent(error.doing(format_args!("daemon {pid}"))),
        }
    }
    found
}

/// Asks a daemon who it is. One that is about to end may close the connection without an answer
/// before it closes its socket, so that answer counts only if it is repeated. So does that of one
/// that serves too many commands.
fn greet(pid: u32, socket: &Path) -> Result<Outcome<ProcessInfo>> {
    let mut answer = Ok(Outcome::Closed);
    for attempt in 0..HELLO_ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(HELLO_PAUSE);
        }
        answer = ask_at(socket, &Request::Hello, Some(HELLO_TIMEOUT), &mut |_| {});
        if !matches!(answer, Ok(Outcome::Closed | Outcome::Busy(_))) || !is_alive(pid) {
            break;
        }
    }
    answer
}

/// The daemons of this user that answer.
pub(crate) fn processes() -> Vec<Process> {
    daemons().answering
}

/// The process that has a device open, and its pool.
pub(crate) fn holder_of(device: &Path) -> Option<(u32, PoolInfo)> {
    let me = std::process::id();
    processes().into_iter().filter(|process| process.info.pid != me).find_map(|process| {
        let has = |pool: &&PoolInfo| pool.devices.iter().any(|path| path == device);
        let pool = process.info.pools.iter().find(has)?;
        Some((process.info.pid, pool.clone()))
    })
}

/// The process that has the pool with that guid imported, possibly this one, and the pool.
pub(crate) fn holder_of_pool(guid: u64) -> Option<(u32, PoolInfo)> {
    processes().into_iter().find_map(|process| {
        let pool = process.info.pools.iter().find(|pool| pool.guid == guid)?;
        Some((process.info.pid, pool.clone()))
    })
}

/// The pool that a command works on.
pub(crate) enum Target {
    /// A daemon has the pool imported.
    InUse { process: Box<Process>, pool: PoolInfo },
    /// No daemon of this user has it: paths of its devices.
    Paths(Vec<PathBuf>),
}

/// Finds a pool by path, name or guid.
///
/// # Errors
/// If no pool has that name, or several have; for a name also if a daemon that may have
/// the pool does not answer.
pub(crate) fn find(spec: &str) -> Result<Target> {
    find_in(spec, &[PathBuf::from(".")])
}

/// As [`find`]; looks for a pool that is not imported on block devices and in these folders.
///
/// # Errors
/// As [`find`].
pub(crate) fn find_in(spec: &str, folders: &[PathBuf]) -> Result<Target> {
    let daemons = daemons();
    let in_use = || {
        daemons
            .answering
            .iter()
            .flat_map(|process| process.info.pools.iter().map(move |pool| (process, pool)))
    };
    if let Some(paths) = pools::paths_of(spec) {
        let canonical = pools::absolute(&paths)?;
        let has = |pool: &PoolInfo| canonical.iter().any(|path| pool.devices.contains(path));
        return Ok(match in_use().find(|(_, pool)| has(pool)) {
            Some((process, pool)) => {
                Target::InUse { process: Box::new(process.clone()), pool: pool.clone() }
            }
            None => Target::Paths(canonical),
        });
    }
    let is_called = |pool: &PoolInfo| pool.name == spec || format!("{:016x}", pool.guid) == spec;
    let named: Vec<_> = in_use().filter(|(_, pool)| is_called(pool)).collect();
    match named[..] {
        [(process, pool)] => {
            Ok(Target::InUse { process: Box::new(process.clone()), pool: pool.clone() })
        }
        [] if !daemons.silent.is_empty() => Err(not_answering(daemons, spec)),
        [] => match discover::named(spec, folders)? {
            Some(paths) => Ok(Target::Paths(paths)),
            None => Err(Failure::new(format!(
                "{spec}: no running forebay has a pool of that name, and no such file exists; `forebay list` shows imported \
                 pools, `forebay import` those on block devices and in this folder, others are named by the path of their \
                 device"
            ))),
        },
        _ => Err(Failure::new(format!(
            "{spec}: several imported pools have that name; give the path of a device instead"
        ))),
    }
}

/// The daemon of a pool, or all daemons.
///
/// # Errors
/// If there is no daemon, or the pool is not imported.
pub(crate) fn processes_of(pool: Option<&str>) -> Result<Vec<Process>> {
    let Some(spec) = pool else {
        let daemons = daemons();
        if !daemons.answering.is_empty() {
            return Ok(daemons.answering);
        }
        daemons.check_all_answer()?;
        return Err(Failure::new("no pools are in use; mount one with `forebay mount`"));
    };
    Ok(vec![pool_in_use(Some(spec))?.0])
}

/// A pool in use, and its daemon: the only one, if none is named.
///
/// # Errors
/// If the pool is not in use, or none is named and several are in use.
pub(crate) fn pool_in_use(pool: Option<&str>) -> Result<(Process, PoolInfo)> {
    if let Some(spec) = pool {
        return match find(spec)? {
            Target::InUse { process, pool } => Ok((*process, pool)),
            Target::Paths(_) => Err(Failure::new(format!(
                "{spec}: the pool is not in use; run `forebay mount` or `forebay import` first"
            ))),
        };
    }
    let processes = processes_of(None)?;
    let mut pools: Vec<(Process, PoolInfo)> = Vec::new();
    for process in processes {
        pools.extend(process.info.pools.iter().map(|pool| (process.clone(), pool.clone())));
    }
    if pools.len() > 1 {
        let names: Vec<&str> = pools.iter().map(|(_, pool)| &*pool.name).collect();
        let names = names.join(", ");
        return Err(Failure::usage(format!("several pools are in use: {names}; name one")));
    }
    pools.pop().ok_or_else(|| Failure::new("no pools are in use; mount one with `forebay mount`"))
}

/// The error of a daemon that does not answer and may have what `sought` names.
fn not_answering(daemons: Daemons, sought: &str) -> Failure {
    let silent = daemons.check_all_answer().err();
    silent.unwrap_or_else(|| Failure::new("not found")).doing(sought)
}

/// The daemon that serves a mount point, and its mount there: one that has left the mount table
/// only if no other one is there. `None` if nothing of this user is mounted there.
///
/// # Errors
/// If a mount of Forebay is there, and a daemon that may serve it does not answer.
pub(crate) fn served(at: &Path) -> Result<Option<(Process, MountInfo)>> {
    let daemons = daemons();
    // A mount whose daemon hangs cannot be resolved.
    let silent = !daemons.silent.is_empty();
    let canonical = match silent {
        true => std::path::absolute(at).ok(),
        false => at.canonicalize().ok(),
    };
    let Some(canonical) = canonical else { return Ok(None) };
    let mounts = daemons.answering.iter().flat_map(|process| {
        let mounts = process.info.pools.iter().flat_map(|pool| &pool.mounts);
        mounts.map(move |mount| (process, mount))
    });
    let there = mounts.filter(|(_, mount)| mount.at == canonical);
    if let Some((process, mount)) = there.min_by_key(|(_, mount)| mount.detached) {
        return Ok(Some((process.clone(), mount.clone())));
    }
    let is_mount = || forebay_fuse::mount_containing(&canonical);
    match silent && is_mount().is_ok_and(|found| found.as_ref() == Some(&canonical)) {
        true => Err(not_answering(daemons, &canonical.display().to_string())),
        false => Ok(None),
    }
}

/// A part of an answer before its final line.
pub(crate) enum Part<'a> {
    Progress(&'a JobProgress),
    Raw(&'a [u8]),
    Event(EventInfo),
}

/// Takes the parts of an answer. An error ends the conversation.
type Receive<'a> = &'a mut dyn FnMut(Part<'_>) -> Result<()>;

enum Outcome<T> {
    Answer(T),
    NoListener,
    /// The daemon has closed the connection without an answer.
    Closed,
    /// The daemon serves too many commands, in its words.
    Busy(String),
}

impl Process {
    /// Sends a request, and waits for its answer.
    ///
    /// # Errors
    /// If the request fails, or the daemon has ended.
    pub(crate) fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        self.ask_with(request, &mut |_| {})
    }

    /// Whether the process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        is_alive(self.info.pid)
    }

    /// Whether the daemon has the mounts that this process sees: both are in one mount namespace.
    /// True if the system does not say.
    pub(crate) fn shares_mounts(&self) -> bool {
        let Ok(Some(stream)) = connect(&self.socket, None) else { return true };
        let Some(daemon) = peer(&stream) else { return true };
        if daemon.pid == 0 {
            // It is in another container.
            return false;
        }
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        match (namespace("self"), namespace(&daemon.pid.to_string())) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        }
    }

    /// Sends a request, and passes its progress to `progress`.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(crate) fn ask_with<T: DeserializeOwned>(
        &self,
        request: &Request,
        progress: &mut dyn FnMut(&JobProgress),
    ) -> Result<T> {
        self.answer(ask_at(&self.socket, request, None, progress)?)
    }

    fn answer<T>(&self, outcome: Outcome<T>) -> Result<T> {
        match outcome {
            Outcome::Answer(answer) => Ok(answer),
            Outcome::Busy(why) => Err(busy(self.info.pid, &why)),
            Outcome::Closed if !self.ends() => Err(hung_up(self.info.pid)),
            // It may have ended because of the request.
            Outcome::Closed => Err(Failure { did_nothing: false, ..gone(self.info.pid) }),
            Outcome::NoListener => Err(gone(self.info.pid)),
        }
    }

    /// Whether the daemon, which has closed a connection without an answer, ends within some time.
    fn ends(&self) -> bool {
        for attempt in 0..HELLO_ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(HELLO_PAUSE);
            }
            // It removes its socket at its end.
            if !self.is_alive() || !self.socket.exists() {
                return true;
            }
        }
        false
    }
}

impl Process {
    /// Like [`ask_with`](Self::ask_with), but interrupts the job when `stop` is set. The answer is
    /// then the result so far.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(crate) fn ask_until<T: DeserializeOwned>(
        &self,
        request: &Request,
        progress: &mut dyn FnMut(&JobProgress),
        stop: &Arc<AtomicBool>,
    ) -> Result<T> {
        let mut receive = |part: Part<'_>| {
            if let Part::Progress(info) = part {
                progress(info);
            }
            Ok(())
        };
        self.receive_until(request, &mut receive, stop)
    }

    /// Like [`ask_until`](Self::ask_until), with all parts of the answer before the final line.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), and those of `receive`.
    pub(crate) fn receive_until<T: DeserializeOwned>(
        &self,
        request: &Request,
        receive: Receive<'_>,
        stop: &Arc<AtomicBool>,
    ) -> Result<T> {
        let stream = match connect(&self.socket, None)? {
            Some(stream) => stream,
            None => return Err(gone(self.info.pid)),
        };
        let over = Arc::new(AtomicBool::new(false));
        if let Ok(to_close) = stream.try_clone() {
            let (stop, over) = (Arc::clone(stop), Arc::clone(&over));
            let watch = move || {
                while !over.load(Ordering::Relaxed) {
                    if stop.load(Ordering::Relaxed) {
                        // Tells the daemon. It still sends the answer.
                        let _ = to_close.shutdown(Shutdown::Write);
                        return;
                    }
                    std::thread::sleep(STOP_PERIOD);
                }
            };
            // Without the thread only a second signal interrupts the command.
            let _ = spawn_named("forebay-stop", watch);
        }
        let outcome = converse(stream, &self.socket, request, receive);
        over.store(true, Ordering::Relaxed);
        self.answer(outcome?)
    }
}

/// Whether a process runs. One that has ended, and whose parent has not asked how, does not.
fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name, in parentheses, may contain any character.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, Some('Z' | 'X'))
}

/// Of a daemon that still runs.
fn hung_up(pid: u32) -> Failure {
    Failure::new(format!(
        "daemon {pid}: does not answer: it has closed the connection; try again, or see its log in the run directory"
    ))
}

fn busy(pid: u32, why: &str) -> Failure {
    Failure::new(format!("daemon {pid}: {why}"))
}

fn gone(pid: u32) -> Failure {
    Failure::ending(format!("process {pid} has ended meanwhile; try again"))
}

fn ask_at<T: DeserializeOwned>(
    socket: &Path,
    request: &Request,
    timeout: Option<Duration>,
    progress: &mut dyn FnMut(&JobProgress),
) -> Result<Outcome<T>> {
    let mut receive = |part: Part<'_>| {
        if let Part::Progress(info) = part {
            progress(info);
        }
        Ok(())
    };
    match connect(socket, timeout)? {
        Some(stream) => converse(stream, socket, request, &mut receive),
        None => Ok(Outcome::NoListener),
    }
}

fn failed(socket: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::new(
            "does not answer in time; check whether it is stopped (`kill -CONT` continues it), or waits for a device",
        ),
        _ => Failure::about(socket, "use the control socket", error),
    }
}

/// Connects to a socket; `None` if no process listens.
fn connect(socket: &Path, timeout: Option<Duration>) -> Result<Option<UnixStream>> {
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error)
            if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(failed(socket, &error)),
    };
    stream.set_read_timeout(timeout).map_err(|error| failed(socket, &error))?;
    stream.set_write_timeout(timeout).map_err(|error| failed(socket, &error))?;
    Ok(Some(stream))
}

fn converse<T: DeserializeOwned>(
    mut stream: UnixStream,
    socket: &Path,
    request: &Request,
    receive: Receive<'_>,
) -> Result<Outcome<T>> {
    let envelope = Envelope { version: VERSION, request: request.clone() };
    let mut line =
        serde_json::to_string(&envelope).map_err(|error| Failure::new(error.to_string()))?;
    line.push('\n');
    match stream.write_all(line.as_bytes()) {
        // It may have answered without reading the request.
        Err(error)
            if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            return Err(failed(socket, &error));
        }
        _ => {}
    }
    let mut answers = BufReader::new(stream);
    let malformed = |error: serde_json::Error| {
        Failure::new(format!(
            "{}: malformed answer: {error}; restart that daemon with this version of `forebay`",
            socket.display()
        ))
    };
    loop {
        let Some(line) = read_line(&mut answers, ANSWER_BYTES_MAX)? else {
            return Ok(Outcome::Closed);
        };
        match serde_json::from_str(&line).map_err(malformed)? {
            Answer::Progress(info) => receive(Part::Progress(&info))?,
            Answer::Event(event) => receive(Part::Event(event))?,
            Answer::Raw(bytes) if bytes <= RAW_BYTES_MAX => {
                let mut raw = Vec::new();
                let read = answers.by_ref().take(bytes).read_to_end(&mut raw);
                if read.map_err(|error| failed(socket, &error))? as u64 != bytes {
                    return Ok(Outcome::Closed);
                }
                receive(Part::Raw(&raw))?;
            }
            Answer::Raw(bytes) => {
                return Err(Failure::new(format!("the control socket: {bytes} bytes at once")));
            }
            Answer::Failed(message) => return Err(Failure::new(message)),
            Answer::Ending(message) => return Err(Failure::ending(message)),
            Answer::Busy(message) => return Ok(Outcome::Busy(message)),
            Answer::Done(value) => {
                return Ok(Outcome::Answer(serde_json::from_value(value).map_err(malformed)?));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the texts are.
    #[test]
    fn an_answer_says_whether_the_process_is_ending() {
        let text = "the pool is busy; try again";
        for failure in [Failure::new(text), Failure::ending(text)] {
            let ends = (failure.is_ending, failure.did_nothing);
            let (mine, mut theirs) = UnixStream::pair().unwrap();
            let mut line = serde_json::to_string(&Answer::from(failure)).unwrap();
            line.push('\n');
            theirs.write_all(line.as_bytes()).unwrap();
            let answer =
                converse::<()>(mine, Path::new("socket"), &Request::Hello, &mut |_| Ok(()));
            let failure = answer.err().expect("it failed");
            assert_eq!((failure.is_ending, failure.did_nothing), ends);
            assert_eq!(failure.message, text);
        }
        assert!(gone(1).is_ending);
        assert!(!hung_up(1).is_ending, "it runs: no other one shall be started beside it");
    }

    #[test]
    fn an_answer_is_read_though_the_request_was_not() {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mut line = serde_json::to_string(&Answer::Busy("is busy".to_owned())).unwrap();
        line.push('\n');
        (&theirs).write_all(line.as_bytes()).unwrap();
        drop(theirs);
        let outcome = converse::<()>(mine, Path::new("socket"), &Request::Hello, &mut |_| Ok(()));
        let Ok(Outcome::Busy(why)) = outcome else { panic!("it is busy") };
        assert_eq!(why, "is busy");
    }
}
