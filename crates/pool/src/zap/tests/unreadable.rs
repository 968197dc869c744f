//! Directories with pages and leaves that cannot be read.

use std::collections::BTreeSet;

use super::super::Zap;
use super::super::memory::MemoryStore;
use super::buffer::{VALUE, buffered, evict_leaves, name, sweep_ends};
use super::limits::{is_page, set_readable, sizes, with_buffered};
use crate::format::ZapBlock;
use crate::wait::Wait;
use crate::{Error, ErrorKind};

#[test]
fn an_unreadable_page_hides_only_its_own_names() {
    let (zap, store, waiting) = with_buffered(20_000, 500);
    set_readable(&store, is_page, false);
    let lost = |number| {
        let error = zap.lookup(&name(number), Wait::Allowed).expect_err("nobody knows");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("buffer page"), "{error}");
    };
    for number in (0..20_000).step_by(100) {
        let found = zap.lookup(&name(number), Wait::Allowed).expect("its leaf has it");
        assert_eq!(found.as_deref(), Some(&VALUE[..]));
        evict_leaves(&store);
        zap.replace(&(), &name(number), &[8; 9]).expect("its leaf has it");
        zap.remove(&(), &name(number)).expect("its leaf has it");
        store.commit();
        evict_leaves(&store);
    }
    lost(waiting[0]);
    // It may be in the page.
    lost(50_000);
    zap.insert(&(), &name(waiting[1]), &VALUE).expect_err("nobody knows");
    zap.insert(&(), &name(50_001), &VALUE).expect_err("nobody knows");
    set_readable(&store, is_page, true);
    assert_eq!(zap.audit().expect("it is valid").entries, 20_300);
    for number in waiting {
        zap.lookup(&name(number), Wait::Allowed).expect("it is possible").expect("it exists");
    }
}

/// Moves names as the thread of a pool does, until none moves any more. Returns the first error.
fn move_all(zap: &Zap<MemoryStore>) -> Option<Error> {
    let mut first = None;
    loop {
        let mut batch = zap.start_merge(64, false);
        zap.load_merge(&mut batch, || false);
        while !batch.is_empty() {
            zap.finish_merge(&(), &mut batch).expect("it is possible");
        }
        let failed = batch.error.is_some();
        first = first.or(batch.error);
        if !batch.has_moved && !failed {
            return first;
        }
    }
}

/// Many buffered names, and a fourth of the pages or leaves that they need.
fn with_full_pages(
    of: impl Fn(ZapBlock) -> bool,
) -> (Zap<MemoryStore>, MemoryStore, BTreeSet<u64>) {
    let (zap, store, _) = with_buffered(40_000, 4500);
    let ids: BTreeSet<_> = {
        let state = store.state.lock();
        state.leaves.keys().filter(|id| of(**id)).map(|id| id.block()).collect()
    };
    (zap, store, ids.into_iter().step_by(4).collect())
}

#[test]
fn an_unreadable_block_stops_no_moves_of_others() {
    let kinds: [fn(ZapBlock) -> bool; 2] = [is_page, |id| matches!(id, ZapBlock::Leaf(_))];
    for (of, what) in kinds.into_iter().zip(["buffer page", "leaf"]) {
        let (zap, store, bad) = with_full_pages(of);
        let (pages, before) = (sizes(&zap).0, buffered(&zap));
        assert!(pages > 4 && before > 1000, "{pages} pages, {before} names");
        set_readable(&store, |id| bad.contains(&id.block()), false);
        let fetches = || {
            let fetched = &store.state.lock().fetched_blocks;
            fetched.iter().filter(|id| bad.contains(&id.block())).count()
        };
        let error = move_all(&zap).expect("a block cannot be read");
        assert!(error.to_string().contains(what), "{error}");
        // The rest of the buffer is below the level at which names move.
        let left = buffered(&zap);
        assert!(left < before * 3 / 4, "{left} of {before} names are left");
        // It is not read again before the pause is over.
        let tried = fetches();
        assert!(move_all(&zap).is_none());
        assert_eq!((buffered(&zap), fetches()), (left, tried));
        set_readable(&store, |_| true, true);
        assert!(move_all(&zap).is_none());
        assert_eq!(fetches(), tried, "{what}");
        store.state.lock().now_ns = 1 << 40;
        sweep_ends(&zap);
        assert_eq!(buffered(&zap), 0);
        store.commit();
        assert_eq!(zap.audit().expect("it is valid").entries, 44_500);
    }
}

/// Creates elsewhere do not wait for names that cannot move.
#[test]
fn names_in_unreadable_pages_slow_no_creates_down() {
    let (zap, store, _) = with_full_pages(is_page);
    set_readable(&store, is_page, false);
    move_all(&zap).expect("no page can be read");
    let before = store.state.lock().slowed;
    zap.pace(Wait::Allowed).expect("it is possible");
    assert_eq!(store.state.lock().slowed, before);
    set_readable(&store, |_| true, true);
    store.state.lock().now_ns = 1 << 40;
    assert!(move_all(&zap).is_none());
    assert!(buffered(&zap) < 700, "they are tried again");
}
