//! Corruption: a device that was closed cleanly and has lost or changed some sectors since.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_io::record::Image;
use forebay_io::{Device, MemoryDevice, MemoryOptions, Request};
use forebay_l2::{L2, L2Options};

use crate::support::{Fixture, NumberCodec, arena, options};

const KEYS: u64 = 300;
const BYTES: u64 = 8 << 20;
const SECTOR: usize = 4096;

fn copy(image: &Image) -> Arc<dyn Device> {
    let options = MemoryOptions { sector_bytes: SECTOR as u32, ..MemoryOptions::default() };
    let device = MemoryDevice::new("corrupt", BYTES, &options).unwrap();
    image.write_to(&device, &arena()).unwrap();
    Arc::new(device)
}

fn small() -> L2Options {
    let options = L2Options { segment_bytes: Some(256 << 10), ..options() };
    options.tunables.set("batch_bytes", "64K").unwrap();
    options
}

/// A device with a history of overwrites and removals, and the newest version of each key.
fn history(seed: u64) -> (Image, BTreeMap<u64, u64>) {
    let device = copy(&Image::zero(BYTES, SECTOR as u32));
    let fixture = Fixture::create(&device, &small());
    let mut rng = SmallRng::from_seed(seed);
    let mut now = BTreeMap::new();
    for version in 1..4000 {
        let key = rng.below(KEYS);
        match rng.below(8) {
            0..5 => {
                fixture.insert(key, version, rng.below(3000) as usize);
                now.insert(key, version);
            }
            5 => {
                fixture.cache.remove(&key);
                now.remove(&key);
            }
            _ if rng.below(10) == 0 => fixture.spill(),
            _ => {}
        }
    }
    fixture.close();
    (Image::of(&*device, &arena()).unwrap(), now)
}

/// Changes some used sectors, but not the first, so that one label stays intact.
fn damage(device: &Arc<dyn Device>, image: &Image, rng: &mut SmallRng) {
    let used: Vec<u64> = image.sectors().map(|(offset, _)| offset).filter(|o| *o > 0).collect();
    for _ in 0..=rng.below(4) {
        let mut sector = arena().alloc(SECTOR).unwrap();
        let at = used[rng.below(used.len() as u64) as usize];
        image.read(at, &mut sector);
        match rng.below(4) {
            0 => sector.fill(0),
            1 => rng.fill(&mut sector),
            2 => sector[rng.below(SECTOR as u64) as usize] ^= 1 << rng.below(8),
            // The contents of another sector.
            _ => image.read(used[rng.below(used.len() as u64) as usize], &mut sector),
        }
        device.run(Request::write(at, sector)).result.unwrap();
    }
}

#[test]
fn corruption_never_returns_wrong_or_old_values() {
    let (image, now) = history(1);
    let mut rng = SmallRng::from_seed(forebay_base::testing::seed(2));
    let (mut found, mut damaged) = (0, 0);
    let images = if forebay_base::testing::full() { 1000 } else { 100 };
    for number in 0..images {
        println!("image {number}");
        let device = copy(&image);
        damage(&device, &image, &mut rng);
        // Twice: blocks voided by the first open must not return.
        for life in 0..2 {
            let Ok(l2) = L2::open(device.clone(), Arc::new(NumberCodec), &small()) else {
                panic!("one label is whole");
            };
            let fixture = Fixture::over(l2);
            for _ in 0..2 {
                for key in 0..KEYS {
                    let version = fixture.get(key).map(|value| value.version);
                    let right = now.get(&key).copied();
                    assert!(
                        version.is_none() || version == right,
                        "{key}: {version:?}, not {right:?}, in life {life}"
                    );
                    found += u64::from(version.is_some());
                }
                assert!(fixture.l2.wait_rebuilt());
                fixture.cache.clear();
            }
            damaged += fixture.l2.rebuild().damaged;
            fixture.close();
        }
    }
    println!("{found} found, {damaged} segments damaged");
    assert!(found > 0 && damaged > 0);
}
