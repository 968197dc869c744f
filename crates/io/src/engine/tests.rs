//! The engines over a plain file, without decorators.
#![allow(clippy::disallowed_methods, reason = "tests start threads themselves")]

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::sync::atomic::AtomicUsize;
use forebay_base::sync::{Condvar, Mutex};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::*;
use crate::{ErrorKind, Op, Priority};

mod pressure;

pub(super) const FILE_BYTES: u64 = 4 << 20;
const SECTOR: u32 = 4096;

pub(super) fn arena() -> Arc<Arena> {
    Arena::new(ArenaConfig { limit_bytes: 64 << 20, huge_pages: HugePages::Never }).unwrap()
}

pub(super) fn open(path: &Path, direct: bool) -> OwnedFd {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options.open(path).unwrap().into()
}

pub(super) fn engine(path: &Path, choice: EngineChoice, queues: usize, direct: bool) -> FileEngine {
    let setup = Setup { choice, queues, threads: 0, tunables: Arc::new(IoTunables::default()) };
    engine_over(open(path, direct), path, direct, &setup)
}

fn engine_over(file: OwnedFd, path: &Path, direct: bool, setup: &Setup) -> FileEngine {
    let size_bytes = std::fs::metadata(path).unwrap().len();
    let info = DeviceInfo {
        name: path.display().to_string().into(),
        size_bytes,
        sector_bytes: SECTOR,
        physical_bytes: SECTOR,
        read_only: false,
        direct,
        buffered: None,
        block_device: false,
        engine: Engine::Memory,
        append_only: None,
    };
    start(file, info, setup).unwrap()
}

pub(super) fn filled(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let path = dir.path().join("medium");
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|i| (i / 512 % 251) as u8).collect();
    std::fs::write(&path, bytes).unwrap();
    path
}

fn expected(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|i| (i / 512 % 251) as u8).collect()
}

/// Whether this system allows rings. Reports why not, except in a run that is without them anyway.
fn has_rings() -> bool {
    let refused = std::env::var_os("FOREBAY_TEST_REFUSE_IO_URING").is_some_and(|it| it == "1");
    match ring::probe() {
        Ok(()) => return true,
        Err(_) if refused => {}
        Err(why) => forebay_base::testing::skip("uring", why),
    }
    false
}

fn choices() -> impl Iterator<Item = EngineChoice> {
    let rings = has_rings().then_some(EngineChoice::IoUring);
    rings.into_iter().chain([EngineChoice::Threads])
}

fn on_both(test: impl Fn(&Path, &FileEngine)) {
    for choice in choices() {
        let dir = tempfile::tempdir().unwrap();
        let path = filled(&dir);
        test(&path, &engine(&path, choice, 2, false));
    }
}

fn alloc(arena: &Arena, len: usize) -> Buffer {
    arena.alloc(len).unwrap()
}

fn run(engine: &FileEngine, request: Request) -> crate::Completion {
    (engine as &dyn Device).run(request)
}

#[test]
fn reads_writes_flushes_and_discards() {
    let arena = arena();
    on_both(|path, engine| {
        for offset in [0, 4096, FILE_BYTES - 4096] {
            let completion = run(engine, Request::read(offset, alloc(&arena, 4096)));
            assert_eq!(&completion.into_buffer().unwrap()[..], expected(offset, 4096));
        }
        let mut buffer = alloc(&arena, 8192);
        buffer.fill(0xA5);
        run(engine, Request::write(8192, buffer)).result.unwrap();
        run(engine, Request::flush()).result.unwrap();
        assert_eq!(&std::fs::read(path).unwrap()[8192..16384], [0xA5; 8192]);
        run(engine, Request::discard(8192, 4096)).result.unwrap();
        let after = std::fs::read(path).unwrap();
        assert_eq!(after.len() as u64, FILE_BYTES);
        assert!(after[12288..16384].iter().all(|byte| *byte == 0xA5));
        assert_eq!(engine.health(), Health::Healthy);
    });
}

fn inline_flushes(engine: &FileEngine) -> u64 {
    let counters = engine.stats().counters;
    counters.iter().find(|(name, _, _)| *name == "inline_flushes").unwrap().2
}

#[test]
fn an_inline_flush_runs_on_the_submitting_thread() {
    on_both(|_, engine| {
        let here = std::thread::current().id();
        let (seen, end) = std::sync::mpsc::channel();
        let tell = move |done: crate::Completion| {
            seen.send((std::thread::current().id(), done.result.is_ok())).unwrap();
        };
        engine.submit(Request::flush().allow_inline().on_done(tell));
        assert_eq!(end.try_recv().unwrap(), (here, true));
        assert_eq!(inline_flushes(engine), 1);
        // Not without `allow_inline`.
        let (flush, pending) = Request::flush().pending();
        engine.submit(flush);
        pending.wait(engine).result.unwrap();
        assert_eq!(inline_flushes(engine), 1);
        // A closed device refuses it like any other request.
        engine.close();
        assert_eq!(run(engine, Request::flush()).result.unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn a_callback_runs_no_inline_flush() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(engine(&filled(&dir), EngineChoice::Auto, 2, false));
    let (seen, end) = std::sync::mpsc::channel();
    let again = Arc::clone(&engine);
    engine.submit(Request::flush().on_done(move |_| {
        let tell = move |done: crate::Completion| seen.send(done.result.is_ok()).unwrap();
        again.submit(Request::flush().allow_inline().on_done(tell));
    }));
    assert!(end.recv().unwrap());
    assert_eq!(inline_flushes(&engine), 0, "a callback must not block");
}

#[test]
fn many_threads_read_the_right_data() {
    let arena = arena();
    on_both(|_, engine| {
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let arena = &arena;
                scope.spawn(move || {
                    for i in 0..200u64 {
                        let offset = (thread * 977 + i * 31) % (FILE_BYTES / 4096) * 4096;
                        let done = run(engine, Request::read(offset, alloc(arena, 4096)));
                        assert_eq!(&done.into_buffer().unwrap()[..], expected(offset, 4096));
                    }
                });
            }
        });
        engine.close();
    });
}

/// Counts down to zero, which a thread can wait for.
struct Latch {
    left: Mutex<usize>,
    zero: Condvar,
}

impl Latch {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { left: Mutex::named("test-latch", count), zero: Condvar::new() })
    }

    fn down(&self) {
        *self.left.lock() -= 1;
        self.zero.notify_all();
    }

    fn wait(&self) {
        let mut left = self.left.lock();
        while *left > 0 {
            self.zero.wait(&mut left);
        }
    }
}

#[test]
fn requests_complete_although_no_thread_waits() {
    let arena = arena();
    on_both(|_, engine| {
        let count = 500;
        let latch = Latch::new(count);
        let mut requests = Vec::new();
        for i in 0..count {
            let offset = (i as u64 * 7 % (FILE_BYTES / 4096)) * 4096;
            let latch = Arc::clone(&latch);
            requests.push(Request::read(offset, alloc(&arena, 4096)).on_done(move |done| {
                assert_eq!(&done.into_buffer().unwrap()[..], expected(offset, 4096));
                latch.down();
            }));
        }
        engine.submit_all(&mut requests);
        latch.wait();
    });
}

#[test]
fn merged_requests_are_scattered_to_the_right_places() {
    let arena = arena();
    on_both(|path, engine| {
        let latch = Latch::new(256);
        let mut requests = Vec::new();
        for i in 0..256u64 {
            let latch = Arc::clone(&latch);
            let mut buffer = alloc(&arena, 4096);
            buffer.fill(i as u8);
            requests.push(Request::write(i * 4096, buffer).on_done(move |done| {
                done.result.unwrap();
                latch.down();
            }));
        }
        engine.submit_all(&mut requests);
        latch.wait();
        let content = std::fs::read(path).unwrap();
        for i in 0..256usize {
            assert!(content[i * 4096..][..4096].iter().all(|byte| *byte == i as u8), "{i}");
        }
        let count =
            |name| engine.stats().counters.iter().filter(|c| c.0 == name).map(|c| c.2).sum();
        let merged: u64 = count("merged");
        assert!(merged > 0, "256 adjacent writes at once, and none merged");
    });
}

#[test]
fn requests_outlive_the_threads_that_submit_them() {
    let arena = arena();
    on_both(|_, engine| {
        let latch = Latch::new(60);
        let failed = Arc::new(AtomicUsize::new(0));
        for i in 0..60u64 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (latch, failed) = (Arc::clone(&latch), Arc::clone(&failed));
                    let request = match i % 3 {
                        0 => Request::flush(),
                        1 => Request::write(i * 4096, alloc(&arena, 4096)),
                        _ => Request::read(i * 4096, alloc(&arena, 4096)),
                    };
                    engine.submit(request.on_done(move |done| {
                        if done.result.is_err() {
                            failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        latch.down();
                    }));
                });
            });
        }
        latch.wait();
        assert_eq!(failed.load(std::sync::atomic::Ordering::Relaxed), 0);
    });
}

#[test]
fn a_file_that_shrinks_gives_a_clear_error() {
    let arena = arena();
    on_both(|path, engine| {
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(10_000).unwrap();
        run(engine, Request::read(4096, alloc(&arena, 4096))).result.unwrap();
        for (offset, len) in [(8192, 4096), (4096, 16384), (1 << 20, 4096)] {
            let error = run(engine, Request::read(offset, alloc(&arena, len))).result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
            assert!(error.to_string().contains("earlier than when it was opened"), "{error}");
        }
        assert_eq!(engine.health(), Health::Gone);
    });
}

#[test]
fn a_close_waits_for_accepted_requests_and_refuses_later_ones() {
    let arena = arena();
    on_both(|_, engine| {
        let ended = Arc::new(AtomicUsize::new(0));
        for i in 0..300u64 {
            let ended = Arc::clone(&ended);
            engine.submit(Request::read(i * 4096, alloc(&arena, 4096)).on_done(move |done| {
                done.result.unwrap();
                ended.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }));
        }
        engine.close();
        assert_eq!(ended.load(std::sync::atomic::Ordering::Relaxed), 300);
        let error = run(engine, Request::read(0, alloc(&arena, 4096))).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        engine.close();
    });
}

#[test]
fn an_engine_can_be_dropped_by_a_callback_of_its_own() {
    let arena = arena();
    for choice in [EngineChoice::Auto, EngineChoice::Threads] {
        let dir = tempfile::tempdir().unwrap();
        let engine = Arc::new(engine(&filled(&dir), choice, 1, false));
        let latch = Latch::new(1);
        let (mine, down) = (Arc::clone(&engine), Arc::clone(&latch));
        let request = Request::read(0, alloc(&arena, 4096)).on_done(move |_| {
            drop(mine);
            down.down();
        });
        engine.submit(request);
        drop(engine);
        latch.wait();
    }
}

#[test]
fn chains_of_callbacks_keep_the_ring_busy() {
    fn next(engine: &Arc<FileEngine>, latch: &Arc<Latch>, buffer: Buffer, left: u64) {
        if left == 0 {
            latch.down();
            return;
        }
        let (again, latch) = (Arc::clone(engine), Arc::clone(latch));
        let offset = left * 7919 % (FILE_BYTES / 4096) * 4096;
        engine.submit(Request::read(offset, buffer).on_done(move |done| {
            let buffer = done.into_buffer().unwrap();
            assert_eq!(buffer[0], (offset / 512 % 251) as u8);
            next(&again, &latch, buffer, left - 1);
        }));
    }
    let arena = arena();
    for choice in [EngineChoice::Auto, EngineChoice::Threads] {
        let dir = tempfile::tempdir().unwrap();
        let engine = Arc::new(engine(&filled(&dir), choice, 1, false));
        let latch = Latch::new(16);
        for _ in 0..16 {
            next(&engine, &latch, alloc(&arena, 4096), 500);
        }
        latch.wait();
    }
}

#[test]
fn bad_requests_are_refused_by_name() {
    let arena = arena();
    on_both(|_, engine| {
        let wrong = [
            Request::read(1, alloc(&arena, 4096)),
            Request::read(0, alloc(&arena, 512)),
            Request::read(FILE_BYTES, alloc(&arena, 4096)),
            Request::discard(0, 0),
            Request::discard(u64::MAX - 4095, 4096),
        ];
        for request in wrong {
            let (op, text) = (request.op(), format!("{request:?}"));
            let error = run(engine, request).result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{text}");
            assert!(matches!(op, Op::Read | Op::Discard));
        }
        assert_eq!(engine.health(), Health::Healthy, "a bad request is not the device's fault");
    });
}

/// Makes the kernel refuse `io_uring_enter` to the calling thread from now on.
fn forbid_enter() {
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let rules = BTreeMap::from([(libc::SYS_io_uring_enter, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

#[test]
fn a_refusal_after_the_start_is_survived() {
    if !has_rings() {
        return;
    }
    let arena = arena();
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(&filled(&dir), EngineChoice::IoUring, 1, false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let latch = Latch::new(100);
            forbid_enter();
            for i in 0..100u64 {
                let latch = Arc::clone(&latch);
                engine.submit(Request::read(i * 8192, alloc(&arena, 4096)).on_done(move |done| {
                    assert_eq!(&done.into_buffer().unwrap()[..], expected(i * 8192, 4096));
                    latch.down();
                }));
                let completion = run(&engine, Request::read(i * 4096, alloc(&arena, 4096)));
                assert_eq!(&completion.into_buffer().unwrap()[..], expected(i * 4096, 4096));
            }
            latch.wait();
        });
    });
    let stats = engine.stats();
    assert!(matches!(stats.engine, Engine::Threads { why } if why.contains("refused")));
    run(&engine, Request::flush()).result.unwrap();
}

#[test]
fn queued_requests_can_be_raised_and_cancelled() {
    let arena = arena();
    on_both(|_, engine| {
        let mut handles = Vec::new();
        let mut ends = Vec::new();
        let mut requests = Vec::new();
        for i in 0..400u64 {
            let request = Request::read(i * 8192 % FILE_BYTES, alloc(&arena, 4096));
            let (request, handle) = request.with_priority(Priority::Scrub).raisable();
            let (request, pending) = request.pending();
            requests.push(request);
            handles.push(handle);
            ends.push(pending);
        }
        engine.submit_all(&mut requests);
        for (i, handle) in handles.iter().enumerate() {
            match i % 2 {
                0 => handle.cancel(),
                _ => handle.raise(Priority::SyncRead),
            }
        }
        for (i, end) in ends.into_iter().enumerate() {
            match end.wait(engine).result {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!((i % 2, error.kind()), (0, ErrorKind::Cancelled), "{error}");
                }
            }
        }
    });
}
