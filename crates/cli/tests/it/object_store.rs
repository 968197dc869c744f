//! Pools on an object store, on the command line.

use std::path::Path;
use std::process::Output;

use crate::fixture::{Fixture, failed, texts, wait_until};
use crate::s3::S3Server;

const URL: &str = "s3://bucket/tank";

/// A host with a store.
struct Host<'a> {
    fixture: Fixture,
    server: &'a S3Server,
}

impl<'a> Host<'a> {
    fn new(server: &'a S3Server) -> Self {
        Self { fixture: Fixture::new(), server }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.fixture.command(arguments);
        command.envs(self.server.environment());
        command.output().expect("the program runs")
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{arguments:?}: {out}{err}");
        out
    }

    #[track_caller]
    fn fails(&self, arguments: &[&str]) -> String {
        failed(&self.run(arguments), crate::fixture::failure_code(arguments), arguments)
    }
}

fn kill(host: &Host<'_>) {
    let pid = host.fixture.processes()[0]["pid"].as_i64().expect("a pid") as i32;
    crate::fixture::signal(pid, libc::SIGKILL);
    wait_until("its end", || !Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_pool_on_a_store_is_created_used_killed_and_destroyed() {
    let server = S3Server::start();
    server.put("bucket/other");
    server.put("bucket/tanks/other");
    let host = Host::new(&server);
    let created =
        host.ok(&["create", "--name", "tank", "--object-store", URL, "--compression", "lz4"]);
    assert!(created.contains("mount it with `forebay mount s3://bucket/tank`"), "{created}");
    let again = host.fails(&["create", "--object-store", URL]);
    assert!(again.contains("is not empty"), "{again}");
    let folder = host.fixture.folder("mnt");
    host.ok(&["mount", URL, "mnt", "--daemon"]);
    std::fs::write(folder.join("kept"), vec![7; 3 << 20]).expect("written");
    let file = std::fs::File::open(folder.join("kept")).expect("there");
    file.sync_all().expect("an fsync");
    let status = host.ok(&["status", URL]);
    for wanted in ["store      s3://bucket/tank", "requests", " put (", "until all addresses"] {
        assert!(status.contains(wanted), "{wanted}: {status}");
    }
    let refused = host.fails(&["expand", "tank"]);
    assert!(refused.contains("grows by itself"), "{refused}");
    let used = host.fails(&["destroy", URL, "--yes"]);
    assert!(used.contains("in use"), "{used}");
    drop(file);

    // The process dies, and the pool comes back here.
    kill(&host);
    host.ok(&["umount", "mnt"]);
    host.ok(&["mount", URL, "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("kept")).expect("read"), vec![7; 3 << 20]);
    std::fs::remove_file(folder.join("kept")).expect("removed");
    host.ok(&["umount", "mnt"]);
    let checked = host.ok(&["check", URL]);
    assert!(checked.contains("no problems"), "{checked}");
    host.ok(&["scrub", URL]);
    host.ok(&["trim", URL]);
    let refused = host.fails(&["offline", URL, URL]);
    assert!(refused.contains("no side of a mirror"), "{refused}");

    let destroyed = host.ok(&["destroy", URL, "--yes"]);
    assert!(destroyed.contains("destroyed pool tank"), "{destroyed}");
    assert_eq!(server.keys(""), ["bucket/other", "bucket/tanks/other"]);
    let gone = host.fails(&["mount", URL, "mnt"]);
    assert!(gone.contains("holds no pool"), "{gone}");
}

#[test]
fn writes_go_on_once_the_store_is_back() {
    let server = S3Server::start();
    let host = Host::new(&server);
    host.ok(&["create", "--object-store", URL]);
    let folder = host.fixture.folder("mnt");
    host.ok(&["mount", URL, "mnt", "--daemon", "--memory", "96M"]);
    std::fs::write(folder.join("before"), vec![1; 1 << 20]).expect("written");
    server.set_away(true);
    // More than may be dirty, in another thread.
    let file = folder.join("meanwhile");
    let writer = std::thread::spawn(move || std::fs::write(file, vec![2; 64 << 20]));
    assert_eq!(std::fs::read(folder.join("before")).expect("in memory"), vec![1; 1 << 20]);
    wait_until("the outage in status", || {
        let output = host.run(&["status", URL]);
        let (text, _) = texts(&output);
        text.contains("degraded") && text.contains("has not answered")
    });
    assert!(!writer.is_finished(), "all of it fits in memory");
    server.set_away(false);
    writer.join().expect("no panic").expect("written");
    wait_until("health", || texts(&host.run(&["status", URL])).0.contains("health     online"));
    host.ok(&["umount", "mnt"]);
    host.ok(&["mount", URL, "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("meanwhile")).expect("read"), vec![2; 64 << 20]);
    host.ok(&["umount", "mnt"]);
}
