//! `--memory` bounds the resident memory of the process that serves a mount.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use crate::fixture::{Fixture, fuse, mounted};

const MIB: usize = 1 << 20;

/// The largest number of resident bytes that a process has had.
fn peak_bytes(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// Bytes that do not compress.
fn noise(seed: usize) -> Vec<u8> {
    let mut state = seed as u64 | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..MIB).map(|_| next()).collect()
}

/// Writes a file and reads it from beginning to end, which starts read-ahead.
fn stream(at: &Path, seed: usize, mib: usize) {
    let path = at.join(format!("stream-{seed}"));
    let (mut file, block) = (File::create(&path).unwrap(), noise(seed));
    (0..mib).for_each(|_| file.write_all(&block).unwrap());
    let (mut file, mut read, mut total) = (File::open(&path).unwrap(), vec![0; MIB], 0);
    loop {
        match file.read(&mut read).unwrap() {
            0 => break,
            bytes => total += bytes,
        }
    }
    assert_eq!(total, mib * MIB);
}

/// Overwrites parts of a file, reads others, and syncs.
fn scatter(at: &Path, mib: usize) {
    let path = at.join("scatter");
    let file = File::options().create(true).truncate(true).read(true).write(true).open(path);
    let (file, block, mut read) = (file.unwrap(), noise(99), vec![0; 64 << 10]);
    file.set_len((mib * MIB) as u64).unwrap();
    for step in 0..mib * 16 {
        let place = (step * 7919 % (mib * 256) * 4096) as u64;
        file.write_all_at(&block[..4096], place).unwrap();
        file.read_at(&mut read, place / 2).unwrap();
        if step % 500 == 0 {
            file.sync_data().unwrap();
        }
    }
}

/// Creates files, lists them, and removes a part of them.
fn names(at: &Path, seed: usize, count: usize) {
    let folder = at.join(format!("names-{seed}"));
    fs::create_dir(&folder).unwrap();
    let path = |name: usize| folder.join(format!("a-file-with-a-longer-name-{name}"));
    (0..count).for_each(|name| fs::write(path(name), vec![b'x'; name % 9000]).unwrap());
    (0..count).step_by(3).for_each(|name| fs::remove_file(path(name)).unwrap());
    let listed = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    assert_eq!(listed.count(), count - count.div_ceil(3));
}

fn stays_within(memory: &str, limit: u64, mib: usize) {
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "4G"]);
    let at = fixture.folder("at");
    let running = mounted(&fixture, &["mount", "tank.img", "at", "--memory", memory], &at);
    fixture.ok(&["l2", "add", "tank", "fast.img", "--size", "512M"]);
    thread::scope(|scope| {
        for seed in 0..2 {
            let at = &at;
            scope.spawn(move || stream(at, seed, mib));
            scope.spawn(move || names(at, seed, 10 * mib));
        }
        scope.spawn(|| scatter(&at, mib));
    });
    let peak = peak_bytes(running.pid());
    println!("--memory {memory}: {:.1} MiB at most", peak as f64 / MIB as f64);
    assert!(peak <= limit, "--memory {memory}: {peak} bytes were resident");
    running.signal(libc::SIGINT);
    let output = running.wait();
    assert!(output.status.success(), "{output:?}");
    fixture.ok(&["check", "tank.img"]);
}

#[test]
fn a_mount_stays_within_64_mib() {
    if fuse() {
        stays_within("64M", 64 << 20, 96);
    }
}

#[test]
fn a_mount_stays_within_400_mib() {
    if fuse() {
        stays_within("400M", 400 << 20, 250);
    }
}

#[test]
fn a_mount_refuses_more_memory_than_there_is() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("at");
    for background in [&["--daemon"][..], &[]] {
        let line = fixture
            .misused(&[&["mount", "tank.img", "at", "--memory", "1000T"], background].concat());
        assert!(line.contains("1000 TiB") && line.contains("give at most"), "{line}");
    }
}
