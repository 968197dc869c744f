//! Crashes at random moments of random work: no wrong bytes, no old value of a key that was overwritten or removed, and
//! what was complete and flushed is there again.
//!
//! Each image is opened, and work goes on at once, while the rebuild runs; then that life crashes too. `FOREBAY_FULL=1` looks at
//! ten times as many images; `FOREBAY_SEED` repeats one run.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_io::record::{Image, RecordDevice, RecordOptions};
use forebay_io::{Device, MemoryDevice, MemoryOptions};
use forebay_l2::{Level, LevelOptions};

use crate::support::{Numbers, World, arena, options};

const KEYS: u64 = 300;
const SECTOR_BYTES: u32 = 4096;

/// What was done with a key: when it began and ended, by position in the recording, and the version that it left.
struct Change {
    begun: usize,
    ended: usize,
    version: Option<u64>,
}

/// What is known of one life of a level.
#[derive(Default)]
struct Life {
    /// Versions that may have been there before.
    before: BTreeMap<u64, Vec<u64>>,
    changes: BTreeMap<u64, Vec<Change>>,
    /// From which position on that version of a key was flushed.
    durable: Vec<(usize, u64, u64)>,
}

impl Life {
    /// Versions of a key that a crash at `position` may leave.
    fn allowed(&self, key: u64, position: usize) -> Vec<u64> {
        let changes = self.changes.get(&key).map_or(&[][..], Vec::as_slice);
        let ended = changes.iter().rposition(|change| change.ended <= position);
        let mut allowed = match ended {
            Some(last) => changes[last].version.into_iter().collect(),
            None => self.before.get(&key).cloned().unwrap_or_default(),
        };
        let begun = changes[ended.map_or(0, |last| last + 1)..].iter();
        allowed.extend(begun.filter(|c| c.begun <= position).filter_map(|c| c.version));
        allowed
    }

    /// What must be there after a crash at `position`: flushed before, and not touched since.
    fn promised(&self, position: usize) -> BTreeMap<u64, u64> {
        let mut promised = BTreeMap::new();
        for &(at, key, version) in self.durable.iter().filter(|(at, ..)| *at <= position) {
            let changes = self.changes.get(&key).map_or(&[][..], Vec::as_slice);
            let touched =
                |c: &Change| c.begun <= position && c.ended > at && c.version != Some(version);
            if !changes.iter().any(touched) {
                promised.insert(key, version);
            }
        }
        promised
    }
}

/// A life that can be looked at afterwards.
struct Run {
    world: World,
    recorder: Arc<RecordDevice>,
    life: Life,
    /// The version in memory or on the level, if there is one.
    now: BTreeMap<u64, u64>,
    /// Of those, the versions that are in memory for sure, or were flushed; and those that were flushed.
    sure: BTreeMap<u64, u64>,
    spilled: BTreeMap<u64, u64>,
    next_version: u64,
}

impl Run {
    fn change(&mut self, key: u64, len: Option<usize>) {
        let begun = self.recorder.position();
        let version = len.map(|_| self.next_version);
        self.next_version += 1;
        match (version, len) {
            (Some(version), Some(len)) => self.world.insert(key, version, len),
            _ => drop(self.world.cache.remove(&key)),
        }
        let ended = self.recorder.position();
        self.life.changes.entry(key).or_default().push(Change { begun, ended, version });
        self.spilled.remove(&key);
        match version {
            Some(version) => {
                self.now.insert(key, version);
                self.sure.insert(key, version);
            }
            None => {
                self.now.remove(&key);
                self.sure.remove(&key);
            }
        }
    }

    fn flush(&mut self, all: bool) {
        if all {
            self.offer();
        }
        let offered = self.world.level.stats();
        self.world.level.flush().unwrap();
        assert_eq!(offered.count("refused"), self.world.level.stats().count("refused"));
        if all {
            let at = self.recorder.position();
            for (key, version) in &self.sure {
                self.life.durable.push((at, *key, *version));
            }
            self.spilled = self.sure.clone();
        }
    }

    fn offer(&self) {
        self.world.cache.offer_all(64, |candidates| {
            forebay_cache::SecondLevel::offer(&*self.world.level, candidates);
        });
    }

    /// One step of work.
    fn step(&mut self, rng: &mut SmallRng, longest: u64) {
        let key = rng.below(KEYS);
        match rng.below(100) {
            0..50 => self.change(key, Some(rng.below(longest) as usize)),
            50..65 => self.change(key, None),
            65..80 => self.offer(),
            80..84 => self.flush(false),
            84..86 => {
                self.flush(true);
                self.world.cache.flush();
            }
            86..88 => self.drop_memory(),
            _ => {
                if let Some(value) = self.world.get(key) {
                    let now = self.now.get(&key).copied();
                    let before = || self.life.before.get(&key).cloned().unwrap_or_default();
                    let unknown = now.is_none() && !self.life.changes.contains_key(&key);
                    assert!(
                        now == Some(value.version) || unknown && before().contains(&value.version),
                        "{key} has version {}, not {now:?}",
                        value.version
                    );
                }
            }
        }
    }

    /// What is in memory only is lost: it may be on the level or not.
    fn drop_memory(&mut self) {
        self.world.cache.flush();
        self.sure = self.spilled.clone();
    }
}

fn memory(image: &Image) -> Arc<dyn Device> {
    let options = MemoryOptions { sector_bytes: SECTOR_BYTES, ..MemoryOptions::default() };
    let device = MemoryDevice::new("crashed", image.size_bytes(), &options).unwrap();
    image.write_to(&device, &arena()).unwrap();
    Arc::new(device)
}

/// How a run is.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    device_bytes: u64,
    segment_bytes: u64,
    longest: u64,
    steps: u64,
    images: u64,
    /// Whether the ring comes round, so that what was flushed may be run over.
    round: bool,
}

impl Plan {
    fn options(&self) -> LevelOptions {
        let options = LevelOptions { segment_bytes: Some(self.segment_bytes), ..options() };
        options.tunables.set("batch_bytes", "64K").unwrap();
        options
    }

    fn execute(&self) -> (usize, usize) {
        println!("{self:?}");
        let mut rng = SmallRng::from_seed(self.seed);
        let zero = Image::zero(self.device_bytes, SECTOR_BYTES);
        let first = self.live(&mut rng, &zero, Life::default(), 1);
        let recording = first.recorder.recording();
        assert!(recording.is_complete(), "the recording is too short");
        let (mut promised, mut found) = (0, 0);
        for image in 0..self.images {
            let position = rng.below(recording.len() as u64 + 1) as usize;
            let crashed = recording.at(position).sampled(&mut rng);
            println!("image {image}, at {position} of {}", recording.len());
            let kept = self.check(&crashed, &first.life, position);
            let Some(kept) = kept else { continue };
            promised += kept.0;
            found += kept.1;
            // Life goes on, and ends as badly.
            let allowed = (0..KEYS).map(|key| (key, first.life.allowed(key, position))).collect();
            let life = Life { before: allowed, ..Life::default() };
            let second = self.live(&mut rng, &crashed, life, first.next_version);
            let again = second.recorder.recording();
            let position = rng.below(again.len() as u64 + 1) as usize;
            println!("  then at {position} of {}", again.len());
            let crashed = again.at(position).sampled(&mut rng);
            self.check(&crashed, &second.life, position);
        }
        (promised, found)
    }

    /// A life on an image: the first one makes a level of it.
    fn live(&self, rng: &mut SmallRng, image: &Image, life: Life, next_version: u64) -> Run {
        let base = Some(image.clone());
        let fresh = life.before.is_empty();
        let options = RecordOptions { max_bytes: 1 << 30, base };
        let recorder = Arc::new(RecordDevice::new(memory(image), options));
        let device: Arc<dyn Device> = recorder.clone();
        let world = match fresh {
            true => World::create(&device, &self.options()),
            false => World::open(&device, &self.options()),
        };
        let (now, sure, spilled) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut run = Run { world, recorder, life, now, sure, spilled, next_version };
        let steps = if fresh { self.steps } else { self.steps / 20 };
        if !fresh {
            // At once: the rebuild is still running, as far as it can.
            (0..20).for_each(|_| run.change(rng.below(KEYS), None));
            assert!(run.world.level.wait_rebuilt());
        }
        for _ in 0..steps {
            run.step(rng, self.longest);
        }
        let stats = run.world.level.stats();
        assert_eq!(stats.count("forget_failures"), 0);
        // After a crash a log may be there without all of its blocks.
        assert!(!fresh || stats.count("load_rotten") == 0, "{:?}", stats.short());
        if fresh && self.round {
            assert!(stats.count("overrun") > 0, "the ring came round: {:?}", stats.short());
        }
        // Only its recording is of use now.
        run.world.level.close();
        run
    }

    /// Opens an image and looks at every key. How many were promised, and found; `None` if there is no level yet.
    fn check(&self, image: &Image, life: &Life, position: usize) -> Option<(usize, usize)> {
        let device = memory(image);
        let level = match Level::open(device, Arc::new(Numbers), &self.options()) {
            Ok(level) => level,
            Err(error) => {
                // The label is made durable before anything else is done.
                assert!(life.before.is_empty() && life.promised(position).is_empty(), "{error}");
                return None;
            }
        };
        let world = World::over(level);
        let look = |key| {
            let found = world.get(key).map(|value| value.version);
            let allowed = life.allowed(key, position);
            assert!(
                found.is_none_or(|version| allowed.contains(&version)),
                "{key} has version {found:?}, of {allowed:?}"
            );
            found
        };
        // While the rebuild runs, and after it.
        (0..KEYS).for_each(|key| _ = look(key));
        assert!(world.level.wait_rebuilt());
        assert_eq!(world.level.rebuild().damaged, 0, "a crash damages nothing");
        world.cache.flush();
        let promised = life.promised(position);
        let found = promised.iter().filter(|(key, version)| look(**key) == Some(**version)).count();
        if !self.round {
            let enough = promised.len() * 99 / 100;
            assert!(found >= enough, "{found} of {} are there", promised.len());
        }
        (0..KEYS).for_each(|key| _ = look(key));
        world.close();
        Some((promised.len(), found))
    }
}

fn seeds(few: u64) -> Vec<u64> {
    let first = forebay_base::testing::seed(1);
    let count = if forebay_base::testing::full() { few * 10 } else { few };
    (0..count).map(|nth| first.wrapping_add(nth)).collect()
}

#[test]
fn what_was_flushed_is_there_after_a_crash_and_nothing_old_is() {
    let (mut promised, mut found) = (0, 0);
    for seed in seeds(2) {
        let (device_bytes, segment_bytes) = (96 << 20, 512 << 10);
        let (longest, steps, images, round) = (3000, 3000, 25, false);
        let plan = Plan { seed, device_bytes, segment_bytes, longest, steps, images, round };
        let kept = plan.execute();
        promised += kept.0;
        found += kept.1;
    }
    println!("{found} of {promised} that were promised are there");
    assert!(promised > 1000, "only {promised} were promised");
}

#[test]
fn nothing_old_is_there_after_a_crash_of_a_ring_that_has_come_round() {
    for seed in seeds(2) {
        let (device_bytes, segment_bytes) = (4 << 20, 64 << 10);
        let (longest, steps, images, round) = (2000, 6000, 25, true);
        let plan = Plan { seed, device_bytes, segment_bytes, longest, steps, images, round };
        plan.execute();
    }
}
