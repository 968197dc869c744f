//! Whole directories, on a store in memory.

mod bench;
mod cursor;
mod damage;
mod fill;
mod twin;

use super::memory::MemoryStore;
use super::{Form, Zap};

fn new(seed: u64) -> Zap<MemoryStore> {
    Zap::open(MemoryStore::with_seed(seed)).expect("nothing fails in memory")
}

fn is_micro(zap: &Zap<MemoryStore>) -> bool {
    matches!(zap.changing.state.lock().form, Form::Micro(_))
}
