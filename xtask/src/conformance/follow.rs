//! A pool on an S3 store, MinIO, that one machine writes and two others follow.
//!
//! The writer rewrites files in place and replaces others, each as a whole. The followers read them
//! all the time: an open file must have one content, and a later one no older content. New files
//! must appear. A file that the writer deletes stays as it was for those who have it open, a
//! directory is `ESTALE`. A takeover by another machine goes unnoticed. No other error may occur.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::fixture::{Fixture, TestMount};
use super::minio::{BUCKET, Minio};
use super::object_store::{create, status, wait_until};
use super::{Failure, Outcome, minio};

/// Below the bucket.
const PREFIX: &str = "followed";
/// The names of the other machines.
const READERS: [&str; 2] = ["reader-one", "reader-two"];
const HEIR: &str = "heir-machine";
/// Files that are rewritten in place, and files that are replaced.
const FILES: u64 = 4;
/// Bytes of a file: one write of them is one transaction.
const FILE_BYTES: usize = 64 << 10;
/// Bytes of a read.
const PIECE_BYTES: usize = 4096;
/// `ESTALE`.
const ESTALE: i32 = 116;

pub(super) fn run(fixture: &Fixture) -> Result<Outcome, Failure> {
    if let Some(skipped) = minio::missing() {
        return Ok(skipped);
    }
    let store = Minio::start(&fixture.target)?;
    let url = format!("s3://{BUCKET}/{PREFIX}");
    let on_store =
        |name: &str, host| fixture.on_store(name, &url, Minio::environment(store.address()), host);
    let mut writer = on_store("follow", None)?;
    create(&writer, &url)?;
    writer.mount(false)?;
    write_all(&writer.at, 0)?;
    let mut readers = Vec::new();
    for host in READERS {
        let mut reader = on_store(&format!("follow-{host}"), Some(host))?;
        wait_for_group(&writer)?;
        reader.mount_with(false, |command| {
            command.args(["--read-only", "--follow", "--follow-interval", "1"]);
        })?;
        readers.push(reader);
    }
    let seconds = if fixture.full { 300 } else { 30 };
    let done = load(&writer, &readers, Duration::from_secs(seconds))?;
    deletions(&writer, &readers)?;
    for reader in &readers {
        let status = status(reader)?;
        if !status.contains("writes it (epoch") || !status.contains(", pinned") {
            return Err(format!("the status does not say who is followed: {status}"));
        }
    }
    writer.kill();
    writer.clear()?;
    let mut heir = on_store("follow-heir", Some(HEIR))?;
    heir.mount_with(false, |command| {
        command.arg("--force");
    })?;
    appears(&heir, &readers, "heir")?;
    for reader in &readers {
        if !status(reader)?.contains(HEIR) {
            return Err("the status does not name the new owner".to_owned());
        }
    }
    for reader in &mut readers {
        reader.unmount()?;
    }
    let objects = store.objects();
    heir.end()?;
    if let Some(pin) = objects?.into_iter().find(|object| object.contains("/pins/")) {
        return Err(format!("after the followers ended, the bucket has {pin}"));
    }
    Ok(Outcome::Passed(done))
}

fn name_of(file: u64) -> String {
    let kind = if file < FILES { "rewritten" } else { "replaced" };
    format!("{kind}{file}")
}

/// Writes each file with a version: half of them in place, by one write.
fn write_all(at: &Path, version: u64) -> Result<(), Failure> {
    let content = version.to_le_bytes().repeat(FILE_BYTES / 8);
    for file in 0..2 * FILES {
        let path = at.join(name_of(file));
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        if file < FILES {
            let opened = File::options().write(true).create(true).truncate(false).open(&path);
            opened.and_then(|opened| opened.write_all_at(&content, 0)).map_err(failed)?;
        } else {
            let new = at.join("new");
            fs::write(&new, &content).and_then(|()| fs::rename(&new, &path)).map_err(failed)?;
        }
    }
    Ok(())
}

/// Returns once what was written so far is in a durable transaction group.
fn wait_for_group(writer: &TestMount) -> Result<(), Failure> {
    let txg = |text: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with("txg "))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let begun = txg(&status(writer)?).ok_or("the status has no transaction group")?;
    wait_until("no transaction group becomes durable", || {
        // Without changes there is no group.
        fs::write(writer.at.join("tick"), "tick").map_err(|error| format!("tick: {error}"))?;
        // A change that is not durable yet may be in the group after the next one.
        Ok(txg(&status(writer)?).is_some_and(|now| now > begun + 1))
    })
}

/// The writer writes, and each follower reads, for a time. Returns what was done.
fn load(writer: &TestMount, readers: &[TestMount], time: Duration) -> Result<String, Failure> {
    let (stop, reads, seen) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let failure = Mutex::new(None);
    let fail = |why: Failure| {
        failure.lock().unwrap_or_else(|error| error.into_inner()).get_or_insert(why);
        stop.store(true, Ordering::Relaxed);
    };
    let mut versions = 0;
    std::thread::scope(|scope| {
        for reader in readers {
            scope.spawn(|| {
                let mut newest = [0; 2 * FILES as usize];
                while !stop.load(Ordering::Relaxed) {
                    for (file, newest) in newest.iter_mut().enumerate() {
                        match read_whole(&reader.at.join(name_of(file as u64)), *newest) {
                            Ok(version) => *newest = version,
                            Err(why) => fail(format!("{why}{}", reader.tail())),
                        }
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
                seen.fetch_max(newest[0], Ordering::Relaxed);
            });
        }
        let until = Instant::now() + time;
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            versions += 1;
            if let Err(why) = write_all(&writer.at, versions) {
                fail(why);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    if let Some(why) = failure.into_inner().unwrap_or_else(|error| error.into_inner()) {
        return Err(why);
    }
    let (reads, seen) = (reads.into_inner(), seen.into_inner());
    if seen == 0 {
        return Err("no follower has seen a change".to_owned());
    }
    Ok(format!("{versions} versions of {} files, {reads} reads by followers", 2 * FILES))
}

/// Reads a file piece by piece. It must have one version, and none before `newest`.
fn read_whole(path: &Path, newest: u64) -> Result<u64, Failure> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(failed)?;
    let (mut version, mut total, mut piece) = (None, 0, [0; PIECE_BYTES]);
    loop {
        let count = file.read(&mut piece).map_err(failed)?;
        if count == 0 {
            break;
        }
        total += count;
        for word in piece[..count].chunks(8) {
            let word = word.try_into().map_or(u64::MAX, u64::from_le_bytes);
            if *version.get_or_insert(word) != word {
                return Err(format!("{} has versions {version:?} and {word}", path.display()));
            }
        }
    }
    match version {
        Some(version) if total == FILE_BYTES && version >= newest => Ok(version),
        _ => {
            let path = path.display();
            Err(format!("{path}: {total} bytes of version {version:?} after {newest}"))
        }
    }
}

/// A new file appears at all followers.
fn appears(writer: &TestMount, readers: &[TestMount], name: &str) -> Result<(), Failure> {
    fs::write(writer.at.join(name), name).map_err(|error| format!("{name}: {error}"))?;
    for reader in readers {
        wait_until(&format!("{name} does not appear"), || {
            // A file may be there a transaction group before its content.
            Ok(fs::read_to_string(reader.at.join(name)).is_ok_and(|text| text == name))
        })
        .map_err(|why| format!("{why}{}", reader.tail()))?;
    }
    Ok(())
}

/// What the writer deletes: an open file stays, a directory is stale.
fn deletions(writer: &TestMount, readers: &[TestMount]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| format!("deletions: {error}");
    let content: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::create_dir(writer.at.join("directory")).map_err(failed)?;
    fs::write(writer.at.join("victim"), &content).map_err(failed)?;
    wait_for_group(writer)?;
    appears(writer, readers, "before")?;
    let open = |reader: &TestMount, name| File::open(reader.at.join(name)).map_err(failed);
    let mut opened = Vec::new();
    for reader in readers {
        opened.push((open(reader, "victim")?, open(reader, "directory")?));
    }
    fs::remove_dir(writer.at.join("directory")).map_err(failed)?;
    fs::remove_file(writer.at.join("victim")).map_err(failed)?;
    for (reader, (mut file, directory)) in readers.iter().zip(opened) {
        for name in ["victim", "directory"] {
            let path = reader.at.join(name);
            wait_until(&format!("{name} does not go"), || Ok(!path.exists()))?;
        }
        let mut read = Vec::new();
        file.read_to_end(&mut read).map_err(failed)?;
        if read != content {
            return Err("an open file has changed after it was deleted".to_owned());
        }
        // The kernel knows its attributes for a moment.
        wait_until("a deleted directory is not stale", || match directory.metadata() {
            Ok(_) => Ok(false),
            Err(error) if error.raw_os_error() == Some(ESTALE) => Ok(true),
            Err(error) => Err(failed(error)),
        })?;
    }
    Ok(())
}
