//! Images of pools that a fuzzer changed: each is looked at, imported, checked, read, changed,
//! scrubbed and exported. That works or says why not; it does not panic, hang, or touch memory that
//! is not its own.
//!
//! The fuzzer writes a [`Script`]: which pool is changed, where, and how. Blocks that are changed
//! on purpose get the right checksum, so it comes to what is behind that.

#![no_main]

use std::sync::OnceLock;

use forebay_sim::corrupter::{Choices, Corrupter, Script};
use forebay_sim::fixture::{self, MIB};
use forebay_sim::hostile::{originals, try_everything};
use libfuzzer_sys::fuzz_target;

const CACHE_BYTES: u64 = 24 * MIB;

fuzz_target!(|script: &[u8]| {
    static ORIGINALS: OnceLock<Vec<Corrupter>> = OnceLock::new();
    let originals = ORIGINALS.get_or_init(originals);
    let mut choices = Script::new(script);
    let mut corrupter = originals[choices.below(originals.len() as u64) as usize].clone();
    corrupter.any(&mut choices);
    // What does not work says so.
    drop(try_everything(&corrupter, &fixture::cache(CACHE_BYTES), &mut choices));
});
