//! Data and holes, sizes and roots, against naive models.

use forebay_base::rng::SmallRng;
use forebay_pool::format::ObjectKind;
use forebay_pool::{DatasetSettings, ErrorKind, Object};

use crate::common::{MIB, cache, check, create, dataset, import, memory};

const RECORD: u64 = 4096;
const BLOCKS: u64 = 1500;

/// An object whose records are either holes or hold data that is not zero.
struct Model {
    object: Object,
    data: Vec<bool>,
    size: u64,
}

impl Model {
    fn seek(&self, from: u64, wanted: bool) -> Option<u64> {
        if from >= self.size {
            return None;
        }
        let end = self.size.div_ceil(RECORD);
        let found = (from / RECORD..end).find(|block| self.data[*block as usize] == wanted);
        match found {
            Some(block) => Some((block * RECORD).max(from)),
            None => (!wanted).then_some(self.size),
        }
    }

    /// Compares the holes of a range, in whole records.
    fn compare_holes(&self, from: u64, len: u64) {
        let (first, end) = (from / RECORD, (from + len).div_ceil(RECORD));
        let data = &self.data[first as usize..self.data.len().min(end as usize)];
        let filled = data.iter().filter(|data| **data).count() as u64;
        let holes = (end - first - filled) * RECORD;
        let found = self.object.hole_bytes(from, len).unwrap();
        assert_eq!(found, holes.min(len), "holes of {len} bytes from {from}");
    }

    fn compare(&self, from: u64) {
        assert_eq!(self.object.next_data(from).unwrap(), self.seek(from, true), "data from {from}");
        assert_eq!(
            self.object.next_hole(from).unwrap(),
            self.seek(from, false),
            "hole from {from}"
        );
    }
}

#[test]
fn data_and_holes_match_the_model() {
    let mut rng = SmallRng::from_seed(0x5ee4);
    let (device, cache) = (memory(128 * MIB), cache(16 * MIB));
    let mut pool = create(&device, &cache);
    let mut data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object_with(&tx, RECORD as u32, &[]).unwrap();
    drop(tx);
    let object = data.object(number).unwrap();
    let mut model = Model { object, data: vec![false; BLOCKS as usize], size: 0 };
    for step in 0..1500 {
        let tx = pool.begin().unwrap();
        let start = rng.below(BLOCKS);
        let most = if rng.below(10) == 0 { 700 } else { 20 };
        let end = (start + 1 + rng.below(most)).min(BLOCKS);
        let range = start as usize..end as usize;
        match rng.below(8) {
            0..=3 => {
                let content = vec![1; ((end - start) * RECORD - rng.below(RECORD)) as usize];
                model.object.write(&tx, start * RECORD, &content).unwrap();
                model.data[range].fill(true);
                model.size = model.size.max(start * RECORD + content.len() as u64);
            }
            4..=6 => {
                // Punch whole records only: a sync would turn a record that became all zeros into a
                // hole.
                let end = (model.size / RECORD).min(end);
                if end > start {
                    let len = (end - start) * RECORD;
                    model.object.punch(&tx, start * RECORD, len).unwrap();
                    model.data[start as usize..end as usize].fill(false);
                }
            }
            _ => {
                model.size = start * RECORD + rng.below(RECORD);
                model.object.truncate(&tx, model.size).unwrap();
                model.data[model.size.div_ceil(RECORD) as usize..].fill(false);
            }
        }
        drop(tx);
        for _ in 0..8 {
            model.compare(rng.below(BLOCKS * RECORD));
            model.compare_holes(rng.below(BLOCKS * RECORD), rng.below(2 * BLOCKS * RECORD));
        }
        model.compare_holes(0, u64::MAX >> 20);
        model.compare(0);
        model.compare(model.size);
        model.compare(model.size.saturating_sub(1));
        match rng.below(40) {
            0..=5 => pool.sync().unwrap(),
            6 => drop(cache.cache().clear()),
            _ => {}
        }
        if step % 500 == 499 {
            check(&pool);
            pool.export().unwrap();
            pool = import(&device, &cache);
            data = pool.dataset("data").unwrap();
            model.object = data.object(number).unwrap();
        }
    }
}

#[test]
fn large_holes_and_large_data_are_skipped() {
    let (device, cache) = (memory(64 * MIB), cache(16 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object_with(&tx, RECORD as u32, &[]).unwrap()).unwrap();
    let far = 1 << 40;
    object.write(&tx, far, &[1]).unwrap();
    object.write(&tx, 0, &vec![1; 512 * RECORD as usize]).unwrap();
    drop(tx);
    for _ in 0..2 {
        assert_eq!(object.hole_bytes(0, 1 << 60).unwrap(), (1 << 60) - 513 * RECORD);
        assert_eq!(object.next_hole(5).unwrap(), Some(512 * RECORD));
        assert_eq!(object.next_data(512 * RECORD + 7).unwrap(), Some(far));
        assert_eq!(object.next_hole(far).unwrap(), Some(far + 1));
        assert_eq!(object.next_data(far + 1).unwrap(), None);
        assert_eq!(object.next_hole(far + 1).unwrap(), None);
        assert_eq!(object.next_data(u64::MAX).unwrap(), None);
        pool.sync().unwrap();
    }
}

#[test]
fn sizes_are_reported_before_and_after_the_sync() {
    let (device, cache) = (memory(64 * MIB), cache(16 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let (one, two) =
        (data.create_object(&tx, &[]).unwrap(), data.create_directory(&tx, &[]).unwrap());
    let object = data.object(one).unwrap();
    assert_eq!(
        (object.usage().allocated_bytes, data.object_info(one).unwrap().usage.size_bytes),
        (0, 0)
    );
    object.write(&tx, 0, &vec![1; 100 * 8192]).unwrap();
    let estimate = object.usage().allocated_bytes;
    assert!((100 * 8192..110 * 8192).contains(&estimate), "{estimate}");
    // Overwriting adds nothing.
    object.write(&tx, 8192, &vec![2; 50 * 8192]).unwrap();
    assert_eq!(object.usage().allocated_bytes, estimate);
    drop(tx);
    pool.sync().unwrap();
    let allocated = object.usage().allocated_bytes;
    assert!((100 * 8192..110 * 8192).contains(&allocated), "{allocated}");
    let tx = pool.begin().unwrap();
    object.write(&tx, 8192, &vec![3; 50 * 8192]).unwrap();
    assert_eq!(object.usage().allocated_bytes, allocated);
    object.truncate(&tx, 0).unwrap();
    assert_eq!(object.usage().allocated_bytes, 0);
    object.write(&tx, 0, &[1]).unwrap();
    drop(tx);
    let info = data.object_info(one).unwrap();
    assert_eq!((info.kind, info.usage.size_bytes), (ObjectKind::Data, 1));
    assert_eq!(info.usage.allocated_bytes, object.usage().allocated_bytes);
    assert!((1..=8192).contains(&info.usage.allocated_bytes));
    drop(object);
    pool.sync().unwrap();
    let info = data.object_info(one).unwrap();
    assert_eq!(info.usage.size_bytes, 1);
    assert_eq!(info.usage.allocated_bytes, data.object(one).unwrap().usage().allocated_bytes);
    assert!((1..=8192).contains(&info.usage.allocated_bytes));
    let info = data.object_info(two).unwrap();
    assert_eq!(
        (info.kind, info.usage.size_bytes, info.usage.allocated_bytes),
        (ObjectKind::Zap, 0, 0)
    );
}

#[test]
fn a_dataset_keeps_the_root_object_that_was_set() {
    let (device, cache) = (memory(64 * MIB), cache(16 * MIB));
    let pool = create(&device, &cache);
    let data = pool.create_dataset("data", &DatasetSettings::default()).unwrap();
    assert_eq!((data.root_object(), data.flavour()), (0, 0));
    let tx = pool.begin().unwrap();
    assert_eq!(data.set_root(&tx, 99, 1).unwrap_err().kind(), ErrorKind::NotFound);
    let root = data.create_directory(&tx, &[]).unwrap();
    data.set_root(&tx, root, 7).unwrap();
    assert_eq!((data.root_object(), data.flavour()), (root, 7));
    drop(tx);
    pool.sync().unwrap();
    assert_eq!((data.root_object(), data.flavour()), (root, 7));
    drop(data);
    pool.export().unwrap();
    let pool = import(&device, &cache);
    let data = pool.dataset("data").unwrap();
    assert_eq!((data.root_object(), data.flavour()), (root, 7));
}
