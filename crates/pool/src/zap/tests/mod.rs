//! Tests of whole directories, on an in-memory store.

mod ahead;
mod bench;
mod buffer;
mod cursor;
mod damage;
mod fill;
mod filter;
mod first_filters;
mod limits;
mod model;
mod presence;
mod sweep;
mod undo;
mod unreadable;

use super::memory::MemoryStore;
use super::{DirectoryForm, Zap};
use crate::wait::Wait;

fn new(seed: u64) -> Zap<MemoryStore> {
    Zap::open(MemoryStore::with_seed(seed), Wait::Allowed).expect("nothing fails in memory")
}

fn is_micro(zap: &Zap<MemoryStore>) -> bool {
    matches!(zap.write_state.state.lock().form, DirectoryForm::Micro(_))
}
