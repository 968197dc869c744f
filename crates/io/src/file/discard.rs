//! Discards of block devices, by the kernel's own call.
//!
//! The engines punch holes, which a block device executes as writes of zeros that may free space:
//! not every device that supports discards has those. io_uring cannot discard before Linux 6.12. So
//! a thread that may be blocked ([`Request::allow_inline`]) makes the call itself.
//!
//! Locking: none.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use crate::device::DeviceInfo;
use crate::request::Request;

/// Discards a range of a block device. Takes two numbers of 64 bits: offset and length.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Whether an engine would accept the request.
pub(super) fn is_valid(info: &DeviceInfo, request: &Request) -> bool {
    let sector = u64::from(info.sector_bytes);
    let inside = request.end().is_some_and(|end| end <= info.size_bytes);
    let whole = request.offset().is_multiple_of(sector) && request.len().is_multiple_of(sector);
    !info.read_only && inside && whole && request.len() > 0
}

/// Discards the range of a valid request. Returns whether the device supports it.
pub(super) fn block_device(file: &OwnedFd, request: &Request) -> Result<bool, Errno> {
    let range = [request.offset(), request.len()];
    // SAFETY: the call reads the two numbers, as its definition in `linux/fs.h` says.
    let discard = unsafe { Setter::<BLKDISCARD, [u64; 2]>::new(range) };
    // SAFETY: the kernel writes no memory of this process.
    match unsafe { ioctl(file, discard) } {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOTTY) => Ok(false),
        Err(errno) => Err(errno),
    }
}
