//! Directories with damaged content.

use forebay_base::rng::SmallRng;
use proptest::prelude::*;

use super::super::memory::MemoryStore;
use super::super::{Cookie, Zap};
use super::buffer::{evicted, name};
use super::new;
use crate::ErrorKind;
use crate::format::ZapBlock;
use crate::wait::Wait;

/// Calls all operations. Errors are expected; panics are failures.
fn use_all(store: MemoryStore, rng: &mut SmallRng) {
    let Ok(zap) = Zap::open(store, Wait::Allowed) else {
        return;
    };
    let _ = zap.audit();
    let _ = zap.cursor(Cookie::START, Wait::Allowed).take(5000).filter(Result::is_ok).count();
    for _ in 0..50 {
        let name = rng.below(3000).to_string();
        let _ = zap.lookup(name.as_bytes(), Wait::Allowed);
        let _ = zap.insert(&(), format!("{name:0>100}").as_bytes(), b"v");
        let _ = zap.upsert(&(), name.as_bytes(), &[2; 20]);
        let _ = zap.remove(&(), name.as_bytes());
    }
    zap.store().commit();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_never_panics(seed in any::<u64>(), entries in 0..3000u32, flips in 1..8u32) {
        let zap = new(seed);
        let mut rng = SmallRng::from_seed(seed);
        for number in 0..entries {
            zap.insert(&(), number.to_string().as_bytes(), b"12345678").expect("it is new");
        }
        zap.store().commit();
        {
            let mut state = zap.store().state.lock();
            let mut ids: Vec<ZapBlock> = state.leaves.keys().copied().collect();
            ids.sort_unstable_by_key(|id| id.block());
            for _ in 0..flips {
                let which = rng.below(ids.len() as u64 * 2 + 1) as usize;
                let bytes = match ids.get(which) {
                    Some(id) => &mut state.leaves.get_mut(id).expect("it is there").bytes,
                    None => &mut state.inline,
                };
                // An empty directory has no content to damage.
                if bytes.is_empty() {
                    continue;
                }
                let among = if rng.below(2) == 0 { 24.min(bytes.len()) } else { bytes.len() };
                bytes[rng.below(among as u64) as usize] ^= 1 << rng.below(8);
            }
        }
        use_all(zap.store().clone(), &mut rng);
    }

    #[test]
    fn random_headers_never_panic(seed in any::<u64>(), len in 0..=384usize, form in 0..4u8) {
        let store = MemoryStore::with_inline_capacity(384);
        let mut rng = SmallRng::from_seed(seed);
        let mut inline = vec![0; len];
        rng.fill(&mut inline);
        if let Some(front) = inline.first_mut() {
            *front = form;
        }
        store.state.lock().inline = inline;
        use_all(store, &mut rng);
    }
}

#[test]
fn misplaced_leaves_are_reported() {
    let zap = new(1);
    for number in 0..5000 {
        zap.insert(&(), number.to_string().as_bytes(), b"12345678").expect("it is new");
    }
    zap.store().commit();
    {
        let mut state = zap.store().state.lock();
        let one = state.leaves.remove(&ZapBlock::Leaf(1)).expect("it is there");
        let two = state.leaves.insert(ZapBlock::Leaf(2), one).expect("it is there");
        state.leaves.insert(ZapBlock::Leaf(1), two);
    }
    let zap = Zap::open(zap.store().clone(), Wait::Allowed).expect("the header is right");
    let errors = (0..5000)
        .filter_map(|number| zap.lookup(number.to_string().as_bytes(), Wait::Allowed).err())
        .map(|error| (error.kind(), error.to_string()));
    let errors: Vec<_> = errors.collect();
    assert!(!errors.is_empty());
    for (kind, text) in errors {
        assert_eq!(kind, ErrorKind::Corrupt);
        assert!(text.contains("leaf 1: ") || text.contains("leaf 2: "), "{text}");
    }
}

#[test]
fn a_header_that_does_not_cover_all_hashes_is_rejected() {
    let zap = new(1);
    for number in 0..5000 {
        zap.insert(&(), number.to_string().as_bytes(), b"12345678").expect("it is new");
    }
    let store = zap.store().clone();
    store.state.lock().inline[24] ^= 1;
    let error = Zap::open(store, Wait::Allowed).err().expect("it is wrong");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

/// The memory for filters follows from the number of names.
#[test]
fn a_header_may_count_any_number_of_names() {
    let (_, store) = evicted(20_000);
    // The number of entries.
    store.state.lock().inline[16..24].fill(0xff);
    let zap = Zap::open(store, Wait::Allowed).expect("it is possible");
    assert_eq!(zap.len(), u64::MAX);
    assert!(zap.lookup(&name(30_000), Wait::Allowed).expect("it is possible").is_none());
    zap.insert(&(), &name(30_000), b"v").expect("it is new");
    assert!(zap.lookup(&name(30_000), Wait::Allowed).expect("it is possible").is_some());
}
