//! The device as its users see it, with its own threads.

mod s3;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::sync::Arc;
use forebay_base::sync::thread::spawn_named;
use forebay_io::{Device, ErrorKind, Health, Payload, Request};
use forebay_object::{MUTABLE_BYTES, MemoryStore, ObjectDevice, Options, WINDOW_BYTES};

fn arena() -> Arc<Arena> {
    Arena::new(ArenaConfig { limit_bytes: 256 << 20, huge_pages: HugePages::Never }).unwrap()
}

fn options(owner: &str) -> Options {
    Options { owner: owner.to_owned(), force: true, ..Options::default() }
}

fn counter(device: &ObjectDevice, name: &str, label: &str) -> u64 {
    let stats = device.stats();
    stats.counters.iter().find(|(n, l, _)| (*n, *l) == (name, label)).expect("it exists").2
}

#[test]
fn threads_write_flush_and_read_and_a_close_keeps_everything() {
    let (arena, store) = (arena(), MemoryStore::new());
    let device = ObjectDevice::create(store.clone(), "test", options("one")).unwrap();
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let (device, arena) = (Arc::clone(&device), Arc::clone(&arena));
            spawn_named("writer", move || {
                for round in 0..50 {
                    let at = MUTABLE_BYTES + (round * 8 + thread) * 16_384;
                    let mut buffer = arena.alloc(16_384).unwrap();
                    buffer.fill((round * 8 + thread) as u8);
                    let done = device.run(Request::write(at, buffer));
                    done.result.unwrap();
                    // The memory of the write comes back: it was lent, not copied.
                    assert!(matches!(done.payload, Some(Payload::Owned(_))));
                    if round % 10 == 0 {
                        device.run(Request::flush()).result.unwrap();
                    }
                    let read = device.run(Request::read(at, arena.alloc(16_384).unwrap()));
                    let read = read.into_buffer().unwrap();
                    assert!(read.iter().all(|byte| *byte == (round * 8 + thread) as u8));
                }
            })
            .unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let epoch = device.state().epoch;
    device.close();
    device.close();
    let closed = device.run(Request::flush()).result.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);

    let again = ObjectDevice::open(store, "test", options("two")).unwrap();
    assert_eq!(again.state().epoch, epoch + 1);
    let end = MUTABLE_BYTES + 400 * 16_384;
    assert!(again.info().append_only.unwrap().next_unused >= end);
    for at in 0..400 {
        let read = Request::read(MUTABLE_BYTES + at * 16_384, arena.alloc(16_384).unwrap());
        let read = again.run(read).into_buffer().unwrap();
        assert!(read.iter().all(|byte| *byte == at as u8));
    }
    again.close();
}

#[test]
fn callbacks_may_submit_and_a_drop_is_a_crash() {
    let (arena, store) = (arena(), MemoryStore::new());
    let device = ObjectDevice::create(store.clone(), "test", options("one")).unwrap();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let chained = Arc::downgrade(&device);
    let buffer = arena.alloc(4096).unwrap();
    device.submit(Request::write(MUTABLE_BYTES, buffer).on_done(move |written| {
        written.result.unwrap();
        let flush = Request::flush().on_done(move |flushed| sender.send(flushed.result).unwrap());
        chained.upgrade().unwrap().submit(flush);
    }));
    receiver.blocking_recv().unwrap().unwrap();
    // Not flushed: it is gone after the drop. What was flushed is not.
    let mut label = arena.alloc(4096).unwrap();
    label.fill(9);
    device.run(Request::write(0, label)).result.unwrap();
    drop(device);
    let again = ObjectDevice::open(store, "test", options("two")).unwrap();
    let read = again.run(Request::read(0, arena.alloc(4096).unwrap())).into_buffer().unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
    again.run(Request::read(MUTABLE_BYTES, arena.alloc(4096).unwrap())).result.unwrap();
    again.close();
}

#[test]
fn a_write_of_a_window_is_one_put() {
    let (arena, store) = (arena(), MemoryStore::new());
    let device = ObjectDevice::create(store.clone(), "test", options("one")).unwrap();
    let before = counter(&device, "requests", "put");
    let pending: Vec<_> = (0..64)
        .map(|at| {
            let buffer = arena.alloc(128 << 10).unwrap();
            let (request, pending) =
                Request::write(MUTABLE_BYTES + at * (128 << 10), buffer).pending();
            device.submit(request);
            pending
        })
        .collect();
    for pending in pending {
        pending.wait(&*device).result.unwrap();
    }
    assert_eq!(counter(&device, "requests", "put") - before, 1);
    assert_eq!(device.state().stored_bytes, WINDOW_BYTES);
    assert_eq!(device.state().unpublished_bytes, WINDOW_BYTES);
    device.run(Request::flush()).result.unwrap();
    assert_eq!(device.state().unpublished_bytes, 0);
    device.close();
}

#[test]
fn a_read_of_what_a_new_owner_has_deleted_says_who_it_is() {
    let (arena, store) = (arena(), MemoryStore::new());
    let old = ObjectDevice::create(store.clone(), "test", options("old")).unwrap();
    old.run(Request::write(MUTABLE_BYTES, arena.alloc(4096).unwrap())).result.unwrap();
    old.run(Request::flush()).result.unwrap();
    let new = ObjectDevice::open(store.clone(), "test", options("new")).unwrap();
    let is_data = |(key, _): &(String, u64)| key.starts_with("data/");
    store.objects().into_iter().filter(is_data).for_each(|(key, _)| store.remove(&key));
    let read = old.run(Request::read(MUTABLE_BYTES, arena.alloc(4096).unwrap()));
    let error = read.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    assert!(error.to_string().contains("new has taken the store over"), "{error}");
    old.close();
    new.close();
}

#[test]
fn each_owner_has_a_session_of_its_own_and_knows_that_of_the_one_before() {
    let store = MemoryStore::new();
    let first = ObjectDevice::create(store.clone(), "test", options("one")).unwrap();
    let created = first.sessions().expect("it writes");
    assert_eq!(created.before, None);
    // As after a crash.
    let second = ObjectDevice::open(store.clone(), "test", options("one")).unwrap();
    let opened = second.sessions().expect("it writes");
    assert_eq!(opened.before, Some(created.own));
    assert_ne!(opened.own, created.own);
    let reader = ObjectDevice::open_read_only(store.clone(), "test", options("one")).unwrap();
    assert_eq!(reader.sessions(), None);
    [reader, second, first].iter().for_each(|device| device.close());
    let third = ObjectDevice::open(store, "test", options("one")).unwrap();
    assert_eq!(third.sessions().expect("it writes").before, Some(opened.own));
    third.close();
}

#[test]
fn a_fenced_device_is_gone() {
    let (arena, store) = (arena(), MemoryStore::new());
    let old = ObjectDevice::create(store.clone(), "test", options("old")).unwrap();
    let new = ObjectDevice::open(store.clone(), "test", options("new")).unwrap();
    old.run(Request::write(0, arena.alloc(4096).unwrap())).result.unwrap();
    let mut block = arena.alloc(4096).unwrap();
    block.fill(1);
    old.run(Request::write(0, block)).result.unwrap();
    let error = old.run(Request::flush()).result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.to_string().contains("new has taken the store over"), "{error}");
    assert_eq!(old.health(), Health::Gone);
    assert_eq!(old.state().fenced.unwrap().owner, "new");
    old.close();
    assert_eq!(new.health(), Health::Healthy);
    new.close();
    let removed = forebay_object::destroy(store.clone(), "test", options("new")).unwrap();
    assert!(removed > 0);
    assert!(store.objects().is_empty());
}
