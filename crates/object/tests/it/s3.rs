//! The device on a real S3 server, whose URL is in `FOREBAY_TEST_S3`: `s3://bucket/prefix`, where
//! the prefix is empty. `AWS_*` variables say the rest.

use forebay_base::testing::skip;
use forebay_io::{Device, ErrorKind, Request};
use forebay_object::{MUTABLE_BYTES, ObjectDevice, WINDOW_BYTES, connect, destroy};

use super::{arena, counter, options};

const BLOCK: u64 = 128 << 10;

fn fill(bytes: &mut [u8], seed: u64) {
    let mut rng = forebay_base::rng::SmallRng::from_seed(seed);
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
}

#[test]
fn a_real_server_keeps_what_was_flushed_and_fences() {
    let Ok(url) = std::env::var("FOREBAY_TEST_S3") else {
        return skip("s3", "FOREBAY_TEST_S3 names no server");
    };
    let arena = arena();
    let store = connect(&url).unwrap();
    let device = ObjectDevice::create(store.clone(), &url, options("one")).unwrap();
    let blocks = 512;
    let pending: Vec<_> = (0..blocks)
        .map(|at| {
            let mut buffer = arena.alloc(BLOCK as usize).unwrap();
            fill(&mut buffer, at);
            let (request, pending) = Request::write(MUTABLE_BYTES + at * BLOCK, buffer).pending();
            device.submit(request);
            pending
        })
        .collect();
    for pending in pending {
        pending.wait(&*device).result.unwrap();
    }
    let mut label = arena.alloc(4096).unwrap();
    fill(&mut label, 1 << 40);
    device.run(Request::write(0, label)).result.unwrap();
    device.run(Request::flush()).result.unwrap();
    println!("{:?}", device.stats().counters);
    // At least; a window is sealed early if this thread is slow.
    let windows = blocks * BLOCK / WINDOW_BYTES;
    assert!((windows..4 * windows).contains(&counter(&device, "sealed_objects", "")));
    // It dies; another host takes over, and a third one.
    drop(device);
    let second = ObjectDevice::open(store.clone(), &url, options("two")).unwrap();
    let third = ObjectDevice::open(store.clone(), &url, options("three")).unwrap();
    let error = {
        let mut block = arena.alloc(4096).unwrap();
        fill(&mut block, 3);
        second.run(Request::write(1 << 20, block)).result.unwrap();
        second.run(Request::flush()).result.unwrap_err()
    };
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.to_string().contains("three has taken the store over"), "{error}");
    second.close();
    let mut expected = vec![0; BLOCK as usize];
    let reads: Vec<_> = (0..blocks)
        .map(|at| {
            let buffer = arena.alloc(BLOCK as usize).unwrap();
            let (request, pending) = Request::read(MUTABLE_BYTES + at * BLOCK, buffer).pending();
            third.submit(request);
            pending
        })
        .collect();
    for (at, pending) in (0..).zip(reads) {
        fill(&mut expected, at);
        assert!(pending.wait(&*third).into_buffer().unwrap()[..] == expected[..], "block {at}");
    }
    println!("{:?}", third.stats().counters);
    third.close();
    assert!(destroy(store.clone(), &url, options("three")).unwrap() > 0);
    ObjectDevice::create(store.clone(), &url, options("four")).unwrap().close();
    destroy(store, &url, options("four")).unwrap();
}
