//! Objects against a naive model: a vector of bytes.

use forebay_base::rng::SmallRng;
use forebay_base::testing;
use forebay_cache::Class;
use forebay_pool::{Dataset, Object, Pool};

use crate::common::{MIB, cache, check, create, dataset, import, memory};

const SIZE_MAX: u64 = 300_000;

struct Model {
    object: Object,
    bytes: Vec<u8>,
}

impl Model {
    fn step(&mut self, pool: &Pool, rng: &mut SmallRng) {
        let tx = pool.begin().unwrap();
        let at = rng.below(SIZE_MAX);
        match rng.below(10) {
            0 => {
                self.object.truncate(&tx, at).unwrap();
                self.bytes.resize(at as usize, 0);
            }
            1 | 2 => {
                let len = rng.below(100_000);
                self.object.punch(&tx, at, len).unwrap();
                let end = ((at + len) as usize).min(self.bytes.len());
                if (at as usize) < end {
                    self.bytes[at as usize..end].fill(0);
                }
            }
            _ => {
                let len = if rng.below(4) == 0 { rng.below(60_000) } else { rng.below(600) };
                let mut data = vec![0; len as usize];
                rng.fill(&mut data);
                if rng.below(8) == 0 {
                    data.fill(0);
                }
                self.object.write(&tx, at, &data).unwrap();
                let end = (at + len) as usize;
                // Nothing does not make it longer.
                if len > 0 {
                    self.bytes.resize(end.max(self.bytes.len()), 0);
                    self.bytes[at as usize..end].copy_from_slice(&data);
                }
            }
        }
    }

    fn compare(&self, rng: &mut SmallRng) {
        assert_eq!(self.object.size(), self.bytes.len() as u64);
        let at = rng.below(SIZE_MAX) as usize;
        let mut out = vec![7; rng.below(50_000) as usize];
        let got = self.object.read(at as u64, &mut out).unwrap();
        let expected = self.bytes.get(at..).unwrap_or_default();
        assert_eq!(got, expected.len().min(out.len()));
        assert!(out[..got] == expected[..got], "content differs in {got} bytes from {at}");
    }
}

fn open_all(data: &Dataset, models: &mut [Model]) {
    for model in models {
        model.object = data.object(model.object.number()).unwrap();
    }
}

#[test]
fn objects_behave_like_vectors_of_bytes() {
    let mut rng = SmallRng::from_seed(testing::seed(0x5eed_0001));
    let (device, cache) = (memory(128 * MIB), cache(16 * MIB));
    let mut pool = create(&device, &cache);
    let mut data = dataset(&pool);
    let mut models = Vec::new();
    for shift in 12..18 {
        let tx = pool.begin().unwrap();
        let number = data.create_object_with(&tx, 1 << shift, &[]).unwrap();
        models.push(Model { object: data.object(number).unwrap(), bytes: Vec::new() });
    }
    for step in 0..3000 {
        let which = rng.below(models.len() as u64) as usize;
        models[which].step(&pool, &mut rng);
        models[which].compare(&mut rng);
        match rng.below(200) {
            0..=5 => pool.sync().unwrap(),
            6 => {
                cache.cache().clear();
            }
            7 => {
                check(&pool);
                pool.export().unwrap();
                pool = import(&device, &cache);
                data = pool.dataset("data").unwrap();
                open_all(&data, &mut models);
            }
            _ => {}
        }
        if step % 500 == 499 {
            models.iter().for_each(|model| model.compare(&mut rng));
        }
    }
    check(&pool);
}

#[test]
fn threads_create_write_and_destroy_while_txgs_are_committed() {
    let (device, cache) = (memory(256 * MIB), cache(64 * MIB));
    let pool = create(&device, &cache);
    pool.set_tunable("txg_timeout_ms", "5").unwrap();
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let directory = data.directory(data.create_directory(&tx, &[]).unwrap()).unwrap();
    drop(tx);
    let seed = testing::seed(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (pool, data, directory) = (&pool, &data, &directory);
            scope.spawn(move || {
                let mut rng = SmallRng::from_seed(seed ^ thread);
                let mut mine: Vec<(u64, Vec<u8>)> = Vec::new();
                for step in 0..1500u64 {
                    let tx = pool.begin().unwrap();
                    let name = |number: u64| format!("{thread}-{number}").into_bytes();
                    if rng.below(3) > 0 || mine.is_empty() {
                        let number = data.create_object(&tx, &step.to_le_bytes()).unwrap();
                        let content = vec![step as u8 | 1; rng.below(20_000) as usize];
                        data.object(number).unwrap().write(&tx, 0, &content).unwrap();
                        directory.insert(&tx, &name(number), &number.to_le_bytes()).unwrap();
                        mine.push((number, content));
                    } else {
                        let at = rng.below(mine.len() as u64) as usize;
                        let (number, _) = mine.swap_remove(at);
                        directory.remove(&tx, &name(number)).unwrap();
                        data.destroy(&tx, number).unwrap();
                    }
                    drop(tx);
                    let at = rng.below(mine.len().max(1) as u64) as usize;
                    if let Some((number, content)) = mine.get(at) {
                        let mut out = vec![0; content.len()];
                        let object = data.object(*number).unwrap();
                        assert_eq!(object.read(0, &mut out).unwrap(), content.len());
                        assert!(out == *content, "thread {thread}, object {number}");
                        assert!(directory.lookup(&name(*number)).unwrap().is_some());
                    }
                }
            });
        }
    });
    check(&pool);
    assert_eq!(directory.audit().unwrap().entries, directory.len());
    assert_eq!(data.object_count(), 1 + directory.len());
}

#[test]
fn new_versions_of_indirect_blocks_enter_mfu() {
    let (device, cache) = (memory(64 * MIB), cache(64 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    object.write(&tx, 0, &vec![1; 64 << 10]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    let frequent = || {
        let states = cache.cache().usage().states;
        let of = states.iter().filter(|s| s.class == Class::Metadata && s.state == "mfu");
        of.map(|state| state.bytes).sum::<u64>()
    };
    assert_eq!(frequent(), 0);
    let tx = pool.begin().unwrap();
    object.write(&tx, 0, &[2]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    assert!(frequent() > 0, "{}", cache.cache().stats());
}
