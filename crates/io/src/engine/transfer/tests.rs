//! The meaning of the kernel's results.

use std::fs::File;

use super::{DeviceFile, MAX_RETRIES, NextStep, Transfer};
use crate::device::{DeviceInfo, Engine};
use crate::error::ErrorKind;
use crate::priority::Priority;
use crate::queue::{Operation, Requests};
use crate::request::{Op, Request};

const SIZE: u64 = 1 << 20;

fn device_file(size_now: u64) -> DeviceFile {
    let file = tempfile::tempfile().unwrap();
    file.set_len(size_now).unwrap();
    medium_of(file)
}

fn medium_of(file: File) -> DeviceFile {
    let info = DeviceInfo {
        name: "medium".into(),
        size_bytes: SIZE,
        sector_bytes: 512,
        physical_bytes: 512,
        read_only: false,
        direct: false,
        buffered: None,
        block_device: false,
        engine: Engine::IoUring,
        append_only: None,
    };
    DeviceFile::new(file.into(), &info)
}

/// A transfer without memory, which these tests do not need.
fn transfer(op: Op) -> Transfer {
    let (offset, len) = if op == Op::Flush { (0, 0) } else { (4096, 4096) };
    let requests = Requests::One(Request::discard(offset, len));
    Transfer::new(Operation { op, offset, len, priority: Priority::SyncWrite, requests })
}

/// The result of a transfer after the kernel returned `returned`.
fn end(op: Op, device_file: &DeviceFile, returned: Result<u64, i32>) -> Result<(), ErrorKind> {
    match transfer(op).step(device_file, returned) {
        NextStep::End(result) => result.map_err(|error| error.kind()),
        step => panic!("{op}: {step:?}"),
    }
}

#[test]
fn a_flush_succeeds_only_at_full_size() {
    assert_eq!(end(Op::Flush, &device_file(SIZE), Ok(0)), Ok(()));
    assert_eq!(end(Op::Flush, &device_file(SIZE + 1), Ok(0)), Ok(()));
    assert_eq!(end(Op::Flush, &device_file(SIZE - 1), Ok(0)), Err(ErrorKind::Gone));
}

#[test]
fn a_failed_or_short_transfer_on_a_truncated_file_is_gone() {
    let (whole, shrunk_size) = (device_file(SIZE), device_file(SIZE / 2));
    for (op, errno, kind) in [
        (Op::Write, libc::ENOSPC, ErrorKind::NoSpace),
        (Op::Discard, libc::EINVAL, ErrorKind::Device),
        (Op::Read, libc::EIO, ErrorKind::Device),
    ] {
        assert_eq!(end(op, &whole, Err(errno)), Err(kind));
        assert_eq!(end(op, &shrunk_size, Err(errno)), Err(ErrorKind::Gone));
    }
    for op in [Op::Read, Op::Write] {
        let mut short = transfer(op);
        assert!(matches!(short.step(&whole, Ok(1024)), NextStep::Continue));
        assert_eq!(short.done(), 1024);
        assert_eq!(end(op, &shrunk_size, Ok(1024)), Err(ErrorKind::Gone));
    }
    // Whatever the size is now, the file was shorter when it was read.
    assert_eq!(end(Op::Read, &whole, Ok(0)), Err(ErrorKind::Gone));
}

#[test]
fn a_medium_that_was_taken_out_is_gone() {
    let whole = device_file(SIZE);
    for errno in [libc::ENODEV, libc::ENXIO, libc::ENOMEDIUM, libc::ESTALE] {
        for op in Op::ALL {
            assert_eq!(end(op, &whole, Err(errno)), Err(ErrorKind::Gone));
        }
    }
}

#[test]
fn a_flush_is_repeated_only_if_it_was_not_executed() {
    let whole = device_file(SIZE);
    for errno in [libc::EINTR, libc::ECANCELED] {
        let mut flush = transfer(Op::Flush);
        for _ in 0..MAX_RETRIES {
            assert!(matches!(flush.step(&whole, Err(errno)), NextStep::Retry));
        }
        assert!(matches!(flush.step(&whole, Err(errno)), NextStep::End(Err(_))));
    }
    for errno in [libc::EAGAIN, libc::EFAULT, libc::EIO, libc::ENOSPC] {
        assert!(end(Op::Flush, &whole, Err(errno)).is_err());
    }
    assert!(matches!(transfer(Op::Write).step(&whole, Err(libc::EAGAIN)), NextStep::Retry));
}
