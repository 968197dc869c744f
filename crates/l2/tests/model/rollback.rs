//! Lookups concurrent with the rebuild of an L2 whose user was rolled back.

use forebay_base::model::check;
use forebay_cache::{Attributes, Begin, Cache, Reclaim, SecondaryCache};
use forebay_io::Device;
use forebay_l2::{L2, L2Options};

use crate::forget::{VersionCodec, options};
use crate::harness::{PageMapDevice, Pages};

const BYTES: u64 = 4 << 20;
const SEGMENT: u64 = 64 << 10;
/// The key, and its stamp.
const KEY: u64 = 1;

type Levels = (shuttle::sync::Arc<L2<u64, u64>>, Cache<u64, u64>);

fn over(l2: shuttle::sync::Arc<L2<u64, u64>>) -> Levels {
    let cache = Cache::builder()
        .capacity(1 << 20)
        .weigher(|_, _| 8)
        .seed(3)
        .reclaim(Reclaim::Inline)
        .secondary_cache(l2.clone())
        .build()
        .unwrap();
    (l2, cache)
}

/// Whether a lookup returns a value.
fn finds(cache: &Cache<u64, u64>) -> bool {
    match cache.begin(KEY, 1, Attributes::DATA).unwrap() {
        Begin::Hit(_) => true,
        Begin::InFlight(flight) => flight.wait().is_ok(),
        Begin::Vacant(guard) => {
            guard.withdraw();
            false
        }
    }
}

#[test]
fn no_lookup_returns_a_block_of_an_abandoned_history() {
    check(100, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let seen: shuttle::sync::Arc<dyn Device> = device;
        let codec = shuttle::sync::Arc::new(VersionCodec::default());
        let immutable = || L2Options { immutable_keys: true, ..options(SEGMENT) };
        let (l2, cache) = over(L2::create(seen.clone(), codec.clone(), &immutable()).unwrap());
        cache.insert(KEY, 7).unwrap();
        cache.offer_all(4, |candidates| l2.offer(candidates));
        l2.flush().unwrap();
        l2.close();
        cache.close();

        let rolled_back = L2Options { max_stamp: KEY - 1, ..immutable() };
        let (l2, cache) = over(L2::open(seen, codec, &rolled_back).unwrap());
        let cache = shuttle::sync::Arc::new(cache);
        let reader = {
            let cache = cache.clone();
            shuttle::thread::spawn(move || (0..4).any(|_| finds(&cache)))
        };
        assert!(!reader.join().unwrap(), "a block of the abandoned history was found");
        assert!(l2.wait_rebuilt());
        assert_eq!(l2.stats().count("rollbacks"), 1, "the device has the block");
        l2.close();
        cache.close();
        cache.audit();
    });
}
