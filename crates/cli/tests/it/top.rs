//! `forebay top`: text, JSON, and the screen in a pseudo terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::fixture::{Fixture, fuse, mounted, pause, signal, wait_until};

/// Reads and writes of a file in a mount, until dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(file: std::path::PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                let mut opened = File::create(&file).unwrap();
                opened.write_all(&[7; 40_000]).unwrap();
                opened.sync_all().unwrap();
                assert_eq!(std::fs::read(&file).unwrap().len(), 40_000);
            }
        };
        Self { stop, thread: Some(std::thread::spawn(work)) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
    }
}

fn find<'a>(list: &'a Value, key: &str, value: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|one| one[key] == value);
    found.unwrap_or_else(|| panic!("no {key} {value} in {list}"))
}

#[test]
fn figures_of_a_pool_under_load_are_printed() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let mut running = mounted(&fixture, &["mount", "tank.img", "at"], &at);
    let load = Load::start(at.join("file"));
    // Both samples see what happens between them, however slow the machine is.
    let mut printed = Value::Null;
    wait_until("each operation occurs within an interval", || {
        let json = fixture.ok(&["top", "tank", "--json", "--interval", "300ms"]);
        printed = serde_json::from_str::<Value>(&json).unwrap()[0].take();
        let operations = printed["datasets"][0]["operations"].as_array().unwrap();
        let busy = |name: &str| {
            let mut found = operations.iter().filter(|one| one["operation"] == name);
            found.any(|one| one["latency"]["interval"]["count"].as_u64() > Some(0))
        };
        ["read", "write", "fsync"].iter().all(|name| busy(name))
    });
    assert_eq!((&printed["pool"], &printed["health"]), (&"tank".into(), &"online".into()));
    let dataset = find(&printed["datasets"], "dataset", "main");
    assert!(dataset["read_bytes"]["per_second"].as_f64() > Some(0.0), "{dataset}");
    assert!(dataset["operations_total"]["total"].as_u64() > Some(0), "{dataset}");
    let fsync = &find(&dataset["operations"], "operation", "fsync")["latency"]["interval"];
    let ns = |name: &str| fsync[name].as_u64().unwrap();
    assert!(0 < ns("p50_ns") && ns("p50_ns") <= ns("p99_ns") && ns("p99_ns") <= ns("max_ns"));
    let write = find(&printed["devices"][0]["requests"], "request", "write");
    assert!(write["bytes"]["total"].as_u64() > Some(40_000), "{write}");
    assert!(write["latency"]["total"]["p99_ns"].as_u64() > Some(0), "{write}");
    let ratio = printed["cache"]["memory"]["total_ratio"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&ratio), "{ratio}");
    // Groups are committed while the load goes on.
    let text = {
        let mut text = String::new();
        wait_until("a group is durable", || {
            text = fixture.ok(&["top", "--once", "--interval", "0.2"]);
            text.contains("UBERBLOCK")
        });
        text
    };
    for part in ["pool tank: online", "DATASET", "fsync", "HITS", "mru", "tank.img", "flush"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    drop(load);
    running.signal(libc::SIGTERM);
    wait_until("it ends", || running.has_ended());
}

#[test]
fn without_a_terminal_or_pools_it_says_so() {
    let fixture = Fixture::new();
    for arguments in [&["top"][..], &["top", "--once"], &["top", "--json"]] {
        assert!(fixture.fails(arguments).contains("no pools are in use"));
    }
    fixture.pool("tank.img");
    assert!(fixture.fails(&["top", "tank.img"]).contains("the pool is not in use"));
    fixture.ok(&["import", "tank.img"]);
    assert!(fixture.misused(&["top"]).contains("use --once"));
    assert!(fixture.misused(&["top", "--interval", "1ms"]).contains("100ms to 60m"));
    fixture.ok(&["export", "tank"]);
}

/// The program in a pseudo terminal.
struct InTerminal {
    child: Child,
    /// The side of the user.
    user: File,
    /// Keeps the side of the program open, to look at its settings.
    program: OwnedFd,
    columns: u16,
}

fn settings(fd: &OwnedFd) -> [libc::tcflag_t; 4] {
    // SAFETY: all zeros are a valid value of the plain integers in it.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the call fills `settings`.
    assert_eq!(unsafe { libc::tcgetattr(fd.as_raw_fd(), &raw mut settings) }, 0);
    [settings.c_iflag, settings.c_oflag, settings.c_cflag, settings.c_lflag]
}

impl InTerminal {
    fn start(fixture: &Fixture, arguments: &[&str]) -> Self {
        // Not `openpty`: processes that other tests start would inherit its descriptors.
        let how = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the call takes integers.
        let user = unsafe { libc::posix_openpt(how) };
        assert!(user >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call has just opened it, and nothing else owns it.
        let user = unsafe { File::from_raw_fd(user) };
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let mut name = [0; 64];
        // SAFETY: the descriptor is open; the calls read `size` and fill `name`.
        let made = unsafe {
            libc::grantpt(user.as_raw_fd())
                | libc::unlockpt(user.as_raw_fd())
                | libc::ioctl(user.as_raw_fd(), libc::TIOCSWINSZ, &raw const size)
                | libc::ptsname_r(user.as_raw_fd(), name.as_mut_ptr(), name.len())
        };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: `ptsname_r` has ended the name with a zero.
        let name = unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) };
        let program = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(name.to_str().unwrap())
            .unwrap();
        let program = OwnedFd::from(program);
        let side = || program.try_clone().unwrap();
        let mut command = fixture.command(arguments);
        command.env("NO_COLOR", "1").env("TERM", "xterm");
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        Self { child, user, program, columns: 80 }
    }

    /// Makes the terminal larger again and again, so that all of it is drawn, until it has this
    /// text.
    fn draws(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        wait_until(text, || {
            let mut part = [0; 65536];
            while let Ok(read @ 1..) = self.user.read(&mut part) {
                seen.extend_from_slice(&part[..read]);
            }
            if String::from_utf8_lossy(&seen).contains(text) {
                return true;
            }
            self.resize();
            pause();
            false
        });
        String::from_utf8_lossy(&seen).into_owned()
    }

    fn resize(&mut self) {
        self.columns = if self.columns < 120 { self.columns + 1 } else { 80 };
        let size = libc::winsize { ws_row: 24, ws_col: self.columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open, and the call reads `size`.
        unsafe { libc::ioctl(self.user.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        // It is not the controlling terminal of the program, so the kernel sends no signal.
        signal(self.child.id() as i32, libc::SIGWINCH);
    }

    fn press(&mut self, keys: &[u8]) {
        self.user.write_all(keys).unwrap();
    }

    /// Waits for the end. What it wrote since it was last read.
    fn ended(&mut self) -> (ExitStatus, String) {
        let mut seen = Vec::new();
        let mut status = None;
        wait_until("it ends", || {
            let mut part = [0; 65536];
            while let Ok(read @ 1..) = self.user.read(&mut part) {
                seen.extend_from_slice(&part[..read]);
            }
            // The last part is read after the end.
            let ended = status.is_some();
            status = status.or(self.child.try_wait().unwrap());
            ended
        });
        (status.unwrap(), String::from_utf8_lossy(&seen).into_owned())
    }
}

impl Drop for InTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_screen_survives_its_daemon_and_restores_the_terminal() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let mut terminal = InTerminal::start(&fixture, &["top", "--interval", "100ms"]);
    let before = {
        let other = InTerminal::start(&fixture, &["--version"]);
        settings(&other.program)
    };
    terminal.draws("forebay top  tank  online");
    assert_ne!(settings(&terminal.program), before, "not raw");
    terminal.press(b"2");
    terminal.draws("ghost");
    terminal.press(b"?");
    terminal.draws(" Keys ");
    terminal.press(b"x");
    fixture.ok(&["export", "tank"]);
    terminal.draws("pool tank is gone for");
    fixture.ok(&["import", "tank.img"]);
    let pid = fixture.processes()[0]["pid"].to_string();
    terminal.draws(&format!("process {pid}"));
    terminal.press(b"q");
    let (status, last) = terminal.ended();
    assert!(status.success(), "{status}: {last}");
    assert!(last.contains("\x1b[?1049l") && last.contains("\x1b[?25h"), "{last:?}");
    assert_eq!(settings(&terminal.program), before);

    let mut killed = InTerminal::start(&fixture, &["top", "tank"]);
    killed.draws("forebay top  tank");
    signal(killed.child.id() as i32, libc::SIGTERM);
    let (status, last) = killed.ended();
    assert!(status.success(), "{status}: {last}");
    assert!(last.contains("\x1b[?1049l") && last.contains("\x1b[?25h"), "{last:?}");
    assert_eq!(settings(&killed.program), before);
    fixture.ok(&["export", "tank"]);
}

#[test]
fn a_key_is_seen_that_comes_together_with_a_new_size() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let mut terminal = InTerminal::start(&fixture, &["top", "tank"]);
    terminal.draws("forebay top  tank");
    for _ in 0..50 {
        for (key, page) in [(b"2", "ghost"), (b"4", "tank.img")] {
            terminal.resize();
            terminal.press(key);
            terminal.draws(page);
        }
    }
    terminal.press(b"q");
    assert!(terminal.ended().0.success());
    fixture.ok(&["export", "tank"]);
}

#[test]
fn it_ends_with_its_terminal() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let mut closed = InTerminal::start(&fixture, &["top", "tank"]);
    closed.draws("forebay top  tank");
    // It is not the session's leader, so no signal tells it.
    closed.user = File::open("/dev/null").unwrap();
    closed.program = closed.user.try_clone().unwrap().into();
    wait_until("it ends", || closed.child.try_wait().unwrap().is_some());
    fixture.ok(&["export", "tank"]);
}
