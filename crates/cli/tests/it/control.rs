//! The control socket: who may use it, and what it makes of nonsense.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use crate::fixture::{Fixture, fuse, signal, texts, wait_until};

/// A place with a pool in the background, and the socket of its process.
fn with_process() -> (Fixture, PathBuf) {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let pid = fixture.processes()[0]["pid"].as_u64().unwrap();
    let socket = fixture.run_dir().join(format!("{pid}.sock"));
    (fixture, socket)
}

/// Sends bytes, and returns what comes until the end.
fn said_to(socket: &PathBuf, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    // It may have had enough before the end.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn only_its_user_can_reach_it() {
    let (fixture, socket) = with_process();
    let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(&fixture.run_dir()), 0o700);
    fixture.ok(&["export", "tank"]);
}

#[test]
fn nonsense_is_answered_and_does_no_harm() {
    let (fixture, socket) = with_process();
    let many_brackets = vec![b'['; 60_000];
    let endless = vec![b'x'; 1 << 20];
    let requests: [&[u8]; 8] = [
        b"",
        b"\n",
        b"{}\n",
        b"\xff\xfe\n",
        b"{\"version\":99,\"request\":\"hello\"}\n",
        b"{\"version\":1,\"request\":{\"export\":{\"pool\":7,\"lazy\":false}}}\n",
        &many_brackets,
        &endless,
    ];
    for request in requests {
        let answer = said_to(&socket, request);
        assert!(answer.is_empty() || answer.starts_with("{\"failed\":"), "{answer}");
    }
    let other = said_to(&socket, requests[4]);
    assert!(other.contains("version 99"), "{other}");
    // Many at once, who say nothing: nobody else is kept from it for long.
    let idle: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    drop(idle);
    wait_until("it serves again", || fixture.run(&["status", "tank"]).status.success());
    fixture.ok(&["export", "tank"]);
}

#[test]
fn sockets_of_the_dead_are_removed() {
    let (fixture, socket) = with_process();
    let pid = fixture.processes()[0]["pid"].as_i64().unwrap() as i32;
    signal(pid, libc::SIGKILL);
    wait_until("it is dead", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(socket.exists());
    assert!(fixture.processes().is_empty());
    assert!(!socket.exists());
    // What was killed is no export; the next one takes it.
    let shown = fixture.ok(&["status", "tank.img"]);
    assert!(shown.contains("not exported"), "{shown}");
    let said = fixture.ok(&["export", "tank.img"]);
    assert!(said.contains("after a crash"), "{said}");
    fixture.ok(&["check", "tank.img"]);
}

#[test]
fn a_socket_that_never_answers_stops_nobody() {
    let (fixture, _socket) = with_process();
    // Of this test itself, which lives and never accepts.
    let mute = fixture.run_dir().join(format!("{}.sock", std::process::id()));
    let _listener = UnixListener::bind(&mute).unwrap();
    let output = fixture.run(&["list"]);
    let (listed, said) = texts(&output);
    assert!(listed.contains("tank"), "{listed}");
    // Monitors learn that not all pools are known.
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("does not answer"), "{said}");
    std::fs::remove_file(&mute).unwrap();
    fixture.ok(&["export", "tank"]);
}

#[test]
fn a_daemon_that_ends_is_asked_until_its_socket_is_closed() {
    let (fixture, _socket) = with_process();
    // Of this test itself, which hangs up once and then listens no more.
    let ending = fixture.run_dir().join(format!("{}.sock", std::process::id()));
    let listener = UnixListener::bind(&ending).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(listener.accept().unwrap()));
        let listed = fixture.ok(&["list"]);
        assert!(listed.contains("tank"), "{listed}");
    });
    std::fs::remove_file(&ending).unwrap();
    fixture.ok(&["export", "tank"]);
}

/// A process that is stopped until this is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Self {
        signal(pid, libc::SIGSTOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, libc::SIGCONT);
    }
}

#[test]
fn a_daemon_that_does_not_answer_is_named() {
    let (fixture, _socket) = with_process();
    let pid = fixture.processes()[0]["pid"].as_i64().unwrap() as i32;
    let _stopped = Stopped::new(pid);
    // Each waits some seconds for an answer.
    std::thread::scope(|scope| {
        for arguments in [&["list"][..], &["list", "--json"], &["stats"], &["status", "tank"]] {
            let fixture = &fixture;
            scope.spawn(move || {
                let said = fixture.fails(arguments);
                let expected = format!("daemon {pid}: does not answer");
                assert!(said.contains(&expected), "{arguments:?}: {said}");
            });
        }
    });
}

/// It has the memory for all pools, and goes on when it is continued.
#[test]
fn no_daemon_is_started_beside_one_that_does_not_answer() {
    let (fixture, socket) = with_process();
    fixture.pool("two.img");
    fixture.folder("at");
    let pid = fixture.processes()[0]["pid"].as_i64().unwrap() as i32;
    let stopped = Stopped::new(pid);
    let mut commands = vec![&["import", "two.img"][..]];
    if fuse() {
        commands.push(&["mount", "two.img", "at", "--daemon"]);
    }
    for arguments in commands {
        let said = fixture.fails(arguments);
        let expected = format!("daemon {pid}: does not answer");
        assert!(said.contains(&expected) && said.contains("--separate"), "{said}");
        assert!(said.contains(&format!("end it (`kill {pid}`)")), "{said}");
        assert_eq!(sockets(&fixture), std::slice::from_ref(&socket));
    }
    drop(stopped);
    fixture.ok(&["import", "two.img"]);
    assert_eq!(sockets(&fixture), [socket]);
    fixture.ok(&["export", "tank"]);
    fixture.ok(&["export", "two"]);
}

/// A command that is killed while it starts a daemon holds the lock no longer: the next one may
/// have started another daemon.
#[test]
fn a_daemon_whose_starter_has_gone_ends_at_once() {
    let fixture = Fixture::new();
    let log = fixture.path("daemon.log");
    let mut daemon = fixture.command(&["serve-in-background", "--log-file", log.to_str().unwrap()]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    std::fs::create_dir(fixture.run_dir()).unwrap();
    std::fs::set_permissions(fixture.run_dir(), PermissionsExt::from_mode(0o700)).unwrap();
    let output = daemon.stdout(writer).output().unwrap();
    let (_, err) = texts(&output);
    let log = std::fs::read_to_string(log).unwrap();
    assert!(output.status.success(), "{err}{log}");
    assert!(log.contains("the command that started this daemon has ended"), "{log}");
    let left = std::fs::read_dir(fixture.run_dir()).unwrap().count();
    assert_eq!(left, 0, "its log and its socket are gone");
}

fn sockets(fixture: &Fixture) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixture.run_dir()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "sock")).collect()
}

/// The version of its protocol.
fn version(socket: &PathBuf) -> String {
    let refused = said_to(socket, b"{\"version\":0,\"request\":\"hello\"}\n");
    let (_, version) = refused.split_once("uses version ").expect(&refused);
    version.split(';').next().unwrap().to_owned()
}

/// A command that follows events, and that the process serves.
fn follower(socket: &PathBuf, version: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request =
        format!("{{\"version\":{version},\"request\":{{\"events\":{{\"follow\":true}}}}}}\n");
    stream.write_all(request.as_bytes()).unwrap();
    // The import is an event.
    let mut start = [0; 9];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"{\"event\":");
    stream
}

#[test]
fn a_daemon_with_many_commands_is_known_and_gets_no_other_one_beside_it() {
    let (fixture, socket) = with_process();
    fixture.pool("two.img");
    let version = version(&socket);
    // As many as it serves.
    let followers: Vec<UnixStream> = (0..32).map(|_| follower(&socket, &version)).collect();
    let listed = fixture.ok(&["list"]);
    assert!(listed.contains("tank"), "{listed}");
    for arguments in [&["status", "tank"][..], &["import", "two.img"]] {
        let said = fixture.fails(arguments);
        assert!(said.contains("as many commands as it can"), "{said}");
    }
    assert_eq!(sockets(&fixture), std::slice::from_ref(&socket));
    drop(followers);
    let imports = || fixture.run(&["import", "two.img"]).status.success();
    wait_until("it notices the end of commands", imports);
    assert_eq!(sockets(&fixture), [socket]);
    fixture.ok(&["export", "tank"]);
    fixture.ok(&["export", "two"]);
}

/// One that shuts down, which takes its time, accepts no pools.
#[test]
fn commands_that_meet_an_ending_daemon_share_the_next_one() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let at = fixture.folder("at");
    for image in ["tank.img", "one.img", "two.img", "three.img"] {
        fixture.pool(image);
    }
    fixture.ok(&["dataset", "create", "tank.img", "other"]);
    fixture.folder("beside");
    fixture.ok(&["mount", "tank.img", "at", "--daemon"]);
    let ending = fixture.processes()[0]["pid"].as_i64().unwrap();
    // The mount is busy for some seconds: until the shutdown closes the file.
    let _busy = std::fs::File::create(at.join("file")).unwrap();
    signal(ending as i32, libc::SIGTERM);
    wait_until("it ends", || {
        fixture.processes().iter().all(|process| process["ending"].as_bool() == Some(true))
    });
    // Its pool is still imported. A mount would end with it.
    let beside = ["mount", "tank.img", "beside", "--dataset", "other", "--daemon"];
    let (mounted, said) = texts(&fixture.run(&beside));
    assert!(!mounted.contains(&format!("served by process {ending},")), "{mounted}{said}");
    std::thread::scope(|scope| {
        for image in ["one.img", "two.img", "three.img"] {
            let fixture = &fixture;
            scope.spawn(move || fixture.ok(&["import", image]));
        }
    });
    let others: Vec<_> = fixture
        .processes()
        .into_iter()
        .filter(|process| process["pid"].as_i64() != Some(ending))
        .collect();
    assert_eq!(others.len(), 1, "{others:?}");
    // If the first one has ended by then, it also has the fourth.
    let pools = others[0]["pools"].as_array().unwrap();
    assert_eq!(pools.iter().filter(|pool| pool["name"] != "tank").count(), 3, "{pools:?}");
    for pool in ["one", "two", "three"] {
        fixture.ok(&["export", pool]);
    }
}

#[test]
fn a_run_directory_open_to_others_is_refused_and_stays_as_it_is() {
    let (fixture, _socket) = with_process();
    let mode = |mode| {
        std::fs::set_permissions(fixture.run_dir(), PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(0o755);
    for arguments in [&["list"][..], &["import", "tank.img"], &["status", "tank"]] {
        let said = fixture.fails(arguments);
        assert!(said.contains("mode 755") && said.contains("FOREBAY_RUN_DIR"), "{said}");
        let found = std::fs::metadata(fixture.run_dir()).unwrap().permissions().mode();
        assert_eq!(found & 0o777, 0o755, "{arguments:?}");
    }
    mode(0o700);
    fixture.ok(&["export", "tank"]);
}

#[test]
fn a_run_directory_of_somebody_else_is_refused() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    std::fs::write(fixture.path("no-folder"), b"").unwrap();
    let output = fixture
        .command(&["import", "tank.img"])
        .env("FOREBAY_RUN_DIR", fixture.path("no-folder"))
        .output();
    let said = crate::fixture::failed(&output.unwrap(), 1, &["import"]);
    assert!(said.contains("FOREBAY_RUN_DIR"), "{said}");
}

/// A mount that no other command can find does not tell the user to run one.
#[test]
fn a_mount_without_a_control_socket_says_how_it_ends() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("at");
    std::fs::create_dir_all(fixture.run_dir()).unwrap();
    std::fs::set_permissions(fixture.run_dir(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut running = fixture.start(&["mount", "tank.img", "at"]);
    let said = running.read_until("to unmount");
    assert!(said.contains("other commands, such as `forebay list`, do not see"), "{said}");
    assert!(said.contains("press Ctrl-C to unmount") && !said.contains("umount"), "{said}");
    running.signal(libc::SIGINT);
    let output = running.wait();
    assert!(output.status.success(), "{output:?}");
}
