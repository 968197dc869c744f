//! Bytes as objects of a store: each parser accepts them or returns an error. What it accepts is
//! the same after it was encoded again.

#![no_main]

use forebay_object::fuzzing::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    parse(bytes);
});
