//! Writes under a set of roots, drains it, and handles a failing device.
//!
//! ```sh
//! cargo run -p forebay-io --example device_roots
//! ```

use std::error::Error;
use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, ErrorKind, FileDevice, Op, OpenOptions, Request, Roots};

const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u64 = 64;
/// The error number of a medium error.
const EIO: i32 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
    let file = Arc::new(FileDevice::open(folder.path().join("medium"), &options)?);
    println!("{} by {}", file.info().name, file.info().engine);

    // Devices stack. This one forwards requests until a rule applies.
    let device = Arc::new(FaultDevice::new(file, 1));
    let roots = Roots::new(device.clone(), 0);
    let arena = Arena::new(ArenaConfig { limit_bytes: 4 << 20, huge_pages: HugePages::Never })?;

    for n in 0..BLOCKS {
        let mut block = arena.alloc(BLOCK_BYTES as usize)?;
        block.fill(n as u8);
        roots.submit(Request::write(n * BLOCK_BYTES, block));
    }
    // Waits for the writes, and for requests that their callbacks would submit.
    let drained = roots.drain()?;
    println!("waited for {} requests", drained.waited_for);
    assert!(drained.failures.is_empty());

    let medium: &dyn Device = device.as_ref();
    medium.run(Request::flush()).result?; // Only now are they durable.
    let block = arena.alloc(BLOCK_BYTES as usize)?;
    let block = medium.run(Request::read(3 * BLOCK_BYTES, block)).into_buffer()?;
    assert!(block.iter().all(|&byte| byte == 3));

    // A drain reports each failure once.
    device.add(Rule::new(Fault::Error(EIO)).on(Op::Read).within(0..BLOCK_BYTES));
    for n in 0..2 {
        roots.submit(Request::read(n * BLOCK_BYTES, arena.alloc(BLOCK_BYTES as usize)?));
    }
    let failures = roots.drain()?.failures;
    for error in failures.first() {
        println!("{error}");
    }
    assert_eq!(failures.total(), 1);
    assert!(roots.drain()?.failures.is_empty());

    // A closed set refuses requests.
    roots.close();
    let (flush, pending) = Request::flush().pending();
    roots.submit(flush);
    let refused = pending.wait(medium).result.unwrap_err();
    println!("{refused}");
    assert_eq!((refused.kind(), roots.stats().refused), (ErrorKind::Closed, 1));
    medium.close();
    Ok(())
}
